"""What tests of scripts share: where these are, and how one is run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from dist_checks.session import Outcome

HERE = Path(__file__).parent


class Job(Protocol):
    """Runs a script of this folder, with one of its texts replaced, and judges it."""

    def __call__(
        self,
        script: str,
        words: str,
        axes: Mapping[str, Any],
        *,
        mistake: tuple[str, str] | None = None,
        command: Mapping[str, Any] | None = None,
        before: str = "",
        select: str = "",
        **matrix: Any,
    ) -> Outcome: ...
