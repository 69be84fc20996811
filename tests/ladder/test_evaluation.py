"""After the last step samples that are held out are evaluated, each once; a padded set is no fault of training."""

from __future__ import annotations

from ladders import Ladder, broken, findings
from planting import axes, expected, matrix

from dist_checks.judging.verdict import ExitCode
from dist_checks.worker.faults import find

SMALL = {"options": {"layers": 1, "width": 16, "samples": 61}, "steps": 1}


def test_every_layout_evaluates_each_sample_once(ladder: Ladder) -> None:
    values = {"dp_replicate": 4, "dp_shard": 3, "tp": 2, "cp": 2, "pp": 2, "zero": 3}
    outcome = ladder(values, combine={"mode": "singles"}, **SMALL)
    assert outcome.exit_code() is ExitCode.PASS, outcome.report["sentence"]
    told = {f["rung"]: f for f in outcome.report["findings"] if f["check"] == "evaluation"}
    assert told["dp_shard3"]["message"].startswith("13 samples that are held out are evaluated once, with the loss of ")
    assert told["dp_shard3"]["observed"] <= told["dp_shard3"]["allowed"] < 1e-9
    assert {rung: found["status"] for rung, found in told.items() if found["status"] != "pass"} == {"pp2": "skip"}


def test_a_last_batch_that_is_padded_is_a_fault_of_training(ladder: Ladder) -> None:
    (fault,) = find("last_batch_padded")
    outcome = ladder(axes(fault), fault=fault.id, **matrix(fault), blame={"budget": 0})
    assert broken(outcome.report) == expected(fault) == [["dp_replicate"]]
    [entry] = outcome.report["broken"]
    assert (entry["check"], entry["step"]) == ("samples", 1)
    assert "2 of 30 samples of the step are read more than once" in entry["explanation"]


def test_a_padded_set_is_a_fault_of_the_metric_alone(ladder: Ladder) -> None:
    (fault,) = find("O07")
    outcome = ladder(axes(fault), fault="O07", **matrix(fault), blame={"budget": 0})
    assert outcome.report["sentence"] == "FAIL broken: dp_replicate (alone; what is evaluated, not what is trained)"
    [found] = findings(outcome.report, "evaluation", "dp_replicate4")
    assert found["message"] == (
        "16 samples are evaluated, 13 are held out; counted more than once: 150, 151, 152: only the metric is wrong, "
        "not what is trained"
    )
    [rung] = [rung for rung in outcome.report["rungs"] if rung["id"] == "dp_replicate4"]
    assert [name for name, status in rung["checks"].items() if status == "fail"] == ["evaluation"]
