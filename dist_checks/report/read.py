"""report.json, read as a page must: whatever is missing or malformed in it, there is still something to show."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dist_checks.report import words
from dist_checks.report.view import Broken, Finding, Report, Rung, Sensitivity, Series, Share, Skipped
from dist_checks.report.visible import MESSAGE, visible


def read(report: Mapping[str, Any]) -> Report:
    """Never raises for what a report holds or lacks."""
    findings = tuple(_finding(item, f"finding-{index}") for index, item in enumerate(_dicts(report.get("findings")), 1))
    status = _status(report.get("status"))
    return Report(
        status=status,
        sentence=visible(report.get("sentence") or f"{status.upper()} the report has no sentence", limit=MESSAGE),
        blamed=_text(report.get("blamed")),
        broken=tuple(_broken(item, findings) for item in _dicts(report.get("broken"))),
        rungs=tuple(_rungs(report.get("rungs"), findings)),
        findings=findings,
        skipped=tuple(
            Skipped(setting=words.setting(_axes(item.get("axes"))), reason=_message(item.get("reason")))
            for item in _dicts(report.get("skipped"))
        ),
        ablations=tuple(_message(item.get("sentence")) for item in _dicts(report.get("ablations"))),
        accepted=tuple(
            _finding(item, f"accepted-{index}") for index, item in enumerate(_dicts(report.get("accepted")), 1)
        ),
        matrix=_facts(report.get("matrix")),
        plan=_facts(report.get("plan")),
        environment=_facts(report.get("environment")),
    )


def _rungs(value: object, findings: Sequence[Finding]) -> Iterator[Rung]:
    of_rung: dict[str, list[Finding]] = {}
    for finding in findings:
        of_rung.setdefault(finding.rung, []).append(finding)
    keys: set[str] = set()
    for item in _dicts(value):
        id = _text(item.get("id")) or "unnamed"
        yield _rung(item, id, of_rung.pop(id, []), keys)
    for id, left in of_rung.items():  # the run was cut short: nothing that was found may be lost with the rung
        yield _rung({"status": max((f.status for f in left), key=words.STATUSES.index)}, id, left, keys)


def _rung(item: Mapping[str, Any], id: str, findings: list[Finding], keys: set[str]) -> Rung:
    key = "rung-" + re.sub(r"[^A-Za-z0-9_.@+-]+", "-", id)[:60]
    while key in keys:
        key += "-"
    keys.add(key)
    checks = {_text(check): _status(status) for check, status in _dict(item.get("checks")).items()}
    for finding in findings:
        if finding.check not in _dict(item.get("checks")):
            checks[finding.check] = max(checks.get(finding.check, "pass"), finding.status, key=words.STATUSES.index)
    world_size = _number(item.get("world_size"))
    return Rung(
        key=key,
        id=id,
        axes=_axes(item.get("axes")),
        role=_text(item.get("role")),
        precision=_text(item.get("precision")),
        world_size=int(world_size) if world_size is not None and abs(world_size) < 1e9 else None,
        planned=item.get("planned") is not False,
        status=_status(item.get("status")),
        seconds=_number(item.get("seconds")),
        reference=_text(item.get("reference")),
        checks=checks,
        findings=tuple(findings),
        sensitivity=_sensitivity(_dict(item.get("sensitivity"))),
        series=_series(_dict(item.get("series"))),
        contributions=tuple(_shares(item.get("contributions"))),
        health=_dict(item.get("health")),
    )


def _sensitivity(item: Mapping[str, Any]) -> Sensitivity | None:
    if not item:
        return None
    median, coarsest = _dict(item.get("median")), _dict(item.get("coarsest"))
    return Sensitivity(
        half=_number(median.get("scale")),
        coarsest=_number(coarsest.get("scale")),
        tensor=_text(coarsest.get("tensor")),
        sentence=_message(item.get("sentence")),
    )


def _shares(value: object) -> Iterator[Share]:
    samples = _dict(value)
    for id, weight in zip(_list(samples.get("ids")), _list(samples.get("weights")), strict=False):
        yield Share(label=f"sample {_text(id)}".strip(), weight=_number(weight))


def _series(item: Mapping[str, Any]) -> Series | None:
    names = ("loss", "reference_loss", "gradient_distance", "gradient_allowed")
    columns = {name: [_number(value) for value in _list(item.get(name))] for name in names}
    steps: list[float | None] = [_number(value) for value in _list(item.get("steps"))]
    length = max(map(len, columns.values()), default=0)
    if not length:
        return None
    steps += [float(step) for step in range(len(steps), length)]
    padded = {name: tuple(column + [None] * (len(steps) - len(column))) for name, column in columns.items()}
    return Series(
        steps=tuple(steps),
        loss=padded["loss"],
        reference_loss=padded["reference_loss"],
        distance=padded["gradient_distance"],
        allowed=padded["gradient_allowed"],
        tensors=tuple(_text(name) for name in _list(item.get("gradient_tensor"))),
    )


def _finding(item: Mapping[str, Any], key: str) -> Finding:
    return Finding(
        key=key,
        check=_text(item.get("check")) or "unnamed",
        rung=_text(item.get("rung")) or "unnamed",
        status=_status(item.get("status")),
        step=_text(item.get("step")),
        tensor=_text(item.get("tensor")),
        ranks=_ranks(item.get("ranks")),
        hosts=tuple(_text(host) for host in _list(item.get("hosts"))),
        observed=_number(item.get("observed")),
        allowed=_number(item.get("allowed")),
        scale=_number(item.get("scale")),
        cosine=_number(item.get("cosine")),
        truth_ratio=_number(item.get("truth_ratio")),
        message=_message(item.get("message")),
        explanation=_message(item.get("explanation")),
        residual=_pair(item.get("residual")),
        command=visible(item.get("try") or "", limit=MESSAGE),
        suspects=tuple(_message(suspect) for suspect in _list(item.get("suspects"))[:8]),
        change=_message(item.get("next")),
        reason=_message(item.get("reason")),
        until=_text(item.get("until")),
    )


def _broken(item: Mapping[str, Any], findings: Sequence[Finding]) -> Broken:
    rungs = tuple(_text(rung) for rung in _list(item.get("rungs")))
    check, step, tensor = (_text(item.get(name)) for name in ("check", "step", "tensor"))
    ours = [finding for finding in findings if finding.rung in rungs and finding.check == check]
    exact = [finding for finding in ours if (finding.step, finding.tensor) == (step, tensor)]
    return Broken(
        axes=tuple(_text(axis) for axis in _list(item.get("axes"))),
        values=_axes(item.get("values")),
        rungs=rungs,
        check=check,
        step=step,
        tensor=tensor,
        ranks=_ranks(item.get("ranks")),
        explanation=_message(item.get("explanation")),
        residual=_pair(item.get("residual")),
        decided=item.get("decided") is not False,
        finding=next(iter(exact or ours), None),
    )


def _dict(value: object) -> Mapping[str, Any]:
    return {str(key): entry for key, entry in value.items()} if isinstance(value, Mapping) else {}


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else ()


def _dicts(value: object) -> list[Mapping[str, Any]]:
    return [_dict(item) for item in _list(value) if isinstance(item, Mapping)]


def _text(value: object) -> str:
    return "" if value is None else visible(value)


def _message(value: object) -> str:
    return "" if value is None else visible(value, limit=MESSAGE, lines=True).strip()


def _number(value: object) -> float | None:
    """JSON has no nan: it may come as text."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _pair(value: object) -> tuple[float | None, float | None] | None:
    pair = _list(value)
    return (_number(pair[0]), _number(pair[1])) if len(pair) == 2 else None


def _ranks(value: object) -> tuple[int, ...]:
    return tuple(rank for rank in _list(value) if isinstance(rank, int))


def _status(value: object) -> str:
    return value if isinstance(value, str) and value in words.STATUSES else "inconclusive"


def _axes(value: object) -> dict[str, object]:
    return {
        _text(axis): setting if isinstance(setting, (bool, int)) else _text(setting)
        for axis, setting in _dict(value).items()
    }


def _facts(value: object) -> dict[str, str]:
    """For a table: anything nested deeper than a list in the notation of Python."""

    def spell(fact: object) -> str:
        if isinstance(fact, bool):
            return "yes" if fact else "no"
        return _text(fact)

    return {
        _text(name): ", ".join(map(spell, fact[:32])) if isinstance(fact, list) else spell(fact)
        for name, fact in _dict(value).items()
        if fact is not None
    }
