"""One ladder of the self-test, run and judged."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dist_checks import session
from dist_checks.matrix import Matrix
from dist_checks.selftest.sharing import SharingLauncher


def report(
    matrix: Matrix | Mapping[str, Any],
    out: Path,
    launcher: SharingLauncher,
    *,
    fault: str | None = None,
    select: str = "",
) -> dict[str, Any]:
    """report.json of the ladder. Raises KeyboardInterrupt where it was interrupted: what was cut short is neither a
    miss nor a false alarm, and nothing after it was asked for."""
    outcome = session.run(matrix, out=out, launcher=launcher, fault=fault, select=select)
    if outcome.interrupted:
        raise KeyboardInterrupt
    return outcome.report
