"""Did every rank read the samples that it should?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dist_checks.judging.own import WATCH, add
from dist_checks.judging.reading import Step, rank_list
from dist_checks.judging.verdict import Finding
from dist_checks.judging.view import RungView, Writer


def check(view: RungView) -> Iterator[Finding]:
    """Disjoint over data ranks, equal inside a tp or cp group, each id once an epoch, another order in each epoch, and
    the same ids at the same step as the reference."""
    writer = view.writer("samples")
    if not view.trace.steps:
        yield writer.unseen(f"no step was recorded by all ranks: {view.trace.cut}")
        return
    if not any(_ids(step) for rank in view.trace.ranks for step in rank.steps.values()):
        if view.own_loop:
            yield writer.skipped(f"no sample ids were seen: {add(WATCH)}")
        else:
            yield writer.unseen("the loop said no sample ids")
        return
    # A hash of what is read says nothing of epochs, and a stream may come to the same text again.
    told = not _by_content(view)
    found = [
        *_unequal_groups(view, writer),
        *_shared(view, writer),
        *(_same_order(view, writer) if told else ()),
        *_unlike_reference(view, writer),
        *(_repeated(view, writer) if told else ()),
    ]
    if found:
        # Overlap explains what is repeated or missing later, so the earliest is told, and of one step the first kind.
        yield min(found, key=lambda finding: finding.step or 0)
        return
    steps = view.trace.steps
    epochs = {int(_event(view, ranks[0], s).get("epoch", 0)) for ranks in view.data_ranks().values() for s in steps}
    total = sum(len(ids) for ids in (_of_step(view, step) for step in steps))
    yield writer.passed(
        f"{total} samples in {len(steps)} steps and {len(epochs)} epoch{'s' * (len(epochs) > 1)}: each read once by "
        f"one of {len(view.data_ranks())} data ranks",
        observed=0,
        allowed=0,
    )


def _by_content(view: RungView) -> bool:
    """Whether samples are known by a hash of what they are."""
    return any(step.get("ids_from") == "inputs" for rank in view.trace.ranks for step in rank.steps.values())


def _ids(step: Step) -> list[int]:
    return list(step.get("ids") or ())


def _event(view: RungView, rank: int, step: int) -> Step:
    return view.trace.by_rank[rank].steps.get(step, {})


def _of_step(view: RungView, step: int) -> list[int]:
    """The ids of one step, over all data ranks, each group with the same samples counted once."""
    return [id for ranks in view.data_ranks().values() for id in _ids(_event(view, ranks[0], step))]


def _unequal_groups(view: RungView, writer: Writer) -> Iterator[Finding]:
    """Ranks of a tp or cp group work on the same samples together (deepspeedai/DeepSpeed#99)."""
    for step in view.trace.steps:
        for ranks in view.data_ranks().values():
            first = _ids(_event(view, ranks[0], step))
            for rank in ranks[1:]:
                ids = _ids(_event(view, rank, step))
                if ids != first:
                    yield writer.failed(
                        f"ranks {ranks[0]} and {rank} work together ({view.along(ranks[0], rank)}) and read different "
                        f"samples: {_few(first)} and {_few(ids)}",
                        step=step,
                        ranks=(ranks[0], rank),
                        observed=len(set(first) ^ set(ids)),
                        allowed=0,
                    )
                    return


def _shared(view: RungView, writer: Writer) -> Iterator[Finding]:
    """Two data ranks with the same sample: its weight is doubled (NVlabs/LongLive#71, k2-fsa/icefall#1616). Where
    samples are known by what they are, two may be the same text, drawn twice: then one device reads it as often."""
    for step in view.trace.steps:
        if _by_content(view) and Counter(_of_step(view, step)) == _on_one_device(view, step):
            continue
        owner: dict[int, int] = {}
        clashes: list[tuple[int, int, int]] = []
        for ranks in view.data_ranks().values():
            for id in _ids(_event(view, ranks[0], step)):
                if id in owner:
                    clashes.append((owner[id], ranks[0], id))
                owner.setdefault(id, ranks[0])
        if clashes:
            one, two, _ = clashes[0]
            ids = sorted({id for a, b, id in clashes if (a, b) == (one, two)})
            guilty = _copies(view, step) or sorted({rank for a, b, _ in clashes for rank in (a, b)})
            where = f"ranks {one} and {two} both read" if one != two else f"rank {one} read twice"
            yield writer.failed(
                f"{where} {_few(ids)}; {len({id for *_, id in clashes})} of {len(owner)} samples of the step are read "
                f"more than once, by {rank_list(guilty)}",
                step=step,
                ranks=(one, two) if one != two else (one,),
                hosts=_host_of_copies(view, step) or view.only_host(guilty),
                observed=len({id for *_, id in clashes}),
                allowed=0,
            )
            return


def _on_one_device(view: RungView, step: int) -> Counter[int]:
    """What is to be read in that step, as often as it is."""
    if len(view.data_ranks()) == 1:
        return Counter(_of_step(view, step))
    yard = view.reference or view.truth
    event = yard.trace.ranks[0].steps.get(step) if yard is not None and yard.trace.ranks else None
    return Counter(_ids(event)) if event is not None else Counter()


def _copies(view: RungView, step: int) -> list[int]:
    """Ranks that read the very same list as another data rank: as those of one host do that think they are alone."""
    lists: dict[tuple[int, ...], list[int]] = {}
    for ranks in view.data_ranks().values():
        lists.setdefault(tuple(_ids(_event(view, ranks[0], step))), []).append(ranks[0])
    return sorted(rank for ranks in lists.values() if len(ranks) > 1 for rank in ranks)


def _host_of_copies(view: RungView, step: int) -> tuple[str, ...]:
    """The one host whose ranks all read the same list, while those of others do not (k2-fsa/icefall#1616)."""
    lists: dict[str, list[tuple[int, ...]]] = {}
    for ranks in view.data_ranks().values():
        lists.setdefault(view.trace.hosts.get(ranks[0], ""), []).append(tuple(_ids(_event(view, ranks[0], step))))
    alike = [host for host, read in lists.items() if len(read) > 1 and len(set(read)) == 1]
    return tuple(alike) if len(alike) == 1 and len(lists) > 1 else ()


def _unlike_reference(view: RungView, writer: Writer) -> Iterator[Finding]:
    yard = view.reference or view.truth
    if yard is None or not yard.trace.ranks:
        return
    for step in view.trace.steps:
        event = yard.trace.ranks[0].steps.get(step)
        if event is None:
            return
        mine, theirs = Counter(_of_step(view, step)), Counter(_ids(event))
        if mine != theirs:
            lost, extra = sorted((theirs - mine).elements()), sorted((mine - theirs).elements())
            parts = [f"{word} {_few(ids)}" for word, ids in (("without", lost), ("with", extra)) if ids]
            yield writer.failed(
                f"reads other samples than {yard.rung.id}: {' and '.join(parts)}{_advice(view, mine, theirs)}",
                step=step,
                observed=len(lost) + len(extra),
                allowed=0,
            )
            return


def _advice(view: RungView, mine: Counter[int], theirs: Counter[int]) -> str:
    """Where a script's batch is that of a rank, whatever their number."""
    if not view.own_loop or view.layout.data_size == 1:
        return ""
    if mine.total() == theirs.total():
        return (
            "; as many, but others: where one device shuffles by itself and several by a DistributedSampler, give "
            "one device a DistributedSampler(data, 1, 0) with the same seed"
        )
    if mine.total() < theirs.total():
        return ""
    return (
        f"; {mine.total()} instead of {theirs.total()}: a batch has to be the same in every layout, so divide it by "
        f"the {view.layout.data_size} data ranks"
    )


def _repeated(view: RungView, writer: Writer) -> Iterator[Finding]:
    seen: dict[int, dict[int, int]] = {}
    for step in view.trace.steps:
        for ranks in view.data_ranks().values():
            event = _event(view, ranks[0], step)
            epoch = seen.setdefault(int(event.get("epoch", 0)), {})
            again = sorted({id for id in _ids(event) if epoch.get(id, step) != step})
            if again:
                yield writer.failed(
                    f"rank {ranks[0]} reads {_few(again)}, which step {epoch[again[0]]} of the same epoch "
                    f"({event.get('epoch', 0)}) had read",
                    step=step,
                    ranks=(ranks[0],),
                    observed=len(again),
                    allowed=0,
                )
                return
            epoch.update(dict.fromkeys(_ids(event), step))


def _same_order(view: RungView, writer: Writer) -> Iterator[Finding]:
    """A sampler that was never told of the next epoch shuffles it as the last one (pytorch/pytorch#31771)."""
    if not view.train.get("shuffle", True):
        return
    rank = view.trace.ranks[0].rank
    orders: dict[int, tuple[int, list[int]]] = {}
    for step in view.trace.steps:
        event = _event(view, rank, step)
        _, ids = orders.setdefault(int(event.get("epoch", 0)), (step, []))
        ids.extend(_ids(event))
    for (epoch, (_, ids)), (later, (step, again)) in zip(orders.items(), list(orders.items())[1:], strict=False):
        length = min(len(ids), len(again))
        if length > 1 and ids[:length] == again[:length]:
            yield writer.failed(
                f"rank {rank} reads epoch {later} in the order of epoch {epoch}: {_few(again)}",
                step=step,
                ranks=(rank,),
                observed=length,
                allowed=1,
            )
            return


def _few(ids: list[int], most: int = 5) -> str:
    """``sample 7``, ``samples 7, 12 and 19``."""
    if len(ids) == 1:
        return f"sample {ids[0]}"
    if not ids:
        return "no sample"
    more = f" and {len(ids) - most} more" if len(ids) > most else ""
    return f"samples {', '.join(map(str, ids[:most]))}{more}"
