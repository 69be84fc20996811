"""Steps of an optimizer that are given a closure: the gradients come about inside of the step (Lightning, LBFGS)."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Arguments of a step, the optimizer first."""


def when_ready(args: tuple[Any, ...], kwargs: dict[str, Any], ready: Callable[[], None]) -> Call | None:
    """To be returned by a hook before a step: calls ``ready`` once the gradients are there, which is now, or when the
    closure has been called for the first time."""
    closure = args[1] if len(args) > 1 else kwargs.get("closure")
    if not callable(closure):
        ready()
        return None
    waiting = [ready]

    @wraps(closure)
    def watched(*given: Any, **named: Any) -> Any:
        out = closure(*given, **named)
        if waiting:
            waiting.pop()()
        return out

    if len(args) > 1:
        return (args[0], watched, *args[2:]), kwargs
    return args, {**kwargs, "closure": watched}
