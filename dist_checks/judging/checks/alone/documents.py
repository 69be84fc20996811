"""Of packed samples: does a document see only itself?"""

from __future__ import annotations

from collections.abc import Iterator

from dist_checks.judging.verdict import Blamed, Finding
from dist_checks.judging.view import RungView
from dist_checks.rung import Role

ROUNDING = 1e-6


def check(view: RungView) -> Iterator[Finding]:
    """The first document of each packed sample was changed, and the outputs of the others looked at."""
    writer = view.writer("documents")
    if view.rung.role is not Role.LEARN:
        yield writer.skipped("the rung that learns looks at it")
        return
    found = view.observed("documents")
    if not found or found[0].get("missing"):
        yield writer.skipped("the recipe packs no documents (it has no documents())")
        return
    first, other = found[0]["first"], found[0]["other"]
    fields = {"observed": other, "allowed": ROUNDING * first}
    if not other <= ROUNDING * first:
        yield writer.failed(
            f"changing the first document of a packed sample changes outputs of the others by {other:.2e} (its own by "
            f"{first:.2e})",
            **fields,
            blames=Blamed.RECIPE,
            symptom="documents_mixed",
        )
    else:
        yield writer.passed(f"changing one document changes no output of the others ({other:.1e})", **fields)
