"""Every rank of a mesh in turn, through a process group that only pretends: its values are those of its extent."""

from __future__ import annotations

import itertools
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

from dist_checks.extent import Extent, tile
from dist_checks.probe.extents import Unreadable, locate


@contextmanager
def pretended(rank: int, sizes: tuple[int, ...], names: tuple[str, ...]) -> Iterator[DeviceMesh]:
    world = torch.Size(sizes).numel()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Holds meshes of the last rank that this process has pretended to be.
        _clear_sharding_prop_cache()  # type: ignore[no-untyped-call]
        dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
        try:
            yield init_device_mesh("cpu", sizes, mesh_dim_names=names)
        finally:
            dist.destroy_process_group()


def numbered(*shape: int) -> Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float64).view(shape)


def assert_holds_its_extent(x: Tensor, full: Tensor) -> Extent:
    part = locate(x)
    assert part.extent.shape == full.shape
    (box,) = part.extent.boxes
    region = tuple(slice(o, o + n) for o, n in zip(box.offset, box.length, strict=True))
    assert torch.equal(part.local, full[region])
    return part.extent


def assert_tiles(extents: list[Extent]) -> None:
    distinct = list({extent.region: extent for extent in extents if extent.elements}.values())
    assert tile(extents[0].shape, distinct).exact


PLACEMENTS = (Replicate(), Shard(0), Shard(1))
MESHES = [((3,), (7, 5)), ((2, 2), (7, 5)), ((2, 3), (4, 6)), ((2, 2, 2), (9, 5)), ((2, 2), (1, 3)), ((4,), (2, 2))]


@pytest.mark.parametrize(("sizes", "shape"), MESHES)
def test_every_placement_of_a_mesh(sizes: tuple[int, ...], shape: tuple[int, ...]) -> None:
    names = ("a", "b", "c")[: len(sizes)]
    full = numbered(*shape)
    extents: dict[tuple[Placement, ...], list[Extent]] = {}
    for rank in range(torch.Size(sizes).numel()):
        with pretended(rank, sizes, names) as mesh:
            for placements in itertools.product(PLACEMENTS, repeat=len(sizes)):
                x = distribute_tensor(full, mesh, placements, src_data_rank=None)
                extents.setdefault(placements, []).append(assert_holds_its_extent(x, full))
    assert len(extents) == len(PLACEMENTS) ** len(sizes)
    for of_ranks in extents.values():
        assert_tiles(of_ranks)


@pytest.mark.parametrize(
    ("sizes", "placements"),
    [
        ((2, 2), (_StridedShard(0, split_factor=2), Shard(0))),
        ((3, 2), (_StridedShard(0, split_factor=2), Shard(0))),
        ((2, 2, 3), (_StridedShard(0, split_factor=3), _StridedShard(0, split_factor=3), Shard(0))),
        ((2, 3, 2), (_StridedShard(0, split_factor=6), Shard(0), Shard(0))),
        ((2, 3, 2), (_StridedShard(0, split_factor=3), Shard(0), Shard(1))),
        ((2, 3, 2), (Shard(0), _StridedShard(0, split_factor=2), Shard(0))),
        ((2, 2), (_StridedShard(1, split_factor=2), Shard(1))),
    ],
)
def test_strided_shards(sizes: tuple[int, ...], placements: tuple[Placement, ...]) -> None:
    full = numbered(36, 24)
    extents = []
    for rank in range(torch.Size(sizes).numel()):
        with pretended(rank, sizes, ("a", "b", "c")[: len(sizes)]) as mesh:
            x = distribute_tensor(full, mesh, placements, src_data_rank=None)
            assert x.placements == placements
            extents.append(assert_holds_its_extent(x, full))
    assert_tiles(extents)


@pytest.mark.parametrize(
    ("sizes", "names"), [((3, 2), ("dp_shard", "tp")), ((2, 3, 2), ("dp_replicate", "dp_shard", "tp"))]
)
def test_fsdp_over_tensor_parallel_with_uneven_and_empty_shards(sizes: tuple[int, ...], names: tuple[str, ...]) -> None:
    """5 rows on each of 2 tp ranks, cut again for 3: 2, 2 and 1; a bias of 2 for 3 ranks: 1, 1 and none."""
    full = {
        "up.weight": numbered(10, 4),
        "up.bias": numbered(10),
        "down.weight": numbered(2, 10),
        "down.bias": numbered(2),
    }
    extents: dict[str, list[Extent]] = {name: [] for name in full}
    for rank in range(torch.Size(sizes).numel()):
        with pretended(rank, sizes, names) as mesh:
            model = nn.Sequential(OrderedDict(up=nn.Linear(4, 10), down=nn.Linear(10, 2))).double()
            model.load_state_dict(full)
            parallelize_module(
                model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()}, src_data_rank=None
            )
            fully_shard(model, mesh=mesh[names[:-1]])
            for name, parameter in model.named_parameters():
                assert isinstance(parameter, DTensor)
                extents[name].append(assert_holds_its_extent(parameter, full[name]))
    for of_ranks in extents.values():
        assert_tiles(of_ranks)
    assert 0 in {extent.elements for extent in extents["down.bias"]}
    assert len({extent.elements for extent in extents["up.weight"]}) == 2


def test_partial_sums_and_averages_name_their_axes() -> None:
    with pretended(1, (2, 3), ("dp", "tp")) as mesh:
        summed = locate(DTensor.from_local(numbered(4), mesh, [Shard(0), Partial("sum")], run_check=False))
        assert summed.extent == Extent.box([8], [0], [4], ["tp"])
        assert summed.factor == 1
        averaged = locate(DTensor.from_local(numbered(4), mesh, [Partial("sum"), Partial("avg")], run_check=False))
        assert averaged.extent.partial == ("dp", "tp")
        assert averaged.factor == pytest.approx(1 / 3)


def test_what_cannot_be_added_up_is_unreadable_and_says_why() -> None:
    with pretended(0, (2, 2), ("dp", "tp")) as mesh:
        with pytest.raises(Unreadable, match="combined by max"):
            locate(DTensor.from_local(numbered(4), mesh, [Replicate(), Partial("max")], run_check=False))
        strided = [_StridedShard(0, split_factor=3), Shard(0)]
        x = DTensor.from_local(numbered(4), mesh, strided, run_check=False, shape=torch.Size([16]), stride=(1,))
        with pytest.raises(Unreadable, match="does not follow any of the cuts"):
            locate(x)
    with pytest.raises(Unreadable, match=r"layout torch\.sparse_coo"):
        locate(numbered(2, 2).to_sparse())


def test_a_rank_outside_of_the_mesh_has_nothing_to_record() -> None:
    with pretended(3, (4,), ("all",)):
        mesh = DeviceMesh("cpu", [0, 1], mesh_dim_names=("tp",))
        with pytest.raises(Unreadable, match="not in the tensor's device mesh"):
            locate(distribute_tensor(numbered(4), mesh, [Shard(0)], src_data_rank=None))


def test_a_plain_tensor_is_full_and_detached() -> None:
    x = numbered(2, 3).requires_grad_()
    part = locate(x)
    assert part.extent == Extent.full([2, 3])
    assert part.place is None
    assert not part.local.requires_grad
    assert locate(torch.tensor(3.0)).extent == Extent.full([])


def test_a_mesh_without_names_is_counted() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
        try:
            mesh = DeviceMesh("cpu", [0, 1])
            part = locate(DTensor.from_local(numbered(2), mesh, [Partial()], run_check=False))
        finally:
            dist.destroy_process_group()
    assert part.extent.partial == ("mesh_dim_0",)
