"""Two implementations of a model: where do they begin to differ? From distances of outputs, module by module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dist_checks.judging.triage import SYMPTOMS
from dist_checks.judging.verdict import Finding, Status

NEAR = 1e-5
"""Relative distance of two float32 outputs that rounding alone explains."""
JUMP = 10.0
"""Times the largest before it."""

SUSPECTS = (
    (("norm", "ln"), "epsilon"),
    (("attn", "attention", "rotary", "rope"), "rotary"),
    (("mlp", "act", "ffn", "feed"), "activation"),
)
"""By what the first module is called that differs; of a module as a whole, when none inside of it does."""


def first_difference(seen: Mapping[str, Any]) -> Finding:
    """Of ``worker.alone.comparing``: the first module whose distance jumps, else the first gradient."""
    rows, gradients = list(seen["modules"]), list(seen["gradients"])
    if not rows:
        return _finding(Status.INCONCLUSIVE, "no module of one is called as one of the other: give a map")
    before = 0.0
    for row in rows:
        distance = float(row["distance"])
        if not distance <= max(NEAR, JUMP * before):
            name = str(row["name"]) or "the model"
            return _finding(
                Status.FAIL,
                f"outputs are equal up to {name}, which is {distance:.2e} apart (before it at most {before:.1e})",
                tensor=name,
                observed=distance,
                suspects=tuple(key for words, key in SUSPECTS if any(word in name.lower() for word in words)),
            )
        before = max(before, distance)
    for row in gradients:
        if not float(row["distance"]) <= 10 * NEAR:
            return _finding(
                Status.FAIL,
                f"outputs are equal, and the gradient of {row['name']} is {row['distance']:.2e} apart",
                tensor=str(row["name"]),
                observed=float(row["distance"]),
            )
    more = (
        f"; {len(seen['unmatched'])} of its weights have no counterpart: give a map of names"
        if seen.get("unmatched")
        else ""
    )
    worst = max(float(row["distance"]) for row in rows)
    return _finding(
        Status.INCONCLUSIVE if seen.get("unmatched") else Status.PASS,
        f"{len(rows)} modules and {len(gradients)} gradients are equal, at most {worst:.1e} apart{more}",
        observed=worst,
    )


def _finding(
    status: Status,
    message: str,
    *,
    tensor: str | None = None,
    observed: float | None = None,
    suspects: tuple[str, ...] = (),
) -> Finding:
    row = SYMPTOMS["not_like_reference"]
    failed = status is Status.FAIL
    return Finding(
        check="models",
        rung="",
        status=status,
        message=message,
        tensor=tensor,
        observed=observed,
        allowed=NEAR,
        symptom=row.name if failed else "",
        suspects=row.ordered(suspects) if failed else (),
        change=row.change if failed else "",
    )
