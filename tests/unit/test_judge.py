"""A whole run folder is judged the same each time, whatever of it is missing, and without torch."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tampering import Tamper
from tiny_world import make_run, rung, write_plan

from dist_checks.judging import judge as judging
from dist_checks.judging.checks import CHECKS
from dist_checks.judging.judge import PlanError, ask, judge, report
from dist_checks.judging.verdict import Status
from dist_checks.trace import digests_path, events_path

LADDER = [{"tp": 2}, {"dp_replicate": 3}, {"accum": 3}, {"dp_replicate": 3, "accum": 3}, {"tp": 2, "accum": 3}]


class TooLarge(Tamper):
    def gradient(self, step: int, rank: int, name: str, x: np.ndarray) -> np.ndarray:
        return 2 * x


def ladder(tmp_path: Path, broken: list[str] | None = None) -> Path:
    rungs = [rung(steps=3), *(rung(setting, steps=3) for setting in LADDER)]
    return make_run(tmp_path / "run", rungs, dict.fromkeys(broken or [], TooLarge()))


def test_report(tmp_path: Path) -> None:
    found = report(ladder(tmp_path, ["dp_replicate3+accum3"]))
    assert found["schema"] == 1
    assert found["status"] == "fail"
    assert found["sentence"] == "FAIL broken: dp_replicate x accum (only together)"
    assert found["blamed"] == "axis"
    (broken,) = found["broken"]
    assert broken["axes"] == ["accum", "dp_replicate"]
    assert broken["values"] == {"dp_replicate": 3, "accum": 3}
    assert broken["check"] == "contributions"
    assert broken["explanation"] == "every sample entered with weight 2.000"
    assert broken["residual"][0] > 0.9
    assert broken["residual"][1] < 1e-12
    by_id = {each["id"]: each for each in found["rungs"]}
    assert by_id["tp2"]["axes"] == {"tp": 2}
    assert by_id["tp2"]["status"] == "pass"
    assert by_id["tp2"]["seconds"] == 1.0
    assert list(by_id["tp2"]["checks"]) == [name for name, _ in CHECKS]
    assert by_id["dp_replicate3+accum3"]["checks"]["gradients"] == "fail"
    assert set(found["findings"][0]) >= {"check", "rung", "status", "step", "tensor", "ranks", "hosts", "observed"}
    assert found["skipped"] == [{"axes": {"tp": 3}, "reason": "tp degree (3) must divide the hidden width (16)"}]


def test_what_would_have_been_seen_and_how_the_run_went(tmp_path: Path) -> None:
    by_id = {each["id"]: each for each in report(ladder(tmp_path))["rungs"]}
    sensitivity = by_id["tp2"]["sensitivity"]
    assert 0 < sensitivity["finest"]["scale"] <= sensitivity["coarsest"]["scale"] < 1e-8
    assert sensitivity["sentence"].startswith("any scale error above ")
    series = by_id["tp2"]["series"]
    assert series["steps"] == [0, 1, 2]
    assert series["loss"] == pytest.approx(series["reference_loss"])
    assert all(a <= b for a, b in zip(series["gradient_distance"], series["gradient_allowed"], strict=True))
    contributions = by_id["tp2"]["contributions"]
    assert contributions["weights"] == pytest.approx([1.0] * len(contributions["ids"]))
    assert by_id["single"]["sensitivity"] is None


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_the_stated_sensitivity_is_true(tmp_path: Path, scale: float) -> None:
    """An error below what is promised to be seen passes, one above it fails."""
    first = report(ladder(tmp_path / "healthy"))
    tp2 = next(each for each in first["rungs"] if each["id"] == "tp2")
    limit = tp2["sensitivity"]["coarsest"]["scale"]

    class Slightly(Tamper):
        def gradient(self, step: int, rank: int, name: str, x: np.ndarray) -> np.ndarray:
            return x * (1 + scale * limit)

    run = make_run(tmp_path / "run", [rung(steps=1), rung({"tp": 2}, steps=1)], {"tp2": Slightly()})
    checks = next(each for each in report(run)["rungs"] if each["id"] == "tp2")["checks"]
    assert checks["gradients"] == ("fail" if scale > 1 else "pass")


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    run = ladder(tmp_path, ["tp2"])
    first = json.dumps(report(run))
    moved = shutil.copytree(run, tmp_path / "elsewhere" / "run")
    assert json.dumps(report(run)) == first
    assert json.dumps(report(moved)) == first


def test_nan_is_written_so_that_strict_parsers_live(tmp_path: Path) -> None:
    class Nan(Tamper):
        def gradient(self, step: int, rank: int, name: str, x: np.ndarray) -> np.ndarray:
            return x * np.nan

    with np.errstate(invalid="ignore"):
        run = make_run(tmp_path / "run", [rung(), rung({"tp": 2})], {"tp2": Nan()})
    text = json.dumps(report(run), allow_nan=False)
    gradients = [f for f in json.loads(text)["findings"] if f["check"] == "gradients" and f["rung"] == "tp2"]
    assert gradients[0]["observed"] == "nan"
    assert gradients[0]["status"] == "fail"


# Whatever is missing


def test_a_rung_that_was_never_run_is_not_a_pass(tmp_path: Path) -> None:
    run = ladder(tmp_path)
    shutil.rmtree(run / "rungs" / "accum3")
    found = report(run)
    assert found["status"] == "inconclusive"
    assert found["sentence"] == ("INCONCLUSIVE 4 of 5 rungs equal to one device; not decided: accum3 (completes)")


def test_a_lost_neighbour_leaves_blame_undecided(tmp_path: Path) -> None:
    run = ladder(tmp_path, ["dp_replicate3+accum3"])
    shutil.rmtree(run / "rungs" / "accum3")
    found = report(run)
    assert found["broken"][0]["decided"] is False
    assert "not decided: accum3 is inconclusive" in found["sentence"]


def test_a_lost_reference_leaves_everything_open(tmp_path: Path) -> None:
    run = ladder(tmp_path)
    shutil.rmtree(run / "rungs" / "single")
    found = report(run)
    assert found["status"] == "inconclusive"
    assert all(each["status"] == "inconclusive" for each in found["rungs"])


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("which", [events_path, digests_path])
@pytest.mark.parametrize("who", ["tp2", "single"])
def test_files_that_are_cut_anywhere(tmp_path: Path, share: float, which: Any, who: str) -> None:
    """Never a pass, never a failure, never an exception."""
    run = make_run(tmp_path / "run", [rung(steps=2), rung({"tp": 2}, steps=2)])
    path = which(run / "rungs" / who, 0)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    found = report(run)
    cut = next(each for each in found["rungs"] if each["id"] == who)
    assert cut["status"] == "inconclusive", [f for f in found["findings"] if f["status"] == "fail"]
    assert found["status"] == "inconclusive", [f for f in found["findings"] if f["status"] == "fail"]
    assert not any("the check broke" in finding["message"] for finding in found["findings"])


def test_another_trace_version_is_inconclusive(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [rung(), rung({"tp": 2})])
    path = events_path(run / "rungs" / "tp2", 0)
    path.write_text(path.read_text().replace('"schema":2', '"schema":1', 1))
    found = report(run)
    assert found["status"] == "inconclusive"
    assert any("has trace schema 1" in finding["message"] for finding in found["findings"])


def test_no_rungs_are_no_pass(tmp_path: Path) -> None:
    write_plan(tmp_path, [])
    assert report(tmp_path)["sentence"] == "INCONCLUSIVE no rung was run"


@pytest.mark.parametrize(
    ("text", "words"),
    [(None, "is no plan"), ("{", "is no plan"), ("[]", "is no plan"), ('{"schema": 7}', "has schema 7; this version")],
)
def test_no_plan_is_an_error_that_says_so(tmp_path: Path, text: str | None, words: str) -> None:
    if text is not None:
        (tmp_path / "plan.json").write_text(text)
    with pytest.raises(PlanError, match=words):
        judge(tmp_path)


def test_a_check_that_breaks_or_says_nothing_is_inconclusive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(view: object) -> list[Any]:
        raise ZeroDivisionError("by nothing")

    checks = (("breaks", breaks), ("silent", lambda view: []), *CHECKS)
    monkeypatch.setattr(judging, "asked", lambda rung: checks)
    run = make_run(tmp_path / "run", [rung(), rung({"tp": 2})])
    found = {finding.check: finding for finding in judge(run).findings if finding.rung == "tp2"}
    assert found["breaks"].status is found["silent"].status is Status.INCONCLUSIVE
    assert found["breaks"].message == "the check broke: ZeroDivisionError: by nothing"
    assert judge(run).verdict.status is Status.INCONCLUSIVE
    assert ask is judging.ask


# No torch behind this door


def _imports(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    return {name.split(".")[0] for name in out.split()}


def test_judging_imports_no_torch() -> None:
    loaded = _imports("import dist_checks.judging.judge, dist_checks.judging.blame")
    assert "numpy" in loaded
    assert not loaded & {"torch", "scipy", "pydantic", "rich"}


def test_that_test_can_fail() -> None:
    assert "torch" in _imports("import dist_checks.judging.judge, torch")
