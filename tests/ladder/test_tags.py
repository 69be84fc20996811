"""Tags, one for each token or several for a sample: told apart, confused, and shown in the report."""

from __future__ import annotations

from typing import Any

import pytest
from ladders import Ladder, findings

SINGLE = {"learn": 80, "overfit": 8}


def told(report: dict[str, Any]) -> dict[str, Any]:
    [learn] = [rung for rung in report["rungs"] if rung["id"] == "learn"]
    found: dict[str, Any] = learn["health"]["classes"]
    return found


def test_a_tag_for_each_token(ladder: Ladder) -> None:
    outcome = ladder({}, recipe="tagging_recipes:Words", single=SINGLE, train={"learning_rate": 1e-2})
    assert outcome.report["sentence"] == "PASS one device is healthy (overfit, learn)"
    found = told(outcome.report)
    assert found["names"] == ["begin", "inside", "outside"]
    assert all(right > 0.8 * count for right, count in zip(found["right"], found["counts"], strict=True))
    assert [sum(row) for row in found["matrix"]] == found["counts"]
    page = (outcome.folder / "report.html").read_text(encoding="utf-8")
    assert "rows are labels, columns what was said" in page


def test_several_tags_for_a_sample(ladder: Ladder) -> None:
    outcome = ladder({}, recipe="tagging_recipes:Contents", single=SINGLE, train={"learning_rate": 1e-2})
    assert outcome.report["sentence"] == "PASS one device is healthy (overfit, learn)"
    found = told(outcome.report)
    assert found["names"][:4] == ["comma", "no comma", "space", "no space"]
    assert found["counts"][0] + found["counts"][1] == 60, "each held-out sample has the tag or has it not"


@pytest.mark.parametrize(
    ("recipe", "said", "kind"),
    [("Words", "of begin", "begin taken for inside"), ("Contents", "of h", "h taken for no h")],
)
def test_a_tag_that_training_lost(ladder: Ladder, recipe: str, said: str, kind: str) -> None:
    outcome = ladder(
        {},
        recipe=f"tagging_recipes:{recipe}",
        options={"wrong": True},
        single=SINGLE | {"overfit": 0},
        train={"learning_rate": 1e-2},
    )
    [found] = findings(outcome.report, "classes", "learn")
    assert said in found["message"]
    assert found["symptom"] == "class_never_right"
    page = (outcome.folder / "report.html").read_text(encoding="utf-8")
    assert kind in page
    assert all(each["text"] for each in told(outcome.report)["worst"])
