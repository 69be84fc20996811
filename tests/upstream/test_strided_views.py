"""torch 2.13 on gloo: all_reduce, broadcast and reduce of a strided view work on other elements than those of the view.

They take as many elements as the view has from where it begins in memory, one after the other: elements of the view
are left out, and others that do not belong to it are overwritten. Row slices and transposes, which have no gaps, are
right. Way round: reduce ``view.contiguous()`` and copy back. Planted as the fault strided_all_reduce, the harness says:
replicas hold different gradients of embedding.weight at step 0.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from upstream_ranks import run


def whole(rank: int) -> Tensor:
    return torch.arange(24.0).view(4, 6) + 100 * rank


def columns(x: Tensor) -> Tensor:
    return x[:, 1:4]


def every_other_row(x: Tensor) -> Tensor:
    return x[::2]


def rows(x: Tensor) -> Tensor:
    return x[1:3]


def transposed(x: Tensor) -> Tensor:
    return x.t()


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    view.__name__: view for view in (columns, every_other_row, rows, transposed)
}
GAPS = ("columns", "every_other_row")


def reduced(rank: int) -> dict[str, Tensor]:
    out = {}
    for name, view in VIEWS.items():
        out[name] = whole(rank)
        dist.all_reduce(view(out[name]))
    return out


def broadcast(rank: int) -> dict[str, Tensor]:
    out = {}
    for name, view in VIEWS.items():
        out[name] = whole(rank)
        dist.broadcast(view(out[name]), src=0)
    return out


def reduced_to_one(rank: int) -> dict[str, Tensor]:
    out = {}
    for name, view in VIEWS.items():
        out[name] = whole(rank)
        dist.reduce(view(out[name]), dst=1)
    return out


def right(name: str, value: Tensor) -> Tensor:
    """What rank 1 should hold when the view has the values of that of ``value``."""
    out, view = whole(1), VIEWS[name]
    view(out).copy_(view(value))
    return out


@pytest.mark.parametrize(
    ("operation", "value"),
    [(reduced, whole(0) + whole(1)), (broadcast, whole(0)), (reduced_to_one, whole(0) + whole(1))],
    ids=["all_reduce", "broadcast", "reduce"],
)
def test_views_with_gaps_are_wrong(
    operation: Callable[[int], dict[str, Tensor]], value: Tensor, tmp_path: Path
) -> None:
    found = run(operation, tmp_path)[1]
    for name in VIEWS:
        assert torch.equal(found[name], right(name, value)) == (name not in GAPS), name
    # One behind the other in memory: elements 1 to 12, where the view has 1, 2, 3, 7, 8, 9, 13, ...
    in_memory = whole(1).flatten()
    in_memory[1:13] = value.flatten()[1:13]
    assert torch.equal(found["columns"].flatten(), in_memory)


def around(rank: int) -> Tensor:
    x = whole(rank)
    copy = columns(x).contiguous()
    dist.all_reduce(copy)
    columns(x).copy_(copy)
    return x


def test_the_way_round(tmp_path: Path) -> None:
    assert torch.equal(run(around, tmp_path)[1], right("columns", whole(0) + whole(1)))
