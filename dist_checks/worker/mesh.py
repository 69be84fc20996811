"""The ranks of a rung as torch sees them: device, process group, and a device mesh whose dims are the axes."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from dist_checks.axes import Axis, Layout
from dist_checks.probe.collectives import LOOP
from dist_checks.rung import Rung

INIT_METHOD = "LAUNCH_INIT_METHOD"
"""Environment variable: where the ranks meet, when not by torchrun's MASTER_ADDR and MASTER_PORT."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One rank's place in a rung."""

    rung: Rung
    rank: int
    device: torch.device
    mesh: DeviceMesh | None = None
    """One dim for each axis of degree above 1, named like it, and for dp_shard where FSDP2 is in use for its precision;
    None where there is no dim."""
    loss_group: dist.ProcessGroup | None = None
    """The ranks whose losses are of different parts of a batch, samples or tokens, and which share everything else;
    None where that is this one only."""

    @property
    def layout(self) -> Layout:
        return self.rung.layout

    def degree(self, axis: Axis) -> int:
        return self.rung.setting.degree(axis)

    @property
    def sharded(self) -> bool:
        """FSDP2 holds the parameters: dp_shard is on, or the precision is one that FSDP2 makes."""
        return sharded(self.rung)

    @property
    def data_rank(self) -> int:
        return self.layout.data_rank(self.rank)

    def submesh(self, *axes: Axis) -> DeviceMesh:
        """The part of the mesh along ``axes``, which must be on."""
        assert self.mesh is not None, axes
        return self.mesh[tuple(axis.value for axis in axes)]

    def flat(self, *axes: Axis) -> DeviceMesh:
        """On every rank: the ranks along those of ``axes`` that are dims, one at least, as a mesh of one dim."""
        assert self.mesh is not None, axes
        dims = self.mesh.mesh_dim_names or ()
        mesh = self.submesh(*(axis for axis in axes if axis.value in dims))
        return mesh._flatten() if mesh.ndim > 1 else mesh


def choose_device(wanted: str | None = None) -> torch.device:
    """``wanted`` (``cpu``, ``cuda``), else the accelerator if there is one; one device for each rank of this node."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    kind = wanted or (accelerator.type if accelerator else "cpu")
    if kind == "cpu":
        return torch.device("cpu")
    if accelerator is None or kind != accelerator.type:
        raise ValueError(f"device takes cpu or the accelerator that torch sees ({accelerator}), not {kind!r}")
    index, devices = int(os.environ.get("LOCAL_RANK", "0")), torch.accelerator.device_count()
    if index >= devices:
        raise ValueError(
            f"ranks of a node ({os.environ.get('LOCAL_WORLD_SIZE', index + 1)}) must be at most its {kind} devices "
            f"({devices}); device = 'cpu' in the payload runs them on the CPU"
        )
    torch.accelerator.set_device_index(index)
    return torch.device(kind, index)


def device_id(device: torch.device) -> str | None:
    """What tells two devices of one host apart, however few of them each rank may see; None for a CPU."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else None


class WrongWorld(ValueError):
    """The launcher started another number of ranks than the rung needs."""


def start(rung: Rung, wanted_device: str | None = None) -> World:
    """On every rank: joins the other ranks. A world of one has no process group, unless FSDP2 needs one.

    Raises WrongWorld when the launcher started another number of ranks than the rung needs.
    """
    device = choose_device(wanted_device)
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    layout = rung.layout
    if size != layout.world_size:
        raise WrongWorld(f"rung {rung.id} needs {layout.world_size} ranks, the launcher started {size}")
    if size == 1 and not sharded(rung):
        return World(rung=rung, rank=rank, device=device)
    dist.init_process_group(
        backend=dist.get_default_backend_for_device(device),
        init_method=os.environ.get(INIT_METHOD, "env://"),
        rank=rank,
        world_size=size,
        device_id=None if device.type == "cpu" else device,
    )
    mesh = build_mesh(layout, device, (Axis.DP_SHARD,) if sharded(rung) else ())
    return World(rung=rung, rank=rank, device=device, mesh=mesh, loss_group=loss_group(layout, rank))


def sharded(rung: Rung) -> bool:
    return rung.setting.degree(Axis.DP_SHARD) > 1 or rung.precision == "bf16_fsdp"


def build_mesh(layout: Layout, device: torch.device, always: Collection[Axis] = ()) -> DeviceMesh:
    """On every rank; axes of degree 1 are dims only if they are among ``always``.

    Ranks are numbered as in :class:`~dist_checks.axes.Layout`: the last axis varies fastest.
    """
    on = {axis.value: degree for axis, degree in layout.degrees.items() if degree > 1 or axis in always}
    mesh = init_device_mesh(device.type, tuple(on.values()), mesh_dim_names=tuple(on))
    if Axis.DP_SHARD in on and Axis.TP in on:
        # Known to the mesh from now on: the gradient norm is added up by one collective instead of one for each dim.
        mesh[Axis.DP_SHARD.value, Axis.TP.value]._flatten()
    return mesh


def loss_group(layout: Layout, rank: int) -> dist.ProcessGroup | None:
    """On every rank: a group of the worker's own, for counting targets and for the loss that is printed."""
    if layout.loss_parts == 1:
        return None
    # Every rank has to make every group, in the same order.
    groups: dict[tuple[int, ...], dist.ProcessGroup] = {
        ranks: dist.new_group(list(ranks), group_desc=LOOP) for ranks in layout.groups(*layout.loss_axes)
    }
    return groups[layout.group(rank, *layout.loss_axes)]


def stop(world: World) -> None:
    """On every rank, at the end of a run that went well: waits for all, so that nobody loses a peer too early."""
    if world.mesh is not None:
        dist.barrier()


def leave() -> None:
    """On every rank, after :func:`stop`."""
    if dist.is_initialized():
        dist.destroy_process_group()


def sum_over_parts(world: World, value: float) -> float:
    """On every rank: the sum of ``value`` over the ranks whose losses are of different parts of the batch."""
    if world.loss_group is None:
        return value
    total = torch.tensor(value, dtype=torch.float64, device=world.device)
    dist.all_reduce(total, group=world.loss_group)
    return total.item()
