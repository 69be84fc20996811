"""Are norms and biases spared from weight decay, where the recipe says so?"""

from __future__ import annotations

from collections.abc import Iterator

from dist_checks.judging.verdict import Blamed, Finding
from dist_checks.judging.view import RungView


def check(view: RungView) -> Iterator[Finding]:
    """Parameters of one dimension in a group with weight decay, by the optimizer's own table."""
    writer = view.writer("weight_decay_groups")
    told = view.recipe.get("command") or view.recipe
    if not told.get("spares_norms"):
        whose, where = ("script", "command.spares_norms") if view.own_loop else ("recipe", "spares_norms")
        yield writer.skipped(f"the {whose} does not say that norms and biases are spared ({where})")
        return
    shapes = {str(row["name"]): row.get("shape") or () for row in view.trace.header.get("parameters") or ()}
    groups = view.trace.header.get("optimizer") or ()
    decayed = [
        str(name)
        for group in groups
        if (group.get("weight_decay") or 0) > 0
        for name in group.get("parameters") or ()
        if name is not None and len(shapes.get(str(name), (1, 1))) < 2
    ]
    if not groups:
        said = "the table of the optimizer was not recorded"
        yield writer.unseen(f"{said}: {view.trace.cut}") if view.trace.cut else writer.skipped(said)
    elif decayed:
        yield writer.failed(
            f"{len(decayed)} norms and biases have weight decay: {', '.join(decayed[:4])}",
            tensor=decayed[0],
            observed=len(decayed),
            allowed=0,
            blames=Blamed.RECIPE,
            symptom="decayed_norms",
        )
    else:
        yield writer.passed("no parameter of one dimension has weight decay", observed=0, allowed=0)
