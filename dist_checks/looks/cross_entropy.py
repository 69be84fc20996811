"""Cross-entropy as a script computes it, heard where torch does: the classes, the targets, the loss of each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any

import torch
from torch import Tensor

MEAN, SUM = 1, 2
"""Of the reductions of torch, by their numbers; 0 is none."""


@dataclass(frozen=True)
class Heard:
    """One call. Heads of several classes for each target are flattened: logits are (targets, classes)."""

    logits: Tensor
    targets: Tensor
    """(targets,), whole numbers."""
    ignored: int
    smoothing: float
    weighted: bool
    result: Tensor
    reduction: int

    @property
    def classes(self) -> int:
        return self.logits.shape[-1]

    @cached_property
    def count(self) -> int:
        """Targets that are not ignored."""
        return int((self.targets != self.ignored).sum())

    @property
    def mean(self) -> float:
        """Of the targets that are not ignored, in nats; NaN without one."""
        if not self.count:
            return math.nan
        total = self.result.double().sum()
        return float(total) if self.reduction == MEAN else float(total) / self.count

    @property
    def floor(self) -> float:
        """What smoothed labels cost a model that is always right, in nats."""
        if not self.smoothing:
            return 0.0
        other = self.smoothing / self.classes
        right = 1.0 - self.smoothing + other
        return -(right * math.log(right) + (self.classes - 1) * other * math.log(other))


class Ear:
    """From its making until :meth:`stop`, tells of each call of cross-entropy or of nll_loss.

    It is put where ``torch.nn.functional`` calls into C++, so that a name which a script has imported before is heard
    as well. What a kernel of the user's own computes, or a graph of torch.compile, is not.
    """

    def __init__(self, tell: Callable[[Heard], None], targets: Callable[[Tensor], Tensor] | None = None) -> None:
        """``targets``: what the loss gets in the place of the targets that it is called with."""
        self._tell, self._targets = tell, targets
        self._originals = {name: getattr(torch._C._nn, name) for name in ("cross_entropy_loss", "nll_loss_nd")}
        for name, original in self._originals.items():
            setattr(torch._C._nn, name, self._hearing(original))

    def stop(self) -> None:
        for name, original in self._originals.items():
            setattr(torch._C._nn, name, original)

    def _hearing(self, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @wraps(original)
        def call(
            input: Tensor,
            target: Tensor,
            weight: Tensor | None = None,
            reduction: int = MEAN,
            ignored: int = -100,
            smoothing: float = 0.0,
        ) -> Tensor:
            more: tuple[Any, ...] = (smoothing,) if smoothing else ()
            if type(input) is not Tensor or type(target) is not Tensor:  # torch.compile traces it, without numbers
                return original(input, target, weight, reduction, ignored, *more)
            target = target if self._targets is None else self._targets(target)
            result = original(input, target, weight, reduction, ignored, *more)
            # Targets may be probabilities of classes; logits without a dimension of classes are none.
            if not target.is_floating_point() and input.ndim in (target.ndim, target.ndim + 1) and input.ndim:
                logits = input.detach().movedim(1, -1).flatten(0, -2) if input.ndim > 1 else input.detach()[None]
                targets, told = target.detach().flatten(), result.detach()
                self._tell(Heard(logits, targets, ignored, smoothing, weight is not None, told, reduction))
            return result

        return call
