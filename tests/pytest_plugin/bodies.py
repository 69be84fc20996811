"""Tests as users write them; each is run by a pytest of its own, which test_ranks.py starts. Some are to fail."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

FIRST = "the text that the ranks agree on"


def total() -> int:
    value = torch.tensor(dist.get_rank())
    dist.all_reduce(value)
    return int(value.item())


@pytest.fixture
def mesh() -> DeviceMesh:
    """Made on the ranks: no process group could be handed over."""
    return init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))


@pytest.fixture(scope="module")
def text() -> str:
    return FIRST


@pytest.mark.ranks(4)
@pytest.mark.parametrize("factor", [1, 2])
def test_sum(factor: int, mesh: DeviceMesh, text: str) -> None:
    assert (mesh.size(), text) == (4, FIRST)
    assert total() * factor == 6 * factor


@pytest.mark.ranks(2, 3)
def test_sizes() -> None:
    assert total() == sum(range(dist.get_world_size()))
    assert dist.get_world_size() in (2, 3)


@pytest.mark.ranks(2)
class TestOfAClass:
    def setup_method(self) -> None:
        self.size = dist.get_world_size()

    def test_method(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FOR_THIS_TEST", "1")
        (tmp_path / f"rank{dist.get_rank()}").touch()
        dist.barrier()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["rank0", "rank1"]
        assert self.size == 2


@pytest.mark.ranks(2)
def test_the_last_one_had_an_environment_of_its_own() -> None:
    assert "FOR_THIS_TEST" not in os.environ


@pytest.mark.ranks(3)
def test_rank_2_is_wrong() -> None:
    print(f"rank {dist.get_rank()} is here")
    found = {"total": total(), "rank": dist.get_rank()}
    expected = {"total": 3, "rank": min(dist.get_rank(), 1)}
    if dist.get_rank() != 2:
        dist.barrier()
    assert found == expected


@pytest.mark.ranks(3)
def test_raises_before_the_others() -> None:
    if dist.get_rank() == 1:
        raise ValueError("rank 1 cannot read its shard")
    total()


@pytest.mark.ranks(3, deadline=8)
def test_hangs() -> None:
    total()
    print(f"rank {dist.get_rank()} before the barrier")
    if dist.get_rank() != 1:
        dist.barrier()
    else:
        time.sleep(60)


@pytest.mark.timeout(12)
@pytest.mark.ranks(2)
def test_one_leaves() -> None:
    if dist.get_rank() == 0:
        dist.barrier()


@pytest.mark.ranks(2)
def test_killed() -> None:
    print("before the end")
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    total()


@pytest.mark.ranks(2)
def test_skips() -> None:
    pytest.skip("needs NVLink")


@pytest.mark.ranks(2)
def test_skips_on_one() -> None:
    if dist.get_rank() == 0:
        pytest.skip("only rank 0 does not want to")


@pytest.mark.ranks(2)
@pytest.mark.skipif(os.name == "posix", reason="never here")
def test_skipped_by_mark() -> None:
    raise AssertionError


@pytest.mark.ranks(2)
@pytest.mark.xfail(reason="known", raises=AssertionError, strict=True)
def test_xfails() -> None:
    assert dist.get_rank() != 1, "as it is known"


@pytest.mark.ranks(2)
@pytest.mark.xfail(reason="thought to be wrong", strict=True)
def test_passes_against_xfail() -> None:
    assert total() == 1


@pytest.mark.ranks(2, deadlin=3)
def test_misspelt() -> None:
    raise AssertionError


@pytest.fixture
def broken() -> None:
    raise LookupError("no data set here")


@pytest.mark.ranks(2)
def test_fixture_fails(broken: None) -> None:
    raise AssertionError


@pytest.mark.ranks(2, init=False, env={"MINE": "7"})
def test_without_a_group() -> None:
    assert not dist.is_initialized()
    assert (os.environ["MINE"], os.environ["WORLD_SIZE"]) == ("7", "2")


def test_here(tmp_path: Path) -> None:
    """On no rank: as ever."""
    assert not dist.is_initialized()


@pytest.mark.ranks(2)
def test_property(record_property: Callable[[str, object], None]) -> None:
    record_property("world", dist.get_world_size())
