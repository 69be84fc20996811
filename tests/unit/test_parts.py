"""A part that is required and missing fails; nothing is green by absence."""

from __future__ import annotations

import parts
import pytest


def test_a_missing_part_skips_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(parts.REQUIRED, raising=False)
    with pytest.raises(pytest.skip.Exception, match="no_such_part is not installed"):
        parts.need("no_such_part")


def test_a_missing_part_that_is_required_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(parts.REQUIRED, "slurm no_such_part")
    with pytest.raises(pytest.fail.Exception, match="DIST_CHECKS_REQUIRE names no_such_part"):
        parts.need("no_such_part")


def test_a_part_that_is_there_is_no_reason_to_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(parts.REQUIRED, "pytest")
    parts.need("pytest")
