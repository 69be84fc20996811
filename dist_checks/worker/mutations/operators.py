"""What can go wrong with one collective: each operator is a mistake, made on every rank alike, so that nobody waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from dist_checks.worker.mutations.group import Call

Operator = Callable[[Call, "Memory"], Any]

SCALE = 1.05
"""Of what is scaled wrongly."""

REDUCING = ("all_reduce", "reduce_scatter")
EVERY = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "recv")


class Memory:
    """What a rank remembers of earlier calls: results by number of the call within a step."""

    def __init__(self) -> None:
        self.number = 0
        self.results: dict[tuple[int, str], list[Tensor]] = {}

    def next_step(self) -> None:
        self.number = 0


def drop(call: Call, memory: Memory) -> Any:
    """Nothing is sent: a rank keeps what is its own."""
    kept = [x.clone() for x in call.inputs]
    work = call.run()  # so that every buffer is written, and nobody is left behind
    index = call.group.index
    if call.kind == "all_gather":
        for output in call.outputs:
            output.copy_(kept[0].reshape(output.shape))
    elif call.kind == "reduce_scatter":
        call.outputs[0].copy_(kept[index].reshape(call.outputs[0].shape))
    elif call.kind == "all_to_all":
        output = call.outputs[0].view(-1)
        count = min(output.numel(), kept[0].numel())
        output[:count] = kept[0].reshape(-1)[:count]
    else:
        for output, own in zip(call.outputs, kept, strict=True):
            output.copy_(own)
    return work


def double(call: Call, memory: Memory) -> Any:
    """The collective is done twice, on its own result where it is in place. Not of single numbers, see ``_floats``."""
    work = call.run()
    if all(output.numel() == 1 for output in call.outputs):
        return work
    if call.kind == "reduce_scatter":
        call.outputs[0].mul_(2)
        return work
    return call.run()


def wrong_group(call: Call, memory: Memory) -> Any:
    """All but the last rank are one group, the last is alone."""
    kept = [x.clone() for x in call.inputs]
    alone = call.group.index == call.group.members - 1
    if call.kind == "all_reduce":
        # What the last rank would add is left out for the others, and it keeps its own.
        if alone:
            for tensor in call.outputs:
                tensor.zero_()
        work = call.run()
        if alone:
            for output, own in zip(call.outputs, kept, strict=True):
                output.copy_(own)
        return work
    work = call.run()
    return drop_alone(call, kept, work) if alone else work


def drop_alone(call: Call, kept: list[Tensor], work: Any) -> Any:
    if call.kind == "reduce_scatter":
        call.outputs[0].copy_(kept[call.group.index].reshape(call.outputs[0].shape))
    elif call.kind == "all_gather":
        for output in call.outputs:
            output.copy_(kept[0].reshape(output.shape))
    else:
        for output, own in zip(call.outputs, kept, strict=False):
            if output.shape == own.shape:
                output.copy_(own)
    return work


def mean_for_sum(call: Call, memory: Memory) -> Any:
    """A mean where a sum was asked for, and the other way round."""
    work = call.run()
    factor = 1 / call.group.members if call.reduces == "sum" else call.group.members
    for output in _floats(call):
        output.mul_(factor)
    return work


def wrong_scale(call: Call, memory: Memory) -> Any:
    work = call.run()
    for output in _floats(call):
        output.mul_(SCALE)
    return work


def one_step_late(call: Call, memory: Memory) -> Any:
    """A rank gets what the same call of the step before gave."""
    work = call.run()
    key = (memory.number, call.kind)
    memory.number += 1
    before, now = memory.results.get(key), [x.clone() for x in call.outputs]
    memory.results[key] = now
    for output, old in zip(call.outputs, before or now, strict=False):
        if output.shape == old.shape:
            output.copy_(old)
    return work


def stale_buffer(call: Call, memory: Memory) -> Any:
    """The first part of the buffer is what was there before."""
    kept = [x.clone() for x in call.outputs]
    work = call.run()
    for output, old in zip(call.outputs, kept, strict=True):
        count = max(1, output.numel() // 4)
        if output.is_contiguous():
            output.view(-1)[:count] = old.reshape(-1)[:count]
    return work


def permuted(call: Call, memory: Memory) -> Any:
    """What the ranks of a group gave comes back in another order, or each gets what is another one's."""
    if call.kind == "reduce_scatter":
        return exchanged(call)
    work = call.run()
    parts = [x.clone() for x in call.outputs]
    if call.kind == "all_to_all":
        rows = call.outputs[0]
        rows.copy_(rows.flip(0))
        return work
    for output, other in zip(call.outputs, reversed(parts), strict=True):
        if output.shape == other.shape:
            output.copy_(other)
    return work


def exchanged(call: Call) -> Any:
    """Each rank gets the part of its mirror image: parts change places before they are added up."""
    kept = [x.clone() for x in call.inputs]
    for tensor, other in zip(call.inputs, reversed(kept), strict=True):
        if tensor.shape == other.shape:
            tensor.copy_(other)
    return call.run()


def _floats(call: Call) -> list[Tensor]:
    """Not of single numbers: the worker's count of targets, wrong by the same factor, would undo what is done here."""
    return [x for x in call.outputs if x.is_floating_point() and x.numel() > 1]


OPERATORS: dict[str, tuple[Operator, tuple[str, ...]]] = {
    "drop": (drop, EVERY),
    "double": (double, ("all_reduce", "reduce_scatter", "all_gather", "broadcast")),
    "wrong_group": (wrong_group, ("all_reduce", "reduce_scatter", "all_gather", "broadcast")),
    "mean_for_sum": (mean_for_sum, REDUCING),
    "wrong_scale": (wrong_scale, EVERY),
    "one_step_late": (one_step_late, EVERY),
    "stale_buffer": (stale_buffer, EVERY),
    "permuted": (permuted, ("all_gather", "all_to_all", "reduce_scatter")),
}
"""By name: what it does, and the kinds of collective that it can be done to."""
