"""A rung of the tiny world with one thing wrong, judged: what the tests of checks share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tampering import Tamper
from tiny_world import World, make_run, rung

from dist_checks.judging.judge import Judgement, judge
from dist_checks.judging.verdict import Finding, Status
from dist_checks.trace import Chain

TP, DP, SHARD, SP, ACCUM = {"tp": 2}, {"dp_replicate": 3}, {"dp_shard": 2}, {"tp": 2, "sp": True}, {"accum": 3}
ALL = {"dp_replicate": 3, "tp": 2, "accum": 2}
ORDER = [World(rung(), Path("unused")).ids(step)[1] for step in range(4)]
"""The samples of each step, over all ranks."""


def rewrite(events: Path, old: str, new: str) -> None:
    """Replaces text in a file of events and signs its lines again: what a rank would have written."""
    read, write = Chain(events), Chain(events)
    lines = [read.check(line).decode().replace(old, new) for line in events.read_bytes().splitlines()]
    events.write_text("".join(map(write.sign, lines)))


def of(judgement: Judgement, rung: str, check: str) -> list[Finding]:
    return [finding for finding in judgement.findings if finding.rung == rung and finding.check == check]


def judged(tmp_path: Path, setting: Mapping[str, Any], tamper: Tamper, **options: Any) -> tuple[Judgement, str]:
    steps = options.pop("steps", 4)
    precision = setting.get("precision")
    singles = [rung(steps=steps)] + ([rung({"precision": precision}, steps=steps)] if precision else [])
    broken = rung(setting, steps=steps)
    rungs = singles if broken.id in [single.id for single in singles] else [*singles, broken]
    return judge(make_run(tmp_path / "run", rungs, {broken.id: tamper}, **options)), broken.id


def sees(tmp_path: Path, check: str, setting: Mapping[str, Any], tamper: Tamper, **options: Any) -> Finding:
    """The failing finding of ``check``."""
    judgement, id = judged(tmp_path, setting, tamper, **options)
    found = of(judgement, id, check)
    assert next(finding.status for finding in found) is Status.FAIL, found
    assert found[0].try_next.startswith(f"dist-checks run -k {id} --steps ")
    return found[0]
