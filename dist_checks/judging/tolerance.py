"""How far is too far: three rules, one for each thing that a rung can be compared with."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dist_checks.judging.reading import plain_dtype

Floats = NDArray[np.float64]

EPS = {
    "float64": 2.0**-52,
    "float32": 2.0**-23,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
    "float8_e4m3fn": 2.0**-3,
    "float8_e5m2": 2.0**-2,
}
"""Distance from 1 to the next larger number."""

DTYPE = {
    "fp64": "float64",
    "fp32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "bf16_params": "bfloat16",
    "fp16_params": "float16",
    "bf16_pure": "bfloat16",
    "bf16_fsdp": "bfloat16",
}
"""What a value of the precision axis computes with."""

NARROW_NORMS = frozenset({"bf16_params", "bf16_pure", "bf16_fsdp"})
"""Autocast computes norms in float32, these do not."""

STEPS_IN = {"Muon": "bfloat16"}
"""Optimizers that compute their steps in narrower numbers than the weights have: torch.optim.Muon orthogonalises in
bfloat16, whatever it is given."""

MILDEST_FAULT = 1e-3
"""Relative size of the smallest known fault in a gradient (mean of means over micro-batches: 6e-3 and more)."""

NEAR = 2.0
"""The factor k of the truth rule. A healthy bf16 tp rung measured at most 1.13."""

EARLY = 2
"""Steps of narrow numbers that are judged one by one: the first gradients and updates, and what these do to the next
gradients. Later, runs part from each other at a rate of their own: of 134 healthy bf16 and fp16 rungs on a small GPT
all stayed below 0.73 of their limits up to step 2, and one was at 2.4 in step 3 (AdamW, learning rate 0.01); a bf16
single was 0.9 away from its truth in step 11, and back in step 12."""


def eps_of(dtype: str) -> float:
    """Of an unknown dtype, that of float32."""
    return EPS.get(plain_dtype(dtype), EPS["float32"])


def within(observed: float, allowed: float) -> bool:
    """NaN is never within anything, on either side."""
    return bool(observed <= allowed)


def worse(observed: Iterable[float]) -> float:
    """The largest, NaN if any is NaN; ``max(0.0, nan)`` is 0.0 in Python. 0 where there is none."""
    return float(np.max(np.fromiter(observed, float), initial=0.0))


class Rule(Enum):
    """What a rung is compared with."""

    REFERENCE = "the reference, in float64"
    TRUTH = "the float64 truth, as far as the single of the same precision is from it"
    ROUNDING = "the float64 truth, for a single: a bound in units of its own rounding"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """A rule, and the rounding of the numbers that it is about."""

    rule: Rule
    eps: float
    narrow_norms: bool = False
    """Norm layers are computed in 16 bits as well; torch's then add up the gradients of gain and bias in 16 bits, over
    all tokens. (On the CPU 4 % off after 1,000 tokens, 10 % after 10,000; 8 % for the last norm of a small GPT.)"""

    step_eps: float = 0.0
    """Rounding of the optimizer's step, where that is narrower (STEPS_IN)."""

    @property
    def relative(self) -> float:
        """Of the norm of a tensor, at step 0, apart from ``spread``.

        Against the reference: half way, on a logarithmic scale, between rounding and the mildest fault. In float64
        that is 5e-10, where healthy axes measured 1e-15, and 1e-13 after 8 steps.
        """
        match self.rule:
            case Rule.REFERENCE:
                return max(math.sqrt(self.eps * MILDEST_FAULT), 8 * self.eps)
            case Rule.TRUTH:
                # Some tensors of the single are near the truth by chance: of the 16 elements of a bias, the rounding of
                # one run is easily half of that of another. In 16 bits a quarter of eps covers that. In float32 it does
                # not, where gradients are off by several eps because long sums are added up (healthy rungs came up to
                # 0.89 of a limit of eps / 4 more than twice the spread), and there is room: nothing that is a hundred
                # times smaller than the mildest fault has to be told from rounding.
                return max(self.eps / 4, MILDEST_FAULT / 100)
            case Rule.ROUNDING:
                # bf16 and fp16 gradients of a small GPT measured up to 2 eps; deeper ones round more often, and
                # float32 adds up long sums.
                return (32 if self.narrow_norms else 8) * self.eps + 1e-5

    @property
    def later(self) -> float:
        """What is added to ``relative`` once weights have moved. Adam takes steps of lr x sign where a gradient is mere
        rounding, so a share eps of the elements may step the other way, and weights are off by sqrt(eps) of a step.

        Which elements is chance, and the spread of the single is but one draw: of twelve draws of rounding noise on a
        small GPT in float64, of the size of fp16's, the median of the second gradients was off by 0.07 % in one and by
        1.0 % in another, the furthest by up to 1.3 sqrt(eps). (A bf16 single was 8 % off at a learning rate of 0.01, an
        fp16 rung 1.1 % where its single was 0.2 %.) In float32 what is mere rounding is below Adam's own epsilon, and
        takes no step: measured 2e-5."""
        chance = self.rule is Rule.ROUNDING or (self.rule is Rule.TRUTH and self.eps > EPS["float32"])
        return math.sqrt(max(self.eps, self.step_eps)) / (1 if chance else 8)

    @property
    def growth(self) -> float:
        """Rounding differences grow from step to step, even when all is right; the spread shows that by itself."""
        return {Rule.REFERENCE: 1.5, Rule.TRUTH: 1.0, Rule.ROUNDING: 1.2}[self.rule]

    def share(self, step: NDArray[np.int64]) -> Floats:
        """Of the norm of all tensors together: a gradient that is zero in exact arithmetic holds rounding noise only,
        and how large that is depends on the others."""
        step = np.maximum(step, 0)
        if self.rule is Rule.TRUTH:
            # Measured on a small GPT in bf16 and fp16: nothing at step 0, where the spread says it all; eps / 10000
            # from step 4 on, where the gradients of queries and keys fall to a millionth of the others.
            factor = np.minimum(1.5**step / 2048, 1 / 64)
        else:
            factor = {Rule.REFERENCE: 16.0, Rule.ROUNDING: 1 / 64}[self.rule] * self.growth**step
        return np.asarray(self.eps * factor, np.float64)

    def judges(self, step: int) -> bool:
        """Whether a limit at this step means anything: later ones are for the curve as a whole."""
        if self.rule is Rule.REFERENCE:
            return step <= 0 or self.relative * self.growth**step <= max(MILDEST_FAULT, 8 * self.eps)
        return step < EARLY

    def allowed(self, norm: Floats, total: Floats, spread: Floats, step: NDArray[np.int64]) -> Floats:
        """The largest distance that passes, absolute.

        ``norm`` is that of the tensor compared with, ``total`` that of its whole group, ``spread`` how far the single
        of the same precision is from the truth (used by Rule.TRUTH only).
        """
        relative = self.growth ** np.maximum(step, 0) * (self.relative + np.where(step > 0, self.later, 0.0))
        own = relative * norm + self.share(step) * total
        return NEAR * spread + own if self.rule is Rule.TRUTH else own


def of_single(precision: str) -> Tolerance:
    """For a single of that precision, with nothing but the truth to compare it with."""
    return Tolerance(rule=Rule.ROUNDING, eps=EPS[DTYPE[precision]], narrow_norms=precision in NARROW_NORMS)


def narrowest(precision: str, evidence: Mapping[str, Any]) -> float:
    """The eps that decides in exact mode: that of the narrowest float which the single has met."""
    narrowed = (eps_of(found.get("dtype", "float32")) for found in evidence.get("narrowed") or ())
    return max([EPS[DTYPE[precision]], *narrowed])
