"""The table of rungs that goes into a page of somebody's own."""

from __future__ import annotations

from dist_checks.report import table

REPORT = {
    "status": "pass",
    "sentence": "PASS 2 rungs equal to one device",
    "rungs": [
        {"id": "tp2", "status": "pass", "precision": "fp64", "world_size": 2, "seconds": 1.25},
        {"id": "tp2+bf16", "status": "pass", "precision": "bf16", "world_size": 2, "seconds": None},
        {"id": "tp|4", "status": "inconclusive"},
    ],
    "findings": [
        {"check": "loss", "rung": "tp2", "status": "pass", "observed": 0.5, "message": ""},
        {"check": "gradients", "rung": "tp2", "status": "pass", "observed": 3.21e-15, "message": ""},
        {"check": "gradients", "rung": "tp2+bf16", "status": "pass", "observed": 1e-3, "truth_ratio": 1.461},
    ],
}


def test_a_row_a_rung() -> None:
    lines = table.render(REPORT).splitlines()
    assert lines[0].startswith("| rung | ranks |")
    assert lines[2:] == [
        "| tp2 | 2 | fp64 | pass | 3.2e-15 |  | 1.2 |",
        "| tp2+bf16 | 2 | bf16 | pass | 0.001 | 1.46 |  |",
        "| tp\\|4 |  |  | inconclusive | - |  |  |",
    ]
