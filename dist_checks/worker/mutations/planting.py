"""Mutants by name: ``mutant:drop:dp_shard:all_gather`` of a collective, ``mutant:skip_step:tp`` of one rank's state."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker.loop import Trainer
from dist_checks.worker.mutations import group, innocents, keeping, loops, states
from dist_checks.worker.mutations.operators import EVERY, OPERATORS, Memory

PREFIX = "mutant:"
KEEP = "mutant:keep:"
"""Changes nothing: each rank leaves the bytes of its tensors in the folder that follows."""
SCALED = "mutant:scaled:"
"""``mutant:scaled:1.0004:blocks.0.attention.q.weight``: one gradient times a number, on every rank of several."""
INNOCENT = "mutant:innocent:"
"""``mutant:innocent:local_loss_printed``: what looks like a mistake and is none."""
WATCH = "mutant:watch"
"""Changes nothing: each rank prints which collectives go through groups of which ranks."""


def check(id: str) -> None:
    """Raises ValueError where there is no such mutant."""
    if id == WATCH or id.startswith((KEEP, SCALED)) or id.removeprefix(INNOCENT) in innocents.INNOCENTS:
        return
    parts = id.removeprefix(PREFIX).split(":")
    if len(parts) == 3 and parts[0] in OPERATORS and parts[1] in list(Axis) and parts[2] in OPERATORS[parts[0]][1]:
        return
    if len(parts) == 2 and parts[0] in states.OPERATORS and parts[1] in list(Axis):
        return
    raise ValueError(
        f"--fault: there is no mutant '{id}', expected {PREFIX}OPERATOR:AXIS:COLLECTIVE with an operator of "
        f"{', '.join(OPERATORS)}, or {PREFIX}OPERATOR:AXIS with one of {', '.join(states.OPERATORS)}"
    )


def plant(id: str, rung: Rung) -> None:
    """On every rank, before anything is built. Where the axis is off, a mutant does nothing."""
    check(id)
    if id == WATCH:
        watch()
        return
    if id.startswith(SCALED):
        factor, _, name = id.removeprefix(SCALED).partition(":")
        states.scaled(float(factor), name, rung)
        return
    if id.startswith(INNOCENT):
        innocents.INNOCENTS[id.removeprefix(INNOCENT)](rung)
        return
    if id.startswith(KEEP):
        keeping.plant(Path(id.removeprefix(KEEP)))
        return
    name, axis, *kind = id.removeprefix(PREFIX).split(":")
    if Axis(axis) not in rung.setting or rung.layout.world_size == 1:
        return
    if kind:
        collective(name, Axis(axis), kind[0], rung)
    else:
        states.OPERATORS[name](Axis(axis), rung)


def watch() -> None:
    """Print each kind of collective that can be mutated once, with the ranks of its group."""
    started = starting(lambda: None)

    def changed(around: group.Around) -> None:
        seen: set[str] = set()

        def look(call: group.Call) -> object:
            if call.kind not in seen and mutable(call, started()):
                seen.add(call.kind)
                print(f"{WATCH} {call.kind} {','.join(map(str, around.ranks))}", flush=True)
            return call.run()

        around.changes.update(dict.fromkeys(EVERY, look))

    group.install(changed)


def collective(name: str, axis: Axis, kind: str, rung: Rung) -> None:
    """Every collective of ``kind`` in a group of ``axis``, from the first step on."""
    operator, memory = OPERATORS[name][0], Memory()
    groups = set(rung.layout.lines(axis))
    started = starting(memory.next_step)

    def changed(around: group.Around) -> None:
        if around.ranks in groups:
            around.changes[kind] = partial(changing, around)

    @torch.no_grad()
    def changing(around: group.Around, call: group.Call) -> object:
        return operator(call, memory) if mutable(call, started()) else call.run()

    group.install(changed)


def mutable(call: group.Call, started: bool) -> bool:
    """Before the first step only what hands weights round: the rest of it is how wrappers agree with each other."""
    return started or call.kind == "broadcast"


def starting(each: Callable[[], None]) -> Callable[[], bool]:
    """Whether the first step has begun; ``each`` is called at the beginning of every step."""
    begun = False

    def make(right: loops.Method) -> loops.Method:
        def step(self: Trainer, index: int) -> None:
            nonlocal begun
            begun = True
            each()
            right(self, index)

        return step

    loops.replace(step=make)
    return lambda: begun
