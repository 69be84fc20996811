"""A step that was run again by itself: does it repeat, and what makes the first number that is not finite?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dist_checks.jumps import Usual

FP16 = 65504.0
"""The largest number of fp16."""


def sentences(seen: Mapping[str, Any]) -> list[str]:
    """Of ``worker.alone.replaying``, in the order in which they are to be read."""
    step, rung, precision = seen["step"], seen["rung"], seen["precision"]
    then, now = seen["then"], seen["now"]
    if not seen["same"]:
        return [
            f"step {step} of {rung} does not reproduce: loss sum and gradient norm were {_pair(then)}, and are "
            f"{_pair(now)}; the same bits went in, so a race, or a host that computes wrongly, is to blame"
        ]
    out = [f"step {step} of {rung} reproduces, bit for bit: loss sum and gradient norm are {_pair(now)}"]
    if seen.get("usual"):
        return out + _jump(seen)
    watched, wide = seen["watched"], seen["fp32"]
    if watched["first"] is None:
        out.append(f"in {precision}: every number is finite")
    else:
        out.append(f"in {precision}: {_first(watched['first'])}{_nan(watched)}")
    if precision != "fp32":
        if wide["first"] is None:
            name, value = (wide["largest"] or [["", 0.0]])[0]
            out.append(
                f"in fp32: every number is finite; the largest is {value:.4g} in {name or 'the loss'}"
                f"{_narrow(precision, value)}"
            )
        else:
            out.append(f"in fp32 as well: {_first(wide['first'])}")
    largest = ", ".join(f"{name or 'the loss'} {value:.3g}" for name, value in watched["largest"][:5])
    if largest:
        out.append(f"largest finite values: {largest}")
    if (left := seen.get("without")) is not None:
        fine = left["first"] is None and all(x is None or math.isfinite(x) for x in left["numbers"])
        out.append(f"without these samples: {'every number is finite' if fine else _first(left['first'])}")
    return out


def _narrow(precision: str, largest: float) -> str:
    """What 16 bits make of a step that is finite in 32."""
    if precision.startswith("fp16"):
        return f", more than the {FP16:g} that fp16 has" if largest > FP16 else ""
    if precision.startswith("bf16"):
        return ", which bf16 has as well: what it rounds, to three digits, makes it (a difference that becomes zero)"
    return ""


def _jump(seen: Mapping[str, Any]) -> list[str]:
    """Of a step that is finite, and far from those before it."""
    usual = Usual.of(*(seen["usual"].get(name) for name in ("losses", "norms", "first")))
    many = len(seen["usual"]["losses"])
    out = [
        f"per target its loss is {_per_target(seen['now'], seen['targets']):.4g}; in the middle of the {many} steps "
        f"before it was {usual.level:.4g}, the gradient norm {usual.norm:.4g}"
    ]
    each = seen.get("each") or []
    if each:
        highest = ", ".join(f"{int(id)} ({loss:.4g})" for id, loss in each[:3])
        out.append(
            f"by themselves the samples with the highest loss are {highest}; the one in the middle has "
            f"{each[len(each) // 2][1]:.4g}"
        )
    left = seen.get("without")
    if left is None:
        out += [f"next: the same with --without-sample {int(each[0][0])}"] if each else []
        return out
    loss, norm = _per_target(left["numbers"], left["targets"]), left["numbers"][1]
    still = not math.isfinite(loss) or usual.jumps(loss, norm)
    out.append(
        f"without sample {', '.join(map(str, left['ids']))}: loss per target {loss:.4g}, gradient norm {norm:.4g}: "
        + ("it still jumps" if still else "it does not jump")
    )
    return out


def _per_target(numbers: Any, targets: int) -> float:
    return float(numbers[0]) / targets if targets else math.nan


def _pair(numbers: Any) -> str:
    return " and ".join("none" if number is None else f"{number:.6g}" for number in numbers)


def _first(first: Mapping[str, Any] | None) -> str:
    if first is None:
        return "the sums are not finite"
    return (
        f"the first number that is not finite comes out of {_where(first)} ({first['dtype']}; the largest finite "
        f"number that went in is {first['largest_input']:.4g})"
    )


def _nan(seen: Mapping[str, Any]) -> str:
    nan = seen.get("nan")
    return f"; the first NaN out of {_where(nan)}" if nan and nan != seen["first"] else ""


def _where(found: Mapping[str, Any]) -> str:
    where = f"in {found['module'] or 'the model or its loss'}"
    if not found["backward"]:
        return f"{found['operation']} {where}"
    if not found.get("node"):
        return f"{found['operation']} in backward"
    call = f", of the call {found['call']}" if found.get("call") else ""
    return f"{found['operation']} in backward ({found['node']} {where}{call})"
