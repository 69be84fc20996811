"""What two runs of one matrix must agree in, wherever they ran."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from dist_checks.judging.reading import read
from dist_checks.trace import Kind


def essence(run: Path) -> dict[str, Any]:
    """Statuses, what is broken, and for each rung a digest of the fingerprints of its final weights on every rank."""
    report = json.loads((run / "report.json").read_text())
    return {
        "status": report["status"],
        "blamed": report["blamed"],
        "broken": sorted(
            json.dumps([broken["axes"], broken["values"], broken["rungs"]]) for broken in report["broken"]
        ),
        "statuses": {rung["id"]: rung["status"] for rung in report["rungs"]},
        "weights": {rung["id"]: _weights(run / "rungs" / rung["id"], rung["world_size"]) for rung in report["rungs"]},
    }


def _weights(rung: Path, world_size: int) -> str:
    trace = read(rung, world_size)
    seen = []
    for rank in trace.ranks:
        last = max(rank.steps, default=-1)
        for step, entry, fingerprint in zip(
            rank.digests.step.tolist(), rank.digests.entry.tolist(), rank.digests.fingerprint.tolist(), strict=True
        ):
            if step == last and rank.entries[entry].kind is Kind.WEIGHT:
                seen.append((rank.rank, rank.entries[entry].name, fingerprint))
    assert seen, rung
    return hashlib.sha256(json.dumps(sorted(seen)).encode()).hexdigest()[:16]


def hosts(run: Path) -> dict[str, list[str]]:
    """By rung, the host of each rank, as its trace names it."""
    found = {}
    for rung in sorted(path for path in (run / "rungs").iterdir() if path.is_dir()):
        exit = json.loads((rung / "exit.json").read_text())
        if exit["hosts"]:
            trace = read(rung, len(exit["hosts"]))
            assert [trace.hosts[rank] for rank in range(len(exit["hosts"]))] == exit["hosts"], rung
        found[rung.name] = exit["hosts"]
    return found
