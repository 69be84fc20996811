"""Do the ranks that must draw the same random numbers do so, and only they?"""

from __future__ import annotations

from collections.abc import Iterator

from dist_checks.axes import Axis
from dist_checks.judging.verdict import Finding
from dist_checks.judging.view import RungView


def check(view: RungView) -> Iterator[Finding]:
    """The state at the start of each step is equal inside a tp or cp group. Under dropout no two data ranks have the
    same, nor two stages of a pipeline."""
    writer = view.writer("rng")
    if view.layout.world_size == 1:
        yield writer.skipped("a single rank has nobody to draw numbers with")
        return
    steps = view.trace.steps
    hashes = {rank.rank: [rank.steps[step].get("rng") for step in steps] for rank in view.trace.ranks}
    if not steps or not all(all(found) for found in hashes.values()):
        if view.own_loop and steps:
            yield writer.skipped("no forward pass was seen, so neither was the state of the random numbers before it")
            return
        because = f": {view.trace.cut}" if view.trace.cut else ""
        yield writer.unseen(f"the state of the random numbers was not recorded{because}")
        return
    groups = _groups(view)
    for at, step in enumerate(steps):
        for ranks in groups.values():
            other = next((rank for rank in ranks if hashes[rank][at] != hashes[ranks[0]][at]), None)
            if other is not None and view.own_loop:
                # Of a script nobody knows whether it draws any.
                yield writer.skipped(
                    f"ranks {ranks[0]} and {other} work on the same samples ({view.along(ranks[0], other)}) and have "
                    "different random states: harmless where nothing is drawn, as without dropout",
                    step=step,
                    ranks=(ranks[0], other),
                )
                return
            if other is not None:
                yield writer.failed(
                    f"ranks {ranks[0]} and {other} work on the same samples ({view.along(ranks[0], other)}) and have "
                    "different random states: their masks differ",
                    step=step,
                    ranks=(ranks[0], other),
                    observed=1,
                    allowed=0,
                )
                return
        if view.dropout and not view.own_loop:  # of a script the seed may be that of all ranks, as transformers has it
            owner: dict[str, int] = {}
            for ranks in groups.values():
                here = ranks[0]
                twin = owner.setdefault(str(hashes[here][at]), here)
                if twin != here:
                    yield writer.failed(
                        f"ranks {twin} and {here} compute different things ({view.along(twin, here)}) and have the "
                        "same random state: dropout masks them alike",
                        step=step,
                        ranks=(twin, here),
                        observed=1,
                        allowed=0,
                    )
                    return
    data = f", different over {len(groups)} data ranks and stages" if view.dropout and len(groups) > 1 else ""
    yield writer.passed(f"random states are equal where samples are shared{data}, at {len(steps)} steps")


def _groups(view: RungView) -> dict[tuple[int, int], list[int]]:
    """The ranks that work on the same samples in the same stage."""
    out: dict[tuple[int, int], list[int]] = {}
    for part, ranks in view.data_ranks().items():
        for rank in ranks:
            out.setdefault((part, view.layout.coordinates(rank)[Axis.PP]), []).append(rank)
    return out
