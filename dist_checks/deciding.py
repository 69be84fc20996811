"""After the ladder: runs the rungs that would decide what is to blame, and judges again, within a budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from dist_checks.axes import Setting
from dist_checks.judging.judge import Judgement, judge
from dist_checks.plan import Plan, Skipped
from dist_checks.rung import Role, Rung


def decide(
    plan: Plan,
    folder: Path,
    *,
    budget: int,
    refuse: Callable[[str, Setting], str],
    run: Callable[[Plan, Sequence[Rung]], None],
) -> Judgement:
    """The judgement with what was added. ``run`` writes the plan and runs the given rungs of it; ``refuse`` says why a
    setting cannot run, or an empty string."""
    while True:
        judgement = judge(folder)
        known = {(skip.recipe, skip.setting) for skip in plan.skipped}
        wanted = [r for r in judgement.deciding if (r.recipe, r.setting) not in known or r.role is Role.TWIN]
        refused = [
            Skipped(setting=rung.setting, reason=why, recipe=rung.recipe)
            for rung in wanted
            if rung.role is Role.RUNG and (why := refuse(rung.recipe, rung.setting))
        ]
        without = {(skip.recipe, skip.setting) for skip in refused}
        more = [r for r in wanted if r.role is Role.TWIN or (r.recipe, r.setting) not in without][:budget]
        if not more:
            return judgement
        budget -= len(more)
        plan = plan.with_more(more, refused)
        run(plan, more)
