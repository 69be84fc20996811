"""Errors of torch that tests/upstream reproduces: a rung that runs into one is not equal to one device."""

from __future__ import annotations

from ladders import Ladder, broken, findings

SMALL = {"layers": 2, "samples": 123}


def test_the_gradient_of_a_gather(ladder: Ladder) -> None:
    """Outputs are right, and of their gradients the first that was computed through the keys and values."""
    outcome = ladder({"cp": 2, "accum": 5}, fault="nn_all_gather", options=SMALL)
    assert broken(outcome.report) == [["cp"]]
    [entry] = outcome.report["broken"]
    assert (entry["check"], entry["step"], entry["tensor"]) == ("forward", 0, "blocks.0")
    assert entry["explanation"].startswith("output gradient blocks.0 of sample")


def test_gradients_reduced_in_columns(ladder: Ladder) -> None:
    outcome = ladder({"dp_replicate": 3, "accum": 5}, fault="strided_all_reduce", options=SMALL)
    assert broken(outcome.report) == [["dp_replicate"]]
    [entry] = outcome.report["broken"]
    assert (entry["check"], entry["step"], entry["tensor"]) == ("replicas", 0, "embedding.weight")
    # Biases and norms, of one dim, are reduced rightly.
    [gradients] = findings(outcome.report, "gradients", "dp_replicate3")
    assert "so 13 of 35 at this step" in gradients["message"]
