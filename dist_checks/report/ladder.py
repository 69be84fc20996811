"""What a plan would run, as text: the rungs, what each is compared with, what it costs, what is left out and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dist_checks.cost import device_seconds
from dist_checks.report import words
from dist_checks.report.visible import visible


def render(plan: Mapping[str, Any], seconds: Mapping[str, float]) -> str:
    """``plan`` is plan.json's ``{rungs, skipped}``; ``seconds`` what rungs took in the last run, by id."""
    rungs = plan["rungs"]
    worlds = {rung["id"]: int(rung["world_size"]) for rung in rungs}
    width = max((len(rung["id"]) for rung in rungs), default=4)
    lines = [f"{'rung':{width}}  ranks  numbers  device-seconds  compared with"]
    costs = device_seconds(worlds, seconds)
    for rung in rungs:
        id, world = rung["id"], worlds[rung["id"]]
        known = id in seconds
        cost = costs[id]
        with_what = rung["twin_of"] or rung["reference"] or rung["truth"] or ""
        note = "" if rung["planned"] else "  (for blame)"
        shown = f"{cost:.1f}" if known else f"~{cost:.1f}"
        row = f"{visible(id):{width}}  {world:>5}  {rung['precision']:7}  {shown:>14}  {with_what}{note}"
        lines.append(row.rstrip())
    if plan["skipped"]:
        lines += ["", f"left out: {words.count(len(plan['skipped']), 'combination')}"]
        lines += [f"  {skipped['name']}: {visible(skipped['reason'])}" for skipped in plan["skipped"]]
    guessed = sum(id not in seconds for id in worlds)
    basis = "from the last run" if not guessed else f"{guessed} of {len(worlds)} rungs estimated (~)"
    lines += [
        "",
        f"{words.count(len(rungs), 'rung')}, {words.count(sum(worlds.values()), 'process', 'processes')}, "
        f"{sum(costs.values()):.0f} device-seconds, {basis}",
    ]
    return "\n".join(lines)
