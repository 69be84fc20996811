"""Is the norm that decided about clipping that of the gradient, and was it clipped by it?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dist_checks.judging.factors import in_numbers
from dist_checks.judging.logical import Full, Ints, Key
from dist_checks.judging.tolerance import EPS, MILDEST_FAULT, eps_of, within
from dist_checks.judging.verdict import Finding
from dist_checks.judging.view import RungView, Writer
from dist_checks.trace import NO_ITEM, Kind

CLIP_EPS = 1e-6
"""torch.nn.utils.clip_grad_norm_ divides by norm + 1e-6; others do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """Of the full gradient of one step, put together from the ranks' digests."""

    step: int
    value: float
    slack: float
    """Relative: how far it may be off, from rounding and from estimates of partial sums."""


def check(view: RungView) -> Iterator[Finding]:
    """Three numbers that are easily confused: recomputed here, used for clipping, printed. A rank that clips by the
    norm of its own shards (RLinf/RLinf PR#1558) or before the loss scale is divided out
    (Lightning-AI/pytorch-lightning#9599) computes a plausible loss."""
    writer = view.writer("grad_norm")
    gradients = view.own.full(Kind.GRADIENT)
    steps = [step for step in view.trace.steps if not view.own.skipped(step) and gradients.at(step).size]
    if not steps:
        yield writer.unseen(f"no step has gradients on all ranks: {view.trace.cut or 'they were not recorded'}")
        return
    norms = []
    for step in steps:
        rows = gradients.at(step)
        if not gradients.complete[rows].all():
            name = gradients.names[gradients.tensor[rows[~gradients.complete[rows]][0]]]
            yield writer.unseen(f"gradient {name} of step {step} is not complete", step=step, tensor=name)
            return
        norms.append(_norm(view, gradients, rows, step))
    for norm in norms:
        if finding := _not_finite(writer, gradients, norm) or _used(view, writer, norm) or _applied(view, writer, norm):
            yield finding
            return
    if not any(rank.steps[step].get("norm_used") is not None for rank in view.trace.ranks for step in steps):
        yield writer.skipped("the loop reported no gradient norm")
        return
    yield _printed(view, writer, norms) or _passed(view, writer, norms)


def _norm(view: RungView, gradients: Full, rows: Ints, step: int) -> Norm:
    """Where a tensor is a partial sum its own norm is an estimate: the reference's is better, if it is the same."""
    squares = gradients.sum_squares[rows].copy()
    doubt = 0.0
    for at in np.flatnonzero(gradients.partial[rows]).tolist():
        row = int(rows[at])
        theirs = view.reference.full(Kind.GRADIENT) if view.reference is not None else None
        other = theirs.rows.get(Key(gradients.names[gradients.tensor[row]], step, NO_ITEM)) if theirs else None
        if theirs is not None and other is not None:
            left = np.linalg.norm(gradients.sketch[row] - theirs.sketch[other])
            if within(float(left), MILDEST_FAULT * float(theirs.norm[other])):
                squares[at] = theirs.sum_squares[other]
                continue
        # An estimate from 64 buckets is off by 10 %, three times that at worst.
        doubt += 0.3 * squares[at]
    value = float(np.sqrt(squares.sum()))
    if gradients.nonfinite[rows].any():
        value = math.nan
    eps = max([EPS["float64"], *(eps_of(gradients.dtypes[gradients.tensor[row]]) for row in rows.tolist())])
    # A norm of bf16 gradients is itself bf16: rounded by up to half a unit for each tensor, and again for all of them.
    rounding = max(math.sqrt(eps * MILDEST_FAULT), eps)
    return Norm(step=step, value=value, slack=rounding + (doubt / value**2 if value else 0.0))


def _not_finite(writer: Writer, gradients: Full, norm: Norm) -> Finding | None:
    if not math.isnan(norm.value):
        return None
    rows = gradients.at(norm.step)
    row = int(rows[gradients.nonfinite[rows] > 0][0])
    name = gradients.names[gradients.tensor[row]]
    return writer.failed(
        f"{gradients.nonfinite[row]} of {gradients.elements[row]} elements of gradient {name} are not finite at step "
        f"{norm.step}, and the step was taken",
        step=norm.step,
        tensor=name,
        observed=math.nan,
    )


def _off(value: float, norm: Norm) -> float:
    return abs(value - norm.value) / norm.value if norm.value else abs(value)


def _used(view: RungView, writer: Writer, norm: Norm) -> Finding | None:
    wrong = {}
    for rank in view.trace.ranks:
        used = rank.steps[norm.step].get("norm_used")
        if used is not None and not within(_off(used, norm), norm.slack):
            wrong[rank.rank] = float(used)
    if not wrong:
        return None
    one, used = next(iter(wrong.items()))
    several = len(wrong) > 1
    each = f"; {len(wrong)} ranks are wrong" if several else ""
    if several and max(wrong.values()) - min(wrong.values()) > norm.slack * norm.value:
        each += ", each in its own way"
    elif norm.value and (words := in_numbers(view, norm.step, used / norm.value)):
        each += f"; {used / norm.value:.6g} x: {words}"
    return writer.failed(
        f"rank {one} decided about clipping by a norm of {used:.6g} at step {norm.step}, that of the full gradient is "
        f"{norm.value:.6g}: {_off(used, norm):.1e} off, {norm.slack:.1e} allowed{each}",
        step=norm.step,
        ranks=list(wrong),
        observed=_off(used, norm),
        allowed=norm.slack,
        scale=used / norm.value if norm.value else None,
    )


def _applied(view: RungView, writer: Writer, norm: Norm) -> Finding | None:
    """Did the optimizer get the gradient times min(1, limit / norm)? Tensor by tensor: ranks may clip differently."""
    gradients, applied = view.own.full(Kind.GRADIENT), view.own.full(Kind.APPLIED)
    event = view.trace.ranks[0].steps[norm.step]
    clip = event.get("clip")
    rows = [
        row for row in applied.at(norm.step).tolist() if applied.complete[row] and applied.key(row) in gradients.rows
    ]
    # Without a norm the loop has not said whether it clips.
    if not rows or event.get("norm_used") is None:
        return None
    before = np.array([gradients.rows[applied.key(row)] for row in rows])
    factor = min(1.0, float(clip) / (norm.value + CLIP_EPS)) if clip is not None else 1.0
    slack = norm.slack + (CLIP_EPS / norm.value if norm.value else 0.0)
    left = np.linalg.norm(applied.sketch[rows] - factor * gradients.sketch[before], axis=1)
    size = factor * np.linalg.norm(gradients.sketch[before], axis=1)
    bad = np.flatnonzero(~(left <= slack * size + EPS["float32"] * factor * norm.value * slack))
    if not bad.size:
        return None
    at = int(bad[0])
    name = applied.names[applied.tensor[rows[at]]]
    whole = float(np.sqrt(applied.sum_squares[rows].sum()))
    wanted = factor * float(np.sqrt(gradients.sum_squares[before].sum()))
    words = in_numbers(view, norm.step, whole / wanted) if wanted else ""
    words = f"; {whole / wanted:.6g} x: {words}" if words else ""
    limit = f"clip limit {clip:g}" if clip is not None else "no clipping"
    return writer.failed(
        f"the optimizer got gradients of norm {whole:.6g} at step {norm.step} where {wanted:.6g} is right (norm "
        f"{norm.value:.6g}, {limit}); {len(bad)} of {len(rows)} tensors, the first {name}: {left[at] / size[at]:.1e} "
        f"off, {slack:.1e} allowed{words}",
        step=norm.step,
        tensor=name,
        ranks=[rank.rank for rank in view.trace.ranks],
        observed=float(left[at] / size[at]) if size[at] else math.inf,
        allowed=slack,
        scale=whole / wanted if wanted else None,
    )


def _printed(view: RungView, writer: Writer, norms: list[Norm]) -> Finding | None:
    """The same wrong number on all ranks. Where ranks print different ones, those are local values of a sharded norm
    (pytorch/torchtitan#766), which nothing depends on: a note in the passing finding."""
    for norm in norms:
        printed = _prints(view, norm)
        if not printed or any(within(_off(value, norm), norm.slack) for value in printed.values()):
            continue
        if max(printed.values()) - min(printed.values()) <= norm.slack * norm.value and len(printed) > 1:
            value = next(iter(printed.values()))
            return writer.failed(
                f"{value:.6g} was printed at step {norm.step}, the norm of the gradient is {norm.value:.6g}: only what "
                "is printed is wrong, clipping is right",
                step=norm.step,
                ranks=list(printed),
                observed=_off(value, norm),
                allowed=norm.slack,
                scale=value / norm.value if norm.value else None,
            )
    return None


def _prints(view: RungView, norm: Norm) -> dict[int, float]:
    values = {rank.rank: rank.steps[norm.step].get("norm_printed") for rank in view.trace.ranks}
    return {rank: float(value) for rank, value in values.items() if value is not None}


def _passed(view: RungView, writer: Writer, norms: list[Norm]) -> Finding:
    told = [
        (_off(float(used), norm), norm)
        for norm in norms
        for rank in view.trace.ranks
        if (used := rank.steps[norm.step].get("norm_used")) is not None
    ]
    observed, norm = max(told, key=lambda item: item[0] / item[1].slack)
    note = ""
    for each in norms:
        odd = [rank for rank, value in _prints(view, each).items() if not within(_off(value, each), each.slack)]
        if odd:
            note = f"; what rank {odd[0]} prints at step {each.step} is not the norm that it used"
            break
    clipped = "" if len(view.own.full(Kind.APPLIED)) else "; what the optimizer got was not recorded"
    return writer.passed(
        f"norms of {len(norms)} steps are those of the full gradient on every rank: {observed:.1e} off, "
        f"{norm.slack:.1e} allowed{note}{clipped}",
        step=norm.step,
        observed=observed,
        allowed=norm.slack,
    )
