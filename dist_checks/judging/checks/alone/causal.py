"""Does an output depend on the tokens before it, and on none after it?"""

from __future__ import annotations

from collections.abc import Iterator

from dist_checks.judging.heard import next_token
from dist_checks.judging.verdict import Blamed, Finding
from dist_checks.judging.view import RungView
from dist_checks.rung import Role

ROUNDING = 1e-6
"""Of the largest change: kernels may add in another order."""


def check(view: RungView) -> Iterator[Finding]:
    """Tokens were changed, and the outputs looked at: asked of the model itself, before it has learned anything."""
    writer = view.writer("causal")
    if view.rung.role is not Role.LEARN:
        yield writer.skipped("the rung that learns looks at it")
        return
    found = view.observed("causal")
    if not found or found[0].get("missing"):
        yield writer.skipped("outputs are not one for each token")
        return
    at, earlier, later, back = (found[0][name] for name in ("at", "earlier", "later", "back"))
    fields = {"observed": earlier, "allowed": ROUNDING * later, "blames": Blamed.RECIPE}
    if not later > 0:
        yield writer.failed(
            f"changing the tokens after position {at} changes no output: the model does not see its inputs",
            **fields,
            symptom="inputs_ignored",
            suspects=("cut",),
        )
    elif next_token(view) and not earlier <= ROUNDING * later:
        yield writer.failed(
            f"changing the tokens after position {at} changes outputs up to there by {earlier:.2e}, those after it by "
            f"{later:.2e}: the model sees what it has to foretell",
            **fields,
            symptom="future_seen",
        )
    elif not back > ROUNDING * later and view.own_loop and not next_token(view):
        yield writer.skipped("each output depends on its own token only, which may be all that the script wants")
    elif not back > ROUNDING * later:
        yield writer.failed(
            f"changing the tokens before position {at} changes the output there by {back:.2e} only: no token reaches "
            "the outputs of others",
            observed=back,
            allowed=ROUNDING * later,
            blames=Blamed.RECIPE,
            symptom="inputs_ignored",
        )
    elif not next_token(view):
        yield writer.passed(f"tokens before position {at} reach the output there ({back:.2e})")
    else:
        yield writer.passed(
            f"tokens after position {at} change no output up to there ({earlier:.1e}); those before it do ({back:.2e})",
            observed=earlier,
            allowed=ROUNDING * later,
        )
