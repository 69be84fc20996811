"""The trace of a job in production, which has no reference: do its ranks agree with one another?"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dist_checks.judging.checks.replicas import Split, first_split
from dist_checks.judging.logical import full, records
from dist_checks.judging.reading import Step, Trace, rank_list, read
from dist_checks.judging.settings_seen import degrees
from dist_checks.judging.tolerance import within
from dist_checks.trace import Kind

KINDS = (Kind.GRADIENT, Kind.WEIGHT, Kind.BUFFER)
ROUNDING = 1e-5
"""Relative: ranks may add up the same norm in another order."""

DATA, CUT = "data_groups", "cut_groups"
"""Groups of ranks, in the header: over which gradients are averaged; between which layers are cut."""

FIRST = 5
"""Steps of which it is written down what was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What is known of the job by now."""

    wrong: str
    """A sentence; empty where nothing is wrong."""
    steps: tuple[int, ...]
    """That all ranks have recorded."""
    compared: int
    """Digests that had to be those of another rank."""
    samples: int
    """Of the first steps, read by ranks whose gradients are averaged."""
    ended: bool
    """Every rank has come to its end."""
    ranks: int

    @property
    def sentence(self) -> str:
        if self.wrong:
            return f"FAIL {self.wrong}"
        seen = f"steps {self.steps[0]} to {self.steps[-1]}" if self.steps else "before the first step"
        alone = f"{self.ranks} ranks, of which no two hold the same part of a tensor"
        read = f"none of {self.samples} samples of the first steps read twice" if self.samples else ""
        if not self.compared:
            return f"PASS {alone}: {read}, {seen}" if read else f"INCONCLUSIVE {alone}"
        return f"PASS {self.ranks} ranks agree: {self.compared} digests, {f'{read}, ' if read else ''}{seen}"

    @property
    def judged(self) -> bool:
        """Something was there to be compared."""
        return bool(self.compared or self.samples)

    def to_json(self) -> dict[str, Any]:
        status = self.sentence.partition(" ")[0].lower()
        return {"status": status, "sentence": self.sentence, "steps": list(self.steps), "compared": self.compared}


def look(folder: Path) -> Look | None:
    """At the trace in ``folder``, which ranks may be writing; None where there is none yet. Raises TraceError."""
    found = sorted(folder.glob("rank-*.jsonl"))
    trace = read(folder, len(found))
    if not found or not trace.header:
        return None
    size = int(trace.header.get("world_size") or len(found))
    seen = {kind: records(trace, kind) for kind in KINDS}
    splits = [split for kind in KINDS if (split := first_split(trace, kind, seen[kind]))]
    wrong = [(split.step, KINDS.index(split.kind), _parted(trace, split)) for split in splits]
    wrong += [(step, -1, text) for step, text in (*_read_twice(trace), *_read_apart(trace))]
    wrong += [(step, len(KINDS), text) for step, text in _other(trace)]
    if not trace.missing and len(found) == size:
        grid = degrees(trace)
        for kind in KINDS:
            tiled = full(trace, seen[kind], grid)
            for row in (~tiled.complete).nonzero()[0].tolist():
                if int(tiled.step[row]) in trace.steps:  # others are being written
                    name = tiled.names[tiled.tensor[row]]
                    text = f"the parts of {kind.value} {name} do not make it up exactly once at step {tiled.step[row]}"
                    wrong.append((int(tiled.step[row]), len(KINDS) + 1, text))
                    break
    return Look(
        wrong=min(wrong)[2] if wrong else "",
        steps=trace.steps,
        compared=sum(int((~each.new_part).sum()) for each in seen.values()),
        samples=len(_groups(trace, DATA))
        and sum(len(event.get("ids") or ()) for _, events in _first_reads(trace) for event in events.values()),
        ended=len(found) == size and all(rank.ended for rank in trace.ranks),
        ranks=size,
    )


def _parted(trace: Trace, split: Split) -> str:
    when = "before the first step" if split.step < 0 else f"at step {split.step}"
    where = ", ".join(sorted({trace.hosts.get(rank, "") for rank in split.others} - {""}))
    good = [step for step in trace.steps if step < split.step]
    since = f"; equal at step {good[-1]}" if good else ""
    return (
        f"replicas have parted {when}: {rank_list(split.others)} ({where}) hold another {split.kind.value} of "
        f"{split.name} than rank {split.one}, {split.distance:.1e} apart; {split.tensors} of {split.of} differ{since}"
    ).replace(") hold", ") holds" if len(split.others) == 1 else ") hold")


def _first_reads(trace: Trace) -> Iterator[tuple[int, dict[int, Step]]]:
    """Of each of the first steps, what each rank has written down of the samples that it read."""
    told = {rank.rank: {**rank.steps, **rank.read} for rank in trace.ranks}
    for step in range(FIRST):
        events = {rank: steps[step] for rank, steps in told.items() if step in steps}
        if len(events) == len(told) and any(event.get("ids") for event in events.values()):
            yield step, events


def _groups(trace: Trace, kind: str) -> set[tuple[int, ...]]:
    return {tuple(group) for rank in trace.ranks for group in rank.header.get(kind) or ()}


def _read_twice(trace: Trace) -> Iterator[tuple[int, str]]:
    """(step, sentence) of ranks that read the same samples, though their gradients are averaged."""
    groups = _groups(trace, DATA)
    for step, events in _first_reads(trace):
        for group in sorted(groups):
            first: dict[int, int] = {}
            for rank in (rank for rank in group if rank in events):
                ids = set(events[rank].get("ids") or ())
                common = Counter(first[id] for id in ids if id in first)
                # Two samples of a stream may be the same text.
                wanted = len(ids) / 2 if events[rank].get("ids_from") == "inputs" else 1
                if common and (found := common.most_common(1)[0])[1] >= wanted:
                    other, count = found
                    yield (
                        step,
                        f"ranks {other} and {rank} both read {count} of {len(ids)} samples at step {step}, and their "
                        "gradients are averaged",
                    )
                    return
                first |= {id: rank for id in ids if id not in first}


def _read_apart(trace: Trace) -> Iterator[tuple[int, str]]:
    """(step, sentence) of ranks that hold parts of the same layers, and work on different samples
    (deepspeedai/DeepSpeed#99)."""
    for step, events in _first_reads(trace):
        for group in sorted(_groups(trace, CUT)):
            told = {rank: list(events[rank].get("ids") or ()) for rank in group if rank in events}
            one = next(iter(told), None)
            for rank, ids in told.items():
                if one is not None and ids and told[one] and ids != told[one]:
                    apart = len(set(ids) - set(told[one]))
                    yield (
                        step,
                        f"ranks {one} and {rank} hold parts of the same layers (tensor parallelism) and read different "
                        f"samples at step {step}: {apart} of {len(ids)} are others",
                    )
                    return


def _other(trace: Trace) -> Iterator[tuple[int, str]]:
    """(step, sentence) of norms on which ranks do not agree, and losses that are no numbers."""
    for step in trace.steps:
        norms = {rank.rank: rank.steps[step].get("norm_used") for rank in trace.ranks}
        told = {rank: float(norm) for rank, norm in norms.items() if norm is not None}
        first = next(iter(told), None)
        for rank, norm in told.items():
            one = told[first] if first is not None else norm
            if not (norm == one or within(abs(norm - one) / abs(one or 1.0), ROUNDING)):
                yield step, f"ranks {first} and {rank} clip by different norms at step {step}: {one} and {norm}"
                return
        for each in trace.ranks:
            loss = each.steps[step].get("loss_sum")
            if loss is not None and not math.isfinite(float(loss)):
                yield step, f"the loss of rank {each.rank} is {loss} at step {step}"
                return
