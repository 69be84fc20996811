"""What a check gets to see: one rung, its trace, and what it is compared with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from dist_checks.axes import Axis, Layout
from dist_checks.judging.comparison import Comparison, compare
from dist_checks.judging.late import Pair
from dist_checks.judging.reading import Trace
from dist_checks.judging.routing import Flip, Share, excuse, excused_by_rounding, flips, routes, shares
from dist_checks.judging.seen import Seen
from dist_checks.judging.start import other_start
from dist_checks.judging.tolerance import DTYPE, EPS, STEPS_IN, Rule, Tolerance, narrowest, of_single
from dist_checks.judging.triage import SYMPTOMS
from dist_checks.judging.verdict import Blamed, Explanation, Finding, Status
from dist_checks.rung import Phase, Rung
from dist_checks.trace import BEFORE, Kind

SAME_DRAWS = frozenset({Axis.CKPT_ACT, Axis.FUSED, Axis.PRECISION, Axis.CUSTOM, Axis.RESUME})
"""Axes under which one device draws the random numbers of the reference, in its order. A recipe may name more
(``Recipe.masks_alike``)."""

CUTS = (Axis.ACCUM, Axis.PP)
"""Axes that cut a rank's batch into micro-batches."""

DATA = (Axis.DP_REPLICATE, Axis.DP_SHARD, Axis.EP)
"""Axes that give samples to other ranks."""


@dataclass(frozen=True)
class RungView:
    """Everything that a check may know. Nothing in it is ever changed."""

    own: Seen
    exit: Mapping[str, Any] | None
    """What the launcher saw, as exit.json has it; None where there is no such file."""
    reference: Seen | None = None
    """The single of the same numerics; None for a single, and where it left no trace."""
    truth: Seen | None = None
    """The single in float64; None for that one itself, and where it left no trace."""
    repeated: Seen | None = None
    """Of a twin: the rung that it repeats."""
    others_repeat: bool | None = None
    """Of a cold twin: whether a warm rerun gave the same bits; None where there was none."""
    pairs: Sequence[Pair] = ()
    """The late curves of this setting beside those of what it is compared with, of each seed."""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)
    custom: Mapping[str, Any] = field(default_factory=dict)
    """What the custom axis of the rung sets: ``{options, train, env}``."""
    phase: Phase | None = None
    """Which part of the rung this is, where it resumes: it is judged phase by phase."""
    before: RungView | None = None
    """The phase before this one."""
    single: Mapping[str, Any] = field(default_factory=dict)
    """What the matrix says of rung zero."""
    expect: Mapping[str, Any] = field(default_factory=dict)
    """What was written down before the launch."""
    command: str = "dist-checks run"
    """What ran this ladder: findings say how to run a part of it."""

    @property
    def rung(self) -> Rung:
        return self.own.rung

    @property
    def trace(self) -> Trace:
        return self.own.trace

    @property
    def start(self) -> int:
        """The first step."""
        return self.phase.start if self.phase else 0

    @property
    def stop(self) -> int:
        """The first step that is none of these."""
        return self.phase.stop if self.phase else self.rung.steps

    @cached_property
    def layout(self) -> Layout:
        return Layout(self.rung.setting)

    @property
    def is_truth(self) -> bool:
        """The float64 single: there is nothing that it could be compared with."""
        return self.rung.reference is None and self.rung.truth is None

    @property
    def own_loop(self) -> bool:
        """A script of the user's own: what it did not say or show is not there."""
        return bool(self.recipe.get("command"))

    @property
    def log_only(self) -> bool:
        """A script that was seen by what it printed and saved, and by nothing else."""
        return str((self.recipe.get("command") or {}).get("see")) == "log"

    @cached_property
    def tolerance(self) -> Tolerance:
        # A script that computes in float32 only has no better truth than its own single.
        itself = self.rung.reference is not None and self.rung.reference == self.rung.truth
        if (self.rung.exact or itself) and not self.is_truth:
            return Tolerance(rule=Rule.REFERENCE, eps=self.narrowest, step_eps=self._step_eps)
        if self.rung.reference is not None:
            return Tolerance(rule=Rule.TRUTH, eps=EPS[DTYPE[self.rung.precision]])
        return of_single(self.rung.precision)

    @property
    def _step_eps(self) -> float:
        rows = [row for seen in self._sides for rank in seen.trace.ranks for row in rank.header.get("optimizer") or ()]
        return max((EPS[STEPS_IN[row.get("class")]] for row in rows if row.get("class") in STEPS_IN), default=0.0)

    @cached_property
    def narrowest(self) -> float:
        """Eps of what the model computes with in float64: singles record it, but for one that is compiled."""
        singles = [seen for seen in (self.own, self.reference, self.truth) if seen is not None and seen.trace.ranks]
        narrowed = [one for seen in singles for one in seen.trace.ranks[0].evidence.get("narrowed") or ()]
        return narrowest(self.rung.precision, {"narrowed": narrowed})

    @property
    def yard(self) -> Seen | None:
        """What the numbers of this rung are compared with; of a single in float64 with other kernels, the truth."""
        exact = self.tolerance.rule is Rule.REFERENCE and self.rung.reference is not None
        return self.reference if exact else self.truth

    @property
    def no_yard(self) -> str:
        """Why there is nothing to compare with; empty where there is."""
        if self.is_truth:
            return f"{'the float64 single' if self.rung.exact else self.rung.id} is what others are compared with"
        if self.yard is None or not self.yard.trace.ranks:
            exact = self.tolerance.rule is Rule.REFERENCE
            wanted = (self.rung.reference if exact else None) or self.rung.truth
            return f"{wanted}, which it is compared with, left no trace"
        if self.tolerance.rule is Rule.TRUTH and (self.reference is None or not self.reference.trace.ranks):
            return f"{self.rung.reference}, which says how far rounding goes, left no trace"
        return ""

    @cached_property
    def comparable_steps(self) -> tuple[int, ...]:
        """BEFORE and the steps up to the first that a loss scaler skipped in one rung and not in another, or that is
        too late for a limit to mean anything. Where a rung goes on, from the last step before."""
        sides = [side for side in self._sides if side.trace.ranks]
        last = max((step for side in sides for step in side.trace.steps), default=-1)
        if self.before is not None and self.before.comparable_steps[-1:] != (self.start - 1,):
            return ()
        steps = [self.start + BEFORE]
        for step in range(self.start, min(last + 2, self.stop)):  # a crash may leave digests of a step that never ended
            if len({side.skipped(step) for side in sides}) > 1 or not self.tolerance.judges(step):
                break
            steps.append(step)
        return tuple(steps)

    def compare(self, kind: Kind, factor: float = 1.0) -> Comparison:
        """Tensors of ``kind`` with those of the yard, by the rule of this rung. Call only where there is a yard."""
        assert self.yard is not None, self.no_yard
        gradients = kind in (Kind.GRADIENT, Kind.APPLIED, Kind.OUTPUT_GRADIENT)
        # Of a step that was skipped for an overflow, the gradients are not finite, and rightly so.
        steps = [step for step in self.comparable_steps if not (gradients and self.own.skipped(step))]
        single = self.reference.full(kind) if self.reference is not None else None
        found = compare(
            self.own.full(kind), self.yard.full(kind), self.tolerance, single=single, steps=steps, factor=factor
        )
        return self.with_excuse(kind, found)

    def with_excuse(self, kind: Kind, found: Comparison) -> Comparison:
        """Where tokens went to other experts than on one device with the same numbers, as rounding has them do."""
        return replace(found, excuse=excuse(kind, found, self.flipped, self._shares)) if self.flipped else found

    @cached_property
    def flipped(self) -> list[Flip]:
        """What rounding alone has routed in another way than the single of the same numbers; of that one, than the
        truth. Nothing in float64, where that is a fault."""
        other = self.reference if self.reference is not None else self.truth
        if other is None or not excused_by_rounding(self.tolerance.rule):
            return []
        return list(flips(routes(self.own), routes(other)))

    @cached_property
    def _shares(self) -> dict[str, Share]:
        return shares(self.truth)

    @cached_property
    def gradients(self) -> Comparison:
        return self.compare(Kind.GRADIENT)

    @cached_property
    def not_comparable(self) -> str:
        """Why comparing with the yard says nothing; empty where it does."""
        if self.before is not None and self.before.not_comparable:
            return self.before.not_comparable
        if self.dropout and (redrawn := self._redrawn()):
            if self.recipe.get("dropout"):
                why = "the recipe has dropout, which masks other elements"
            else:
                why = "the model draws random numbers when it is called, as dropout does, and they are others"
            return f"{why} under {' and '.join(redrawn)}: switch it off to compare"
        if self.batchwise and (mixed := self._mixed()):
            name = next(iter(self.batchwise))
            return (
                f"{name} takes its statistics over the samples of a forward pass, which are others under "
                f"{' and '.join(mixed)}: compare with it in eval(), or with a norm of single samples"
            )
        return other_start(self.own, self.yard) if self.yard is not None else ""

    def _redrawn(self) -> list[str]:
        """Axes of this rung under which random numbers are drawn for other elements."""
        alike = {*SAME_DRAWS, *(self.recipe.get("masks_alike") or ())}
        redrawn = [axis.value for axis in self.rung.setting if axis not in alike]
        if self.yard is self.reference and Axis.COMPILE in self.rung.setting:
            redrawn.remove(Axis.COMPILE.value)  # both draw as compiled code does
        return redrawn

    @property
    def dropout(self) -> bool:
        return bool(self.recipe.get("dropout")) or any(
            rank.evidence.get("draws") for seen in self._sides for rank in seen.trace.ranks
        )

    @property
    def batchwise(self) -> Mapping[str, bool]:
        """Modules that take statistics over the samples that they are called with, of all data ranks or not."""
        found = (rank.evidence.get("batchwise") or {} for seen in self._sides for rank in seen.trace.ranks)
        return next((each for each in found if each), {})

    def _mixed(self) -> list[str]:
        """Axes of this rung under which such a module is called with other samples."""
        synced = all(self.batchwise.values())
        return [axis.value for axis in self.rung.setting if axis in (CUTS if synced else (*CUTS, *DATA))]

    @property
    def _sides(self) -> list[Seen]:
        return [side for side in (self.own, self.reference, self.truth) if side is not None]

    def along(self, one: int, two: int) -> str:
        """The axes on which two ranks differ: ``dp_replicate``, ``dp_shard x tp``."""
        here, there = self.layout.coordinates(one), self.layout.coordinates(two)
        return " x ".join(axis.value for axis in here if here[axis] != there[axis])

    def data_ranks(self) -> dict[int, tuple[int, ...]]:
        """For each part of a batch, the ranks that read it, among those that left a trace."""
        out: dict[int, list[int]] = {}
        for rank in self.trace.ranks:
            if rank.header and rank.rank < self.layout.world_size:
                out.setdefault(self.layout.data_rank(rank.rank), []).append(rank.rank)
        return {part: tuple(ranks) for part, ranks in sorted(out.items())}

    def only_host(self, ranks: Iterable[int]) -> tuple[str, ...]:
        """The host of ``ranks``, where they are all the ranks of one host and there are others."""
        hosts = self.trace.hosts
        ranks = set(ranks)
        names = {hosts.get(rank, "") for rank in ranks}
        if len(names) != 1 or len(set(hosts.values())) < 2:
            return ()
        name = names.pop()
        return (name,) if name and {rank for rank, host in hosts.items() if host == name} == ranks else ()

    def observed(self, what: str) -> list[Mapping[str, Any]]:
        """What rung zero has written down of the recipe, in order."""
        ranks = self.trace.ranks
        return [event for event in ranks[0].observed if event.get("what") == what] if ranks else []

    def writer(self, check: str) -> Writer:
        return Writer(self, check)


@dataclass(frozen=True)
class Writer:
    """Writes the findings of one check about one rung."""

    view: RungView
    check: str

    def _finding(
        self,
        status: Status,
        message: str,
        *,
        step: int | None = None,
        tensor: str | None = None,
        ranks: Sequence[int] = (),
        hosts: Sequence[str] = (),
        observed: float | None = None,
        allowed: float | None = None,
        scale: float | None = None,
        cosine: float | None = None,
        truth_ratio: float | None = None,
        explanation: Explanation | None = None,
        blames: Blamed | None = None,
        symptom: str = "",
        suspects: Sequence[str] = (),
    ) -> Finding:
        known = self.view.trace.hosts
        rung = self.view.rung
        try_next = ""
        if status > Status.SKIP:
            # One step more than what is to be seen again; everything where no step is named.
            # A rung that resumes does so elsewhere in a run of fewer steps, if at all.
            steps = rung.steps if step is None or rung.restarts else min(max(step, 0) + 1, rung.steps)
            try_next = f"{self.view.command} -k {rung.id}" + ("" if rung.is_zero else f" --steps {steps}")
        known_symptom = SYMPTOMS.get(symptom) if status is Status.FAIL else None
        return Finding(
            check=self.check,
            rung=rung.id,
            status=status,
            message=message,
            step=step,
            tensor=tensor,
            ranks=tuple(ranks),
            hosts=tuple(hosts) or tuple(sorted({known[rank] for rank in ranks if rank in known})),
            observed=_plain(observed),
            allowed=_plain(allowed),
            scale=_plain(scale),
            cosine=_plain(cosine),
            truth_ratio=_plain(truth_ratio),
            explanation=explanation,
            blames=blames,
            try_next=try_next,
            symptom=symptom if known_symptom else "",
            suspects=known_symptom.ordered(suspects) if known_symptom else (),
            change=known_symptom.change if known_symptom else "",
        )

    def passed(self, message: str, **fields: Any) -> Finding:
        return self._finding(Status.PASS, message, **fields)

    def skipped(self, message: str, **fields: Any) -> Finding:
        return self._finding(Status.SKIP, message, **fields)

    def unseen(self, message: str, **fields: Any) -> Finding:
        """Something could not be observed."""
        return self._finding(Status.INCONCLUSIVE, message, **fields)

    def failed(self, message: str, **fields: Any) -> Finding:
        return self._finding(Status.FAIL, message, **fields)

    def incomparable(self) -> Finding | None:
        """The finding of a check that compares, where there is nothing to compare with; None where there is."""
        if self.view.is_truth:
            return self.skipped(self.view.no_yard)
        if self.view.no_yard:
            return self.unseen(self.view.no_yard)
        if self.view.not_comparable:
            return self.unseen(f"not comparable: {self.view.not_comparable}", blames=Blamed.NOT_COMPARABLE)
        if self.view.start and not self.view.tolerance.judges(self.view.start):
            return self.skipped(
                f"the steps from {self.view.start} on are too late to be compared one by one with these numbers"
            )
        return None


def _plain(value: float | np.floating[Any] | None) -> float | None:
    return None if value is None else float(value)
