"""Of packed samples: does a document see only itself, and is it the same wherever it stands?"""

from __future__ import annotations

from collections.abc import Iterator

from dist_checks.judging.verdict import Blamed, Finding
from dist_checks.judging.view import RungView
from dist_checks.rung import Role

ROUNDING = 1e-6
DISPLACED = 1e-2
"""Of the change that other tokens make. Relative positions may go on: sines and cosines of thousands of tokens in
float32 are 1e-4 off, which is nothing to what absolute positions do."""


def check(view: RungView) -> Iterator[Finding]:
    """The first document of each packed sample was changed, and the outputs of the others looked at; then the second
    one was put in front of it."""
    writer = view.writer("documents")
    if view.rung.role is not Role.LEARN:
        yield writer.skipped("the rung that learns looks at it")
        return
    found = view.observed("documents")
    if not found or found[0].get("missing"):
        yield writer.skipped("the recipe packs no documents (it has no documents())")
        return
    first, other, moved = found[0]["first"], found[0]["other"], found[0].get("moved")
    fields = {"observed": other, "allowed": ROUNDING * first}
    if not other <= ROUNDING * first:
        yield writer.failed(
            f"changing the first document of a packed sample changes outputs of the others by {other:.2e} (its own by "
            f"{first:.2e})",
            **fields,
            blames=Blamed.RECIPE,
            symptom="documents_mixed",
        )
    elif moved is not None and not moved <= DISPLACED * first:
        yield writer.failed(
            f"the second document of a packed sample has other outputs when it comes first, by {moved:.2e} (other "
            f"tokens change them by {first:.2e}): its positions go on from the document before it",
            observed=moved,
            allowed=DISPLACED * first,
            blames=Blamed.RECIPE,
            symptom="documents_mixed",
            suspects=("positions",),
        )
    else:
        same = "" if moved is None else f"; where it stands changes its own by {moved:.1e}"
        yield writer.passed(f"changing one document changes no output of the others ({other:.1e}){same}", **fields)
