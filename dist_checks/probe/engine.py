"""The step of a DeepSpeed engine, as the probe sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Engine:
    """Of a DeepSpeed engine: its step, which clips and steps where enough micro-batches have been added up."""

    def __init__(self, model: Any, before: Callable[[], None], after: Callable[[float | None, float], None]) -> None:
        self._model = model if hasattr(model, "is_gradient_accumulation_boundary") else None
        if self._model is None:
            return
        self._steps = int(model.global_steps)
        original = model.step

        def step(*args: Any, **kwargs: Any) -> Any:
            last = model.is_gradient_accumulation_boundary()
            if last:
                before()
            out = original(*args, **kwargs)
            if last:
                norm = model.get_global_grad_norm()
                after(None if norm is None else float(norm), float(model.gradient_clipping()))
            return out

        model.step = step

    def at_boundary(self) -> bool:
        """Whether the engine has stepped since the last call; true where there is no engine."""
        if self._model is None:
            return True
        before, self._steps = self._steps, int(self._model.global_steps)
        return self._steps != before

    def stop(self) -> None:
        if self._model is not None:
            self._model.__dict__.pop("step", None)
