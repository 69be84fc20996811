"""Is every class told apart from the others?"""

from __future__ import annotations

from collections.abc import Iterator

from dist_checks.judging.verdict import Blamed, Finding
from dist_checks.judging.view import RungView
from dist_checks.rung import Role

FEWEST_STEPS = 50
ENOUGH = 4
"""Targets of a class, below which it says nothing that the model misses all of them."""
HALF = 0.5
"""Of what each class would have if all were as frequent."""
LEARNED = 0.5
"""Share of all targets that has to be right before one class is expected to be."""


def check(view: RungView) -> Iterator[Finding]:
    """After learning, on samples that were held out where there are any: a class that is never right, while most others
    are, has something wrong with its labels. A low loss hides it."""
    writer = view.writer("classes")
    if view.rung.role is not Role.LEARN or view.rung.steps < FEWEST_STEPS:
        yield writer.skipped("a run that learns for a while tells")
        return
    found = next(iter(view.observed("classes")), None)
    if found is None or found.get("missing"):
        whose = "script" if view.own_loop else "recipe"
        yield writer.skipped(f"the {whose} foretells tokens, or has no classes to count")
        return
    counts, right, names = found["counts"], found["right"], found["names"]
    total = sum(counts)
    share = sum(right) / total if total else 0.0
    # What a script trains on may have classes that are rare, and not learned yet.
    enough = ENOUGH if not view.own_loop else max(ENOUGH, HALF * total / len(names))
    never = [at for at, count in enumerate(counts) if count >= enough and not right[at]]
    said = f"{share:.0%} of {total} targets are right"
    if never and share > LEARNED:
        at = never[0]
        taken = [(count, guess) for label, guess, count in found["confusion"] if label == at]
        rest = f", {max(taken)[0]} times taken for {names[max(taken)[1]]}" if taken else ""
        yield writer.failed(
            f"{said}, and none of the {counts[at]} of {names[at]}{rest}",
            observed=0,
            allowed=counts[at],
            blames=Blamed.RECIPE,
            symptom="class_never_right",
        )
        return
    seen = [at for at, count in enumerate(counts) if count]
    worst = min(seen, key=lambda at: right[at] / counts[at], default=None)
    more = f"; fewest of {names[worst]}, {right[worst]} of {counts[worst]}" if worst is not None else ""
    yield writer.passed(f"{said}{more}", observed=share)
