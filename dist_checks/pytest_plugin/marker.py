"""What ``@pytest.mark.ranks`` asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from dist_checks.pytest_plugin.names import RANKS, RUNG, SIZE

OPTIONS = ("deadline", "device", "backend", "init", "env")
DEADLINE = 300.0
LEAST = 1.0
"""Seconds that are left for a test whose timeout by pytest-timeout is short."""
ENDING = 5.0
"""Seconds before the timeout of pytest-timeout in which ranks that hang are asked where, and are ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Of one test."""

    size: int
    deadline: float
    """Seconds from the start of the ranks."""
    device: str | None = None
    """``cpu`` or ``cuda``; None for the accelerator, if there is one."""
    backend: str | None = None
    """Of the process group; None for torch's default of the device."""
    init: bool = True
    """There is a process group before any fixture is set up."""
    env: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, item: pytest.Function) -> Wanted:
        """Raises ValueError with what was expected."""
        mark = item.get_closest_marker(RANKS)
        assert mark is not None, item
        where = f"@pytest.mark.{RANKS}"
        if RUNG in item.fixturenames:
            raise ValueError(f"{where}: {RUNG} is a result of this session: tests that take it run here, on no ranks")
        if not mark.args:
            raise ValueError(f"{where} takes the number of ranks: @pytest.mark.{RANKS}(4)")
        if wrong := [size for size in mark.args if not isinstance(size, int) or isinstance(size, bool) or size < 1]:
            raise ValueError(f"{where} takes numbers of ranks, 1 or more, not {wrong[0]!r}")
        if unknown := [name for name in mark.kwargs if name not in OPTIONS]:
            raise ValueError(f"{where} has no option {unknown[0]!r}, expected {', '.join(OPTIONS)}")
        given = dict(mark.kwargs)
        deadline = given.pop("deadline", None)
        if deadline is not None and not (isinstance(deadline, (int, float)) and deadline > 0):
            raise ValueError(f"{where}: deadline takes seconds, more than 0, not {deadline!r}")
        env = given.get("env", {})
        if not all(isinstance(text, str) for pair in dict(env).items() for text in pair):
            raise ValueError(f"{where}: env maps text to text, not {env!r}")
        size: Any = item.callspec.params[SIZE] if len(mark.args) > 1 else mark.args[0]
        return cls(size=size, deadline=_deadline(item, deadline), **given)


def _deadline(item: pytest.Item, given: float | None) -> float:
    """Ranks that hang are to be asked where before pytest-timeout ends the test, which knows nothing of them."""
    wanted = DEADLINE if given is None else float(given)
    timeout = _timeout(item)
    return min(wanted, max(timeout - ENDING, timeout / 2, LEAST)) if timeout else wanted


def _timeout(item: pytest.Item) -> float:
    """Seconds, as pytest-timeout reads them; 0 for none."""
    if not item.config.pluginmanager.hasplugin("timeout"):
        return 0.0
    mark = item.get_closest_marker("timeout")
    values: list[Any] = [*mark.args[:1], mark.kwargs.get("timeout")] if mark else []
    values += [getattr(item.config, "_env_timeout", None)]
    found = next((value for value in values if value is not None), None)
    try:
        return max(float(found or 0), 0.0)
    except (TypeError, ValueError):
        return 0.0  # pytest-timeout says so itself
