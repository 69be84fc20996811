"""Golden reports, and the same reports with parts missing or malformed, as an interrupted run would leave them."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("pass", "fail", "hostile")
WRONG: tuple[Any, ...] = (None, {"a": []}, "text", float("nan"), [None, [1], "x", {}])


def sample(name: str) -> dict[str, Any]:
    path = Path(__file__).parent / "data" / f"report_{name}.json"
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return report


def malformed() -> Iterator[dict[str, Any]]:
    """Each entry of the report, of a rung, a finding and a broken set in turn missing or of a wrong kind."""
    yield {}
    whole = sample("fail")
    whole["rungs"] = [whole["rungs"][3], whole["rungs"][8]]
    whole["findings"] = [finding for finding in whole["findings"] if finding["rung"] == whole["rungs"][1]["id"]]
    for path in ([], ["rungs", 1], ["rungs", 1, "series"], ["findings", 0], ["broken", 0], ["skipped", 0]):
        target = whole
        for step in path:
            target = target[step]
        for key in target:
            for wrong in (..., *WRONG):
                changed = copy.deepcopy(whole)
                place = changed
                for step in path:
                    place = place[step]
                if wrong is ...:
                    del place[key]
                else:
                    place[key] = wrong
                yield changed
