"""Do ranks that hold the same part of a tensor hold the same bits?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dist_checks.judging.logical import Records
from dist_checks.judging.reading import Trace
from dist_checks.judging.routing import routes
from dist_checks.judging.signatures import pieces
from dist_checks.judging.tolerance import within
from dist_checks.judging.verdict import Explanation, Finding
from dist_checks.judging.view import RungView, Writer
from dist_checks.trace import NO_ITEM, Kind

# In the order in which they come about within a step.
KINDS = (Kind.OUTPUT, Kind.GRADIENT, Kind.APPLIED, Kind.STATE, Kind.WEIGHT, Kind.BUFFER)

SCALARS = ("loss_scale", "learning_rates", "norm_used")

NORM_ROUNDING = 1e-5
"""Relative: ranks may add up the same norm in another order, in float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Replicas of one tensor that have parted."""

    step: int
    kind: Kind
    name: str
    item: int
    """A sample, for block outputs."""
    one: int
    """The lowest rank of the majority."""
    other: int
    """The lowest rank that differs from it."""
    others: tuple[int, ...]
    """All ranks that differ."""
    distance: float
    """Relative, of the two."""
    tensors: int
    """Tensors of this kind that have parted at this step."""
    of: int


def check(view: RungView) -> Iterator[Finding]:
    """Block outputs, gradients, optimizer state, weights, buffers, and the numbers that decide about a step."""
    writer = view.writer("replicas")
    if view.layout.world_size == 1:
        yield writer.skipped("a single rank has no replicas")
        return
    found = [(kind, view.own.records(kind)) for kind in KINDS]
    compared = sum(int((~records.new_part).sum()) for _, records in found)
    splits = [split for kind, records in found if (split := first_split(view.trace, kind, records))]
    scalar = _scalars(view, writer)
    first = min(splits, key=lambda split: (split.step, KINDS.index(split.kind)), default=None)
    if first is not None and (scalar is None or scalar.step is None or first.step <= scalar.step):
        yield _failed(view, writer, first)
    elif scalar is not None:
        yield scalar
    elif not compared:
        yield _nothing_replicated(view, writer)
    else:
        # Also under tp + dp_shard, say, norm weights and their state are shared by some ranks.
        yield writer.passed(
            f"{compared} digests are those of the rank that holds the same, bit for bit", observed=0, allowed=0
        )


def _nothing_replicated(view: RungView, writer: Writer) -> Finding:
    if view.trace.cut:
        return writer.unseen(f"no two ranks recorded the same part of a tensor: {view.trace.cut}")
    return writer.skipped("no two ranks hold the same part of a tensor: everything is sharded")


def first_split(trace: Trace, kind: Kind, found: Records) -> Split | None:
    """Of the earliest step with a split, the first tensor in forward order. What a BatchNorm has counted of the samples
    of its rank is that rank's own: DDP hands round rank 0's before each forward pass, and these are saved."""
    if not len(found):
        return None
    first = np.maximum.accumulate(np.where(found.new_part, np.arange(len(found)), 0))
    parted = found.fingerprint != found.fingerprint[first]
    if kind is Kind.BUFFER and (alone := own_statistics(trace)):
        parted &= ~np.array([name.startswith(alone) for name in found.names])[found.tensor]
    bad = np.flatnonzero(parted)
    if not bad.size:
        return None
    step = int(found.step[bad].min())
    bad = bad[found.step[bad] == step]
    start = int(first[bad[0]])
    later = np.flatnonzero(found.new_part[start + 1 :])
    stop = start + 1 + int(later[0]) if later.size else len(found)
    prints = found.fingerprint[start:stop]
    ranks = found.rank[start:stop]
    counts = Counter(prints.tolist())
    # Of equally many, those of the lowest rank; dicts and Counters keep the order of ranks.
    common = max(counts, key=lambda value: counts[value])
    one, other = int(np.flatnonzero(prints == common)[0]), int(np.flatnonzero(prints != common)[0])
    return Split(
        step=step,
        kind=kind,
        name=found.names[found.tensor[start]],
        item=int(found.item[start]),
        one=int(ranks[one]),
        other=int(ranks[other]),
        others=tuple(ranks[prints != common].tolist()),
        distance=_distance(trace, found, start + one, start + other),
        tensors=len(np.unique(found.tensor[bad])),
        of=len(np.unique(found.tensor[found.step == step])),
    )


def own_statistics(trace: Trace) -> tuple[str, ...]:
    """What the names of such buffers begin with."""
    found = (rank.evidence.get("batchwise") or {} for rank in trace.ranks)
    return tuple(dict.fromkeys(f"{name}." for each in found for name, synced in each.items() if not synced))


def _distance(trace: Trace, found: Records, one: int, other: int) -> float:
    a, b = (
        trace.by_rank[int(found.rank[at])].digests.take(found.record[at : at + 1])["sketch"][0] for at in (one, other)
    )
    with np.errstate(invalid="ignore", over="ignore"):
        norm = float(np.linalg.norm(a))
        distance = float(np.linalg.norm(a - b))
    return distance / norm if norm else distance


def _failed(view: RungView, writer: Writer, split: Split) -> Finding:
    noun = split.kind.value
    sample = f" for sample {split.item}" if split.item != NO_ITEM else ""
    when = "before the first step" if split.step < 0 else f"at step {split.step}"
    message = (
        f"ranks {split.one} and {split.other} ({view.along(split.one, split.other)}) hold different {noun}s of "
        f"{split.name}{_other_names(view, split)}{sample} {when}: {split.distance:.1e} apart, 0 allowed; "
        f"{split.tensors} of {split.of} {noun}s differ"
    )
    message += _routed(view, split)
    if len(split.others) > 1:
        message += f", on {len(split.others)} ranks"
    before = [step for step in sorted(set(view.own.records(split.kind).step.tolist())) if step < split.step]
    shown = [step for step in before if step >= 0]
    if shown:
        message += f"; equal at steps {shown[0]} to {shown[-1]}" if len(shown) > 1 else f"; equal at step {shown[0]}"
    elif before:
        message += "; equal before the first step"
    explanation = _explanation(view, split)
    if explanation is not None:
        message += f". {explanation.sentence[0].upper()}{explanation.sentence[1:]}"
    return writer.failed(
        message,
        step=split.step,
        tensor=split.name,
        ranks=(split.one, split.other),
        hosts=view.only_host(split.others),
        observed=split.distance,
        allowed=0.0,
        explanation=explanation,
    )


def _routed(view: RungView, split: Split) -> str:
    """Whether the first block whose output differs holds a router that chose differently on ranks."""
    apart = routes(view.own).apart if split.kind is Kind.OUTPUT else None
    if apart is None or apart[0] != split.step or not apart[1].startswith(f"{split.name}."):
        return ""
    _, router, sample, one, other = apart
    return f"; {router} sends tokens of sample {sample} to different experts on ranks {one} and {other}"


def _other_names(view: RungView, split: Split) -> str:
    """A tied parameter has another name on the stage that holds its copy."""
    name, slash, state = split.name.partition("/")
    told = []
    for rank in (split.one, split.other):
        own = next((own for own, first in view.trace.by_rank[rank].copies.items() if first == name), None)
        if own is not None:
            told.append(f"{own}{slash}{state} on rank {rank}")
    return f" ({', '.join(told)})" if told else ""


def _explanation(view: RungView, split: Split) -> Explanation | None:
    """Whether the replicas are pieces that were never added up; only the reference can tell."""
    if split.kind is not Kind.GRADIENT or view.no_yard or view.not_comparable:
        return None
    found = view.gradients
    rows = np.flatnonzero((found.step == split.step) & ~found.ok)
    differ = {key.name for key in (found.keys[row] for row in rows.tolist())}
    if split.name not in differ:
        return None
    alone = np.array([row for row in rows.tolist() if found.keys[row].name == split.name], np.int64)
    return pieces(view, split.kind, found, rows) or pieces(view, split.kind, found, alone)


def _scalars(view: RungView, writer: Writer) -> Finding | None:
    """The first number that decides about a step and is not the same on all ranks."""
    # Where there are gradients, grad_norm knows which rank's norm is wrong.
    scalars = [name for name in SCALARS if name != "norm_used" or not len(view.own.full(Kind.GRADIENT))]
    for step in view.trace.steps:
        for name in scalars:
            values = {rank.rank: rank.steps[step].get(name) for rank in view.trace.ranks}
            if name == "learning_rates":
                # A stage of a pipeline without norms has no group for them.
                values = {rank: list(dict.fromkeys(rates or ())) for rank, rates in values.items()}
            one = view.trace.ranks[0].rank
            other = next((rank for rank, value in values.items() if not _same(name, values[one], value)), None)
            if other is not None:
                return writer.failed(
                    f"ranks {one} and {other} ({view.along(one, other)}) have different {name.replace('_', ' ')} at "
                    f"step {step}: {values[one]} and {values[other]}",
                    step=step,
                    ranks=(one, other),
                    observed=_gap(values[one], values[other]),
                    allowed=NORM_ROUNDING if name == "norm_used" else 0.0,
                )
    return None


def _same(name: str, one: object, other: object) -> bool:
    if one == other or (one != one and other != other):
        return True
    return name == "norm_used" and within(_gap(one, other), NORM_ROUNDING)


def _gap(one: object, other: object) -> float:
    if isinstance(one, int | float) and isinstance(other, int | float):
        return abs(one - other) / abs(one) if one else abs(other)
    return float("inf")
