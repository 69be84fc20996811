"""What a constant factor may come from: the numbers of a rung, alone, two together, and their square roots."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from dist_checks import pipeline
from dist_checks.axes import SPEC
from dist_checks.judging.view import RungView

FEWEST_BITS = 2
"""Of a power of two that no number of the rung explains: 2 and 1/2 may come from anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    value: float
    words: str


def factors(view: RungView, step: int) -> Iterator[Factor]:
    """What a gradient is off by when a division is forgotten or done twice; the simplest first."""
    numbers = _numbers(view, step)
    for name, x in numbers.items():
        yield Factor(value=x, words=f"not divided by {name} ({x:g})")
        yield Factor(value=1 / x, words=f"divided by {name} ({x:g}) once too often")
    for name, x in numbers.items():
        yield Factor(value=math.sqrt(x), words=f"off by the square root of {name} ({x:g})")
        yield Factor(value=1 / math.sqrt(x), words=f"off by 1 / the square root of {name} ({x:g})")
    for (one, x), (two, y) in itertools.permutations(numbers.items(), 2):
        yield Factor(value=x / y, words=f"off by {one} / {two} ({x:g} / {y:g})")
    for (one, x), (two, y) in itertools.combinations(numbers.items(), 2):
        yield Factor(value=x * y, words=f"divided neither by {one} ({x:g}) nor by {two} ({y:g})")
        yield Factor(value=1 / (x * y), words=f"divided by {one} ({x:g}) and {two} ({y:g}) once too often")
    yield Factor(value=-1.0, words="its sign is flipped")
    yield from _token_ratios(view, step)


def in_numbers(view: RungView, step: int, ratio: float, precision: float = 1e-3) -> str:
    """What a ratio may come from, where it is one of the rung's numbers; else an empty string."""
    near = (f.words for f in factors(view, step) if abs(ratio - f.value) <= precision * abs(f.value))
    return next(near, "")


def power_of_two(ratio: float) -> Iterator[Factor]:
    """The power of two that is near, as a loss scale leaves it that was not divided out, or divided out twice."""
    if not ratio > 0:
        return
    bits = round(math.log2(ratio))
    if abs(bits) > FEWEST_BITS and abs(ratio / 2.0**bits - 1) < 1e-3:
        how = "that was not divided out" if bits > 0 else "that was divided out twice"
        yield Factor(value=2.0**bits, words=f"2^{bits}, as of a loss scale {how}")


def _numbers(view: RungView, step: int) -> dict[str, float]:
    """The rung's own numbers that are not 1, by name. Axes of one degree are suspects together, in their order; of
    other numbers that are equal the first, so the simplest suspect, is named."""
    setting, layout = view.rung.setting, view.layout
    degrees: dict[int, list[str]] = {}
    for axis in setting:
        if SPEC[axis].takes == "degree":
            degrees.setdefault(setting.degree(axis), []).append(axis.value)
    out = {" or ".join(names): float(degree) for degree, names in degrees.items() if degree != 1}
    found: dict[str, float] = {"the micro-batches of pp": pipeline.micro_batches(setting)}
    found |= {"dp": layout.data_size, "the world size": layout.world_size}
    scale = next((rank.steps.get(step, {}).get("loss_scale") for rank in view.trace.ranks), None)
    if scale:
        found["the loss scale"] = scale
    for name, number in found.items():
        if number != 1 and number not in out.values():
            out[name] = float(number)
    return out


def _token_ratios(view: RungView, step: int) -> Iterator[Factor]:
    """Where the loss is divided by the targets of one data rank, whichever it is, and not by those of all."""
    counts = {}
    for part, ranks in view.data_ranks().items():
        parts = {view.layout.loss_part(rank): rank for rank in reversed(ranks)}
        counts[part] = sum(int(view.trace.by_rank[r].steps.get(step, {}).get("targets", 0)) for r in parts.values())
    total = sum(counts.values())
    for part, count in counts.items() if len(counts) > 1 else ():
        if count:
            words = f"the targets of data rank {part} ({count})"
            yield Factor(
                value=total / (len(counts) * count),
                words=f"divided by {words} x dp ({len(counts)}) where all have {total}",
            )
            yield Factor(value=total / count, words=f"divided by {words} instead of those of all ({total})")
