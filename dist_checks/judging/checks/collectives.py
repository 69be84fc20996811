"""Do the ranks of each group call the same collectives in the same order, and does each of them come?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dist_checks.judging import hangs
from dist_checks.judging.calls import Call, Group, RankCalls, Record, Tensors, name, read_calls, words
from dist_checks.judging.reading import rank_list
from dist_checks.judging.verdict import Finding
from dist_checks.judging.view import RungView, Writer

SHOWN = 3  # groups that go wrong, at most


def check(view: RungView) -> Iterator[Finding]:
    """Operation, shapes and dtypes have to agree inside a group; what different groups do has nothing in common.

    gloo returns without an error when the shapes of an all-reduce differ. A barrier on one rank only (autocast PR#386)
    and a batch more on one rank (pytorch/pytorch#33148) show as a rank that is one ahead when all have stopped.
    """
    writer = view.writer("collectives")
    calls = read_calls(view.trace.folder, view.layout.world_size)
    groups: dict[Group, dict[int, dict[int, Record]]] = {}
    for rank, found in calls.items():
        for group, records in found.collectives.items():
            groups.setdefault(group, {})[rank] = records
    wrong = [finding for group, by_rank in groups.items() if (finding := _differ(writer, group, by_rank))]
    wrong.sort(key=lambda finding: -1 if finding.step is None else finding.step)
    yield from wrong[:SHOWN]
    hung = hangs.tell(view, calls) if (view.exit or {}).get("state") == "timed_out" else None
    if hung:
        yield writer.failed(hung.sentence, step=hung.step, ranks=hung.ranks)
    if wrong or hung:
        return
    yield _rest(writer, view, calls, groups)


def _rest(
    writer: Writer,
    view: RungView,
    calls: Mapping[int, RankCalls],
    groups: Mapping[Group, Mapping[int, Mapping[int, Record]]],
) -> Finding:
    """Where no two ranks contradict each other: were they seen to agree to the end?"""
    recorded = view.trace.ranks and all(rank.evidence.get("collectives") is not None for rank in view.trace.ranks)
    if not groups and not recorded and not calls:
        return writer.skipped(f"no collective was recorded: {view.trace.cut or 'the recorder was off'}")
    uneven = [
        finding for group, by_rank in groups.items() if (finding := _uneven_counts(writer, group, by_rank, calls))
    ]
    if uneven:
        return uneven[0]
    missing = [rank for rank in range(view.layout.world_size) if rank not in calls]
    if missing:
        return writer.unseen(f"{rank_list(missing)} left no file of collectives", ranks=missing)
    for found in calls.values():
        if found.problem:
            return writer.unseen(found.problem, ranks=[found.rank])
    short = [rank for rank, found in calls.items() if not (found.ended and found.left)]
    if short:
        return writer.unseen(f"{rank_list(short)} did not come to the end{_meanwhile(calls)}", ranks=short)
    if view.layout.world_size == 1:
        return writer.skipped("a single rank has nobody to call a collective with")
    lost = sum(found.lost for found in calls.values())
    unread = f"; {lost} left the recorder's ring unread" if lost else ""
    total = sum(max(map(len, by_rank.values())) for by_rank in groups.values())
    plural = "s" * (len(groups) != 1)
    return writer.passed(
        f"{total} collectives of {len(groups)} group{plural} agree over their ranks{unread}", observed=0, allowed=0
    )


def _uneven_counts(
    writer: Writer, group: Group, by_rank: Mapping[int, Mapping[int, Record]], calls: Mapping[int, RankCalls]
) -> Finding | None:
    """A rank has called more collectives than one that has come to its end ever will."""
    last = {rank: max(by_rank.get(rank, {}), default=0) for rank in group.ranks if rank in calls}
    done = [rank for rank in last if calls[rank].ended]
    fewest = min((last[rank] for rank in done), default=0)
    most = max(last.values(), default=0)
    if not done or fewest == most:
        return None
    behind = [rank for rank in done if last[rank] == fewest]
    ahead = [rank for rank in last if last[rank] == most]
    place = hangs.Waits(group, fewest + 1, by_rank[ahead[0]][fewest + 1]) if fewest + 1 in by_rank[ahead[0]] else None
    what = (
        f": its collective {fewest + 1} is {words(place.record.call)}{hangs.other_sites(place, ahead, calls)}"
        if place
        else ""
    )
    return writer.failed(
        f"{rank_list(ahead)} called {most} collectives of {name(group)}, {rank_list(behind)} {fewest}{what}",
        step=place.record.step if place else None,
        ranks=ahead if len(ahead) <= len(behind) else behind,
        observed=most,
        allowed=fewest,
    )


def _meanwhile(calls: Mapping[int, RankCalls]) -> str:
    """What the others waited for when a rank failed: it explains nothing, but says how far they were."""
    told = [found for found in calls.values() if found.pending()]
    if not told:
        return ""
    group, _, record = told[0].pending()[0]
    return f"; rank {told[0].rank} was in {words(record.call)} of {name(group)} then"


def _differ(writer: Writer, group: Group, by_rank: Mapping[int, Mapping[int, Record]]) -> Finding | None:
    """The first collective of a group that some of its ranks call in another way than others."""
    numbers = set().union(*by_rank.values())
    for number in sorted(numbers):
        here = {rank: records[number] for rank, records in by_rank.items() if number in records}
        kinds: dict[tuple[object, ...], list[int]] = {}
        for rank, record in here.items():
            kinds.setdefault(comparable(record.call), []).append(rank)
        if len(kinds) < 2:
            continue
        sides = sorted(kinds.values(), key=len, reverse=True)
        told = [f"{rank_list(side)} called {words(here[side[0]].call)}" for side in sides]
        odd = sides[-1] if len(sides[-1]) < len(sides[0]) else [rank for side in sides for rank in side]
        return writer.failed(
            f"collective {number} of {name(group)}: {'; '.join(told)}",
            step=min(record.step for record in here.values()),
            ranks=sorted(odd),
            observed=len(sides),
            allowed=1,
        )
    return None


def comparable(call: Call) -> tuple[object, ...]:
    """What has to be equal on all ranks of a group; who sends and who gets may have tensors of its own."""
    operation = call.operation
    if "all_to_all" in operation or "alltoall" in operation:
        return operation, _dtypes(call.inputs), _dtypes(call.outputs)  # every rank may send as much as it wants
    if operation == "gather":
        return operation, call.inputs
    if operation == "scatter":
        return operation, call.outputs
    if "gather" in operation and _uneven(call.outputs):
        return operation, call.outputs
    if "reduce_scatter" in operation and _uneven(call.inputs):
        return operation, call.inputs
    if operation == "broadcast" or operation == "reduce":
        return operation, call.inputs or call.outputs
    return operation, call.inputs, call.outputs


def _dtypes(tensors: Tensors) -> tuple[str, ...]:
    return tuple(sorted({dtype for dtype, _ in tensors}))


def _uneven(tensors: Tensors) -> bool:
    return len({shape for _, shape in tensors}) > 1
