"""Did each weight take the step that its gradient asks for?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dist_checks.judging.comparison import Comparison, compare
from dist_checks.judging.differences import findings
from dist_checks.judging.logical import Full, Key
from dist_checks.judging.lost_updates import lost, vanishes
from dist_checks.judging.moves import moves
from dist_checks.judging.reading import RankTrace
from dist_checks.judging.tolerance import MILDEST_FAULT, Rule, eps_of
from dist_checks.judging.verdict import Blamed, Finding, Status
from dist_checks.judging.view import RungView, Writer
from dist_checks.trace import BEFORE, NO_ITEM, Kind

NEAR_ZERO = 8.0
"""Adam's first step is lr x sign(gradient). Where gradients may be off by a share r of their size, about 8 r of them
(they are peaked at zero) may change sign, each by 2 lr: 2 sqrt(8 r) of the update."""

FEW = 4.0
"""In narrow numbers, so many elements of a small tensor may happen to flip."""


def check(view: RungView) -> Iterator[Finding]:
    """Weights move at all (an optimizer that was made before the model was wrapped moves none: huggingface/
    accelerate#3256); SGD's steps are those of its formula; any other optimizer's are those of the reference."""
    writer = view.writer("updates")
    if view.log_only:
        yield from _saved(view, writer)
        return
    mine = moves(view.own)
    if not len(mine):
        yield writer.unseen(
            f"no weights were recorded before and after a step: {view.trace.cut or 'nothing to compare'}"
        )
        return
    still = _still(view, writer, mine) or lost(view, writer, mine)
    formula = _formula(view, writer, mine)
    told = [finding for finding in (still, formula) if finding is not None]
    if refused := writer.incomparable():
        # What a rung can tell of itself it tells, whatever it could have been compared with.
        if not told or refused.status is Status.INCONCLUSIVE:
            told.append(refused)
    else:
        told += findings(writer, Kind.WEIGHT, _compared(view, mine), explained=False, noun="update")
    failing = [finding for finding in told if finding.status is Status.FAIL]
    yield from sorted(failing, key=lambda finding: finding.step or 0)[:1] or told


def _saved(view: RungView, writer: Writer) -> Iterator[Finding]:
    """Of a script that is seen from the outside: the weights that it has saved, against those of the single."""
    weights = view.own.full(Kind.WEIGHT)
    if not len(weights):
        said = [row.get("reason") for rank in view.trace.ranks for row in rank.evidence.get("unrecorded") or ()]
        yield writer.skipped(f"no weights were saved: {said[0] if said else 'name them by command.checkpoint'}")
        return
    if view.is_truth:
        yield writer.skipped(view.no_yard)
        return
    step = int(weights.step.max())
    theirs = view.yard.full(Kind.WEIGHT) if view.yard is not None else weights
    if view.yard is None or not len(theirs):
        yield writer.unseen(f"{view.rung.reference or view.rung.truth} saved no weights")
    elif not view.tolerance.judges(step):
        yield writer.skipped(f"after {step + 1} steps rounding has grown too much to tell: run fewer")
    else:
        single = view.reference.full(Kind.WEIGHT) if view.reference is not None else None
        found = compare(weights, theirs, view.tolerance, single=single, steps=None)
        yield from findings(writer, Kind.WEIGHT, found, explained=False, noun="saved weight")


def _compared(view: RungView, mine: Full) -> Comparison:
    assert view.yard is not None
    single = moves(view.reference) if view.reference is not None else None
    steps = [step for step in view.comparable_steps if step >= 0 and not view.own.skipped(step)]
    found = view.with_excuse(Kind.WEIGHT, compare(mine, moves(view.yard), view.tolerance, single=single, steps=steps))
    return replace(found, allowed=found.allowed + _from_gradients(view, mine, found) + _from_storing(view, found))


def _from_storing(view: RungView, found: Comparison) -> Any:
    """An update is the difference of two stored weights, each rounded to its dtype by up to half a unit in the last
    place, once for weight decay and once for the step. With SGD's small steps that is a visible share of an update."""
    weights = view.own.full(Kind.WEIGHT)
    rows = np.array([weights.rows[key] for key in found.keys], np.int64)
    eps = np.array([eps_of(weights.dtypes[tensor]) for tensor in weights.tensor[rows].tolist()])
    return eps * weights.norm[rows]


def _from_gradients(view: RungView, mine: Full, found: Comparison) -> Any:
    """What a gradient that is within its limits can do to an update; nothing where it was not recorded."""
    gradients = view.gradients
    limits = dict(zip(gradients.keys, gradients.allowed_relative.tolist(), strict=True))
    limit = np.array([limits.get(key, 0.0) for key in found.keys])
    linear = {name for group in _groups(view) if group.is_sgd for name in group.names}
    is_linear = np.array([key.name in linear for key in found.keys], bool)
    truth = view.tolerance.rule is Rule.TRUTH
    # Momentum of 0.9 adds up ten gradients. Under the truth rule the spread of SGD's steps says so by itself; that of
    # Adam's does not: of 128 elements, one that flips in one rung and not in another makes 0.18.
    few = 0.0 if view.tolerance.rule is Rule.REFERENCE else FEW / np.maximum(mine.elements[found.rows], 1)
    share = np.where(is_linear, 0.0 if truth else 10 * limit, 2 * np.sqrt(NEAR_ZERO * limit + few))
    return share * np.maximum(found.norm, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """A parameter group of the optimizer of one rank; of the stages of a pipeline each has its own."""

    fields: Mapping[str, Any]
    names: tuple[str, ...]
    """Of its parameters that no lower rank has."""
    rank: RankTrace
    index: int

    @property
    def is_sgd(self) -> bool:
        return self.fields.get("class") == "SGD"

    def rate(self, step: int) -> float | None:
        rates = self.rank.steps.get(step, {}).get("learning_rates") or ()
        return float(rates[self.index]) if self.index < len(rates) else None


def _groups(view: RungView) -> list[_Group]:
    out, seen = [], set[str]()
    for rank in view.trace.ranks:
        for index, fields in enumerate(rank.header.get("optimizer") or ()):
            names = tuple(rank.copies.get(name, name) for name in fields.get("parameters") or ())
            new = tuple(name for name in names if name not in seen)
            seen.update(new)
            if new:
                out.append(_Group(fields=fields, names=new, rank=rank, index=index))
    return out


def _still(view: RungView, writer: Writer, mine: Full) -> Finding | None:
    """Weights that have a gradient and stay where they were, bit for bit, in the first step in which there are any."""
    steps = [s for s in mine.steps if not view.own.skipped(s) and max(_rates(view, s), default=0.0) > 0]
    theirs = moves(view.yard) if view.yard is not None else None
    for step in steps:
        if names := _still_at(view, mine, theirs, step):
            covered = {name for group in _groups(view) for name in group.names}
            uncovered = [name for name in names if name not in covered]
            why = f"; {len(uncovered)} of them are in no group of the optimizer" if uncovered else ""
            why += f"; frozen since then: they moved at step {step - 1}" if step != steps[0] else ""
            return writer.failed(
                f"{len(names)} of {len(mine.at(step))} weights have a gradient and do not move at step {step}, the "
                f"first is {names[0]}{why}",
                step=step,
                tensor=names[0],
                observed=0.0,
                blames=Blamed.RECIPE if view.is_truth else None,
            )
    return None


def _still_at(view: RungView, mine: Full, theirs: Full | None, step: int) -> list[str]:
    gradients = view.own.full(Kind.GRADIENT)
    least = view.tolerance.share(np.array([step]))[0] * float(np.sqrt(gradients.sum_squares[gradients.at(step)].sum()))
    still = []
    for row in mine.at(step).tolist():
        if not mine.complete[row] or np.any(mine.sketch[row]) or mine.fingerprint[row]:
            continue
        key = mine.key(row)
        gradient = gradients.rows.get(key)
        moved = True
        if theirs is not None and (other := theirs.rows.get(key)) is not None:
            # In narrow numbers a small step may vanish in rounding, in the reference as well.
            moved = bool(np.any(theirs.sketch[other])) and not vanishes(view, key, float(theirs.norm[other]))
        if gradient is not None and gradients.norm[gradient] > least and moved:
            still.append(key.name)
    return still


def _rates(view: RungView, step: int) -> list[float]:
    return [float(rate) for rate in view.trace.ranks[0].steps.get(step, {}).get("learning_rates") or ()]


def _formula(view: RungView, writer: Writer, mine: Full) -> Finding | None:
    """SGD is linear, so its steps can be recomputed in sketches: w -= lr (m + wd w), with momentum as torch has it."""
    applied, weights = view.own.full(Kind.APPLIED), view.own.full(Kind.WEIGHT)
    groups = _groups(view)
    if not len(applied) or not any(group.is_sgd for group in groups):
        return None
    worst, count = 0.0, 0
    momenta = _loaded_momenta(view)
    for step in range(view.start, mine.steps[-1] + 1):
        if view.own.skipped(step):
            continue
        if step not in mine.steps:
            break  # the momentum of what was not recorded is not known
        for group in groups:
            rate = group.rate(step)
            if not group.is_sgd or rate is None:
                continue
            for name in group.names:
                key = Key(name, step, NO_ITEM)
                before = weights.rows.get(Key(name, step - 1 if step else BEFORE, NO_ITEM))
                row, gradient = mine.rows.get(key), applied.rows.get(key)
                if row is None or gradient is None or before is None:
                    continue
                if not (mine.complete[row] and applied.complete[gradient]):
                    continue
                step_taken = (
                    applied.sketch[gradient] + float(group.fields.get("weight_decay", 0)) * weights.sketch[before]
                )
                step_taken = _with_momentum(group.fields, momenta, name, step_taken)
                wanted = -rate * (-step_taken if group.fields.get("maximize") else step_taken)
                left = float(np.linalg.norm(mine.sketch[row] - wanted))
                eps = eps_of(weights.dtypes[weights.tensor[before]])
                size = float(np.linalg.norm(wanted))
                limit = np.sqrt(eps * MILDEST_FAULT) * size + 4 * eps * float(weights.norm[before])
                count += 1
                if not left <= limit:
                    dot = float(mine.sketch[row] @ wanted)
                    return writer.failed(
                        f"{name} takes another step than SGD's formula gives for its gradient, at step {step}: "
                        f"{left / size if size else left:.1e} off, {limit / size if size else limit:.1e} allowed",
                        step=step,
                        tensor=name,
                        observed=left / size if size else left,
                        allowed=limit / size if size else limit,
                        scale=dot / size**2 if size else None,
                    )
                worst = max(worst, left / limit if limit else 0.0)
    if not count:
        return None
    return writer.passed(
        f"{count} steps are those of SGD's formula; nearest to failing: {worst:.1e} of what is allowed"
    )


def _loaded_momenta(view: RungView) -> dict[str, Any]:
    """What an optimizer goes on from, in a rung that resumes."""
    if view.before is None:
        return {}
    state = view.own.full(Kind.STATE)
    keys = ((row, state.key(row)) for row in state.at(view.start - 1).tolist())
    return {
        key.name.removesuffix("/momentum_buffer"): state.sketch[row]
        for row, key in keys
        if key.name.endswith("/momentum_buffer")
    }


def _with_momentum(group: Mapping[str, Any], momenta: dict[str, Any], name: str, gradient: Any) -> Any:
    momentum = float(group.get("momentum", 0))
    if not momentum:
        return gradient
    if name in momenta:
        momenta[name] = momentum * momenta[name] + (1 - float(group.get("dampening", 0))) * gradient
    else:
        momenta[name] = gradient
    return gradient + momentum * momenta[name] if group.get("nesterov") else momenta[name]
