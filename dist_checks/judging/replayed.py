"""A step that was run again by itself: does it repeat, and what makes the first number that is not finite?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

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
    watched, wide = seen["watched"], seen["fp32"]
    if watched["first"] is None:
        out.append(f"in {precision}: every number is finite")
    else:
        out.append(f"in {precision}: {_first(watched['first'])}{_nan(watched)}")
    if precision != "fp32":
        if wide["first"] is None:
            name, value = (wide["largest"] or [["", 0.0]])[0]
            over = f", more than the {FP16:g} that fp16 has" if value > FP16 else ""
            out.append(f"in fp32: every number is finite; the largest is {value:.4g} in {name or 'the loss'}{over}")
        else:
            out.append(f"in fp32 as well: {_first(wide['first'])}")
    largest = ", ".join(f"{name or 'the loss'} {value:.3g}" for name, value in watched["largest"][:5])
    if largest:
        out.append(f"largest finite values: {largest}")
    if (left := seen.get("without")) is not None:
        fine = left["first"] is None and all(x is None or math.isfinite(x) for x in left["numbers"])
        out.append(f"without these samples: {'every number is finite' if fine else _first(left['first'])}")
    return out


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
    where = "in backward" if found["backward"] else f"in {found['module'] or 'the model or its loss'}"
    return f"{found['operation']} {where}"
