"""Do the parts that the ranks hold make up each tensor exactly once?"""

from __future__ import annotations

from collections.abc import Iterator

from dist_checks.judging.logical import Full
from dist_checks.judging.verdict import Finding
from dist_checks.judging.view import RungView, Writer
from dist_checks.trace import BEFORE, Kind

KINDS = (Kind.WEIGHT, Kind.BUFFER, Kind.GRADIENT, Kind.APPLIED, Kind.STATE)


def check(view: RungView) -> Iterator[Finding]:
    """No element is missing and none is held by two different parts; every tensor of the reference is there."""
    writer = view.writer("shards")
    if not len(view.own.full(Kind.WEIGHT)):
        yield writer.unseen(f"no weights were recorded: {view.trace.cut or 'the probe was told not to'}")
        return
    tensors = 0
    wrong: list[tuple[int, int, str, str]] = []
    for order, kind in enumerate(KINDS):
        found = view.own.full(kind)
        tensors += len(set(found.tensor.tolist()))
        for row in (~found.complete).nonzero()[0].tolist():
            wrong.append((int(found.step[row]), order, found.names[found.tensor[row]], _what(kind, found, row)))
    lost = _lost(view)
    if wrong:
        yield _failed(view, writer, wrong)
    elif lost:
        yield writer.failed(
            f"no rank holds weight {lost[0]}, which {view.rung.reference} has ({len(lost)} such weights)",
            step=BEFORE,
            tensor=lost[0],
            observed=len(lost),
            allowed=0,
        )
    else:
        several = view.layout.world_size > 1
        yield writer.passed(
            f"{tensors} tensors are tiled exactly once" if several else f"{tensors} tensors are whole",
            observed=0,
            allowed=0,
        )


def _failed(view: RungView, writer: Writer, wrong: list[tuple[int, int, str, str]]) -> Finding:
    step, _, name, what = min(wrong, key=lambda item: item[:2])
    names = {(kind, name) for _, kind, name, _ in wrong}
    message = f"{what}; {len(names)} tensors are not tiled exactly once"
    # A rank that is missing takes its shards along: that says nothing about how tensors are cut.
    if view.trace.cut:
        return writer.unseen(f"{message}: {view.trace.cut}", step=step, tensor=name)
    return writer.failed(
        message, step=step, tensor=name, ranks=range(view.layout.world_size), observed=len(names), allowed=0
    )


def _what(kind: Kind, found: Full, row: int) -> str:
    tiling, name = found.tiling[row], found.names[found.tensor[row]]
    if isinstance(tiling, str):
        return f"{kind.value} {name}: {tiling}"
    what = f"the parts of {kind.value} {name} hold {tiling.covered} of {tiling.expected} elements"
    if tiling.overlap is not None:
        return f"{what}, and overlap"
    return f"{what}, and pieces of a partial sum are missing" if tiling.exact else what


def _lost(view: RungView) -> list[str]:
    """Weights that only the reference has. Tied ones are there under their first name."""
    if view.reference is None:
        return []
    mine, theirs = view.own.full(Kind.WEIGHT), view.reference.full(Kind.WEIGHT)
    unreadable = {item.get("name") for rank in view.trace.ranks for item in rank.evidence.get("unrecorded") or ()}
    return [name for name in theirs.names if name not in mine.names and name not in unreadable]
