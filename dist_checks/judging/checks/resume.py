"""Is what new processes go on from what the ones before have saved?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dist_checks.axes import Axis
from dist_checks.judging.logical import Full
from dist_checks.judging.verdict import Finding
from dist_checks.judging.view import RungView, Writer
from dist_checks.trace import Kind

NOUN = {Kind.WEIGHT: "weight", Kind.BUFFER: "buffer", Kind.STATE: "optimizer state"}


def check(view: RungView) -> Iterator[Finding]:
    """Bit for bit, of full tensors and so whatever the layout: weights, buffers, state of the optimizer. The step, the
    place of the loader, how many steps the optimizer has counted, the loss scale. Random states rank by rank, where
    the ranks are the same."""
    writer = view.writer("resume")
    before = view.before
    if Axis.RESUME not in view.rung.setting:
        yield writer.skipped("it does not resume")
        return
    if before is None:
        yield writer.skipped("the first part of the run loads nothing")
        return
    saved = next((rank.saved for rank in before.trace.ranks if rank.saved), None)
    loaded = {rank.rank: rank.loaded for rank in view.trace.ranks if rank.loaded}
    if saved is None or not loaded:
        what, trace = ("loaded", view.trace) if saved else ("saved", before.trace)
        yield writer.unseen(f"no rank said what was {what}: {trace.cut or 'see engaged'}")
        return
    for message, rank in _progress(saved, loaded):
        yield _failed(view, writer, message, ranks=(rank,))
        return
    yield _random(view, before, writer) or _tensors(view, before, writer)


def _failed(view: RungView, writer: Writer, message: str, **fields: Any) -> Finding:
    return writer.failed(f"{message}, where it goes on with step {view.start}", step=view.start, **fields)


def _progress(saved: Mapping[str, Any], loaded: Mapping[int, Mapping[str, Any]]) -> Iterator[tuple[str, int]]:
    """What a rank has wrong of how far the run is, in words."""
    for rank, here in loaded.items():
        if here["step"] != saved["step"]:
            yield f"the step counter of rank {rank} is {here['step']}, saved was {saved['step']}", rank
        at, was = ((each["batch"], each["epoch"]) for each in (here, saved))
        if at != was:
            where = "starts again at sample 0" if not any(at) else f"goes on with batch {at[0]} of epoch {at[1]}"
            yield f"the loader of rank {rank} {where}, saved was batch {was[0]} of epoch {was[1]}", rank
        if here["optimizer_steps"] != saved["optimizer_steps"]:
            mine, theirs = (" and ".join(map(str, each["optimizer_steps"])) or "no" for each in (here, saved))
            yield f"the optimizer of rank {rank} has counted {mine} steps, saved were {theirs}", rank
        if here["loss_scale"] != saved["loss_scale"]:
            yield f"the loss scale of rank {rank} is {here['loss_scale']}, saved was {saved['loss_scale']}", rank


def _random(view: RungView, before: RungView, writer: Writer) -> Finding | None:
    """In another layout ranks compute other things, so there is no state that would be the same."""
    if view.rung.setting != before.rung.setting:
        return None
    for rank in view.trace.ranks:
        other = before.trace.by_rank.get(rank.rank)
        if rank.loaded and other and other.saved and rank.loaded["rng"] != other.saved["rng"]:
            message = f"the random state of rank {rank.rank} is not the one that was saved: it draws other masks"
            return _failed(view, writer, message, ranks=(rank.rank,), observed=1, allowed=0)
    return None


def _tensors(view: RungView, before: RungView, writer: Writer) -> Finding:
    compared = 0
    for kind, noun in NOUN.items():
        mine, theirs = view.own.full(kind), before.own.full(kind)
        rows = [row for row in theirs.at(view.start - 1).tolist() if theirs.complete[row] and not theirs.partial[row]]
        compared += len(rows)
        wrong = [row for row in rows if not _same(mine, theirs, row)]
        if wrong:
            message, distance = _how(mine, theirs, wrong[0])
            name = theirs.names[theirs.tensor[wrong[0]]]
            return _failed(
                view,
                writer,
                f"{noun} {name} {message}; so {len(wrong)} of {len(rows)}",
                tensor=name,
                observed=distance,
                allowed=0.0,
            )
    if not compared:
        return writer.unseen(f"no tensor was recorded when it was saved: {before.trace.cut or 'see shards'}")
    same = "and random states " if view.rung.setting == before.rung.setting else ""
    ranks = "" if same else f", {before.layout.world_size} ranks and then {view.layout.world_size}"
    return writer.passed(
        f"{compared} weights, buffers and states of the optimizer, counters {same}are those that were saved before "
        f"step {view.start}{ranks}",
        step=view.start,
        observed=0,
        allowed=0,
    )


def _same(mine: Full, theirs: Full, row: int) -> bool:
    other = mine.rows.get(theirs.key(row))
    return other is not None and bool(mine.fingerprint[other] == theirs.fingerprint[row])


def _how(mine: Full, theirs: Full, row: int) -> tuple[str, float]:
    """In words, and as a relative distance."""
    other = mine.rows.get(theirs.key(row))
    if other is None:
        return "was saved and is not there", 1.0
    distance = float(np.linalg.norm(mine.sketch[other] - theirs.sketch[row]))
    norm = float(np.linalg.norm(theirs.sketch[row]))
    relative = distance / norm if norm else float("inf")
    if not mine.sketch[other].any():
        return "is 0, and not what was saved", relative
    return f"is not what was saved: {relative:.1e} off", relative
