"""Does the loss compare each output with the next token?"""

from __future__ import annotations

from collections.abc import Iterator

from dist_checks.judging.checks.alone.causal import ROUNDING
from dist_checks.judging.heard import UNHEARD, heard, offset
from dist_checks.judging.verdict import Blamed, Finding
from dist_checks.judging.view import RungView, Writer
from dist_checks.rung import Role

WORDS = {0: "the token itself", 1: "the next token", 2: "the token after the next", 3: "the third token from it"}
SUSPECT = {0: "unshifted", 2: "twice", 3: "twice"}
RIGHT = 1
SURE = 0.5
"""Of the loss of the worst guess: what foretells the targets is far below."""


def check(view: RungView) -> Iterator[Finding]:
    """Outputs that foretell the token at some offset were put in the place of the model's: the loss has to be lowest
    for the next one, wherever labels are shifted, in the data or in the loss."""
    writer = view.writer("alignment")
    if view.rung.role is not Role.LEARN:
        yield writer.skipped("the rung that learns looks at it")
        return
    if view.own_loop:
        yield _of_script(view, writer)
        return
    if not view.recipe.get("next_token"):
        yield writer.skipped("the recipe does not say that it predicts the next token")
        return
    found = view.observed("alignment")
    if not found or found[0].get("missing"):
        yield writer.unseen("outputs are no logits for each token")
        return
    losses = {int(offset): float(loss) for offset, loss in found[0]["losses"].items()}
    best = min(losses, key=lambda offset: losses[offset])
    said = f"outputs that foretell {WORDS[best]} have a loss of {losses[best]:.3g}"
    if losses[best] > SURE * max(losses.values()):
        yield writer.failed(
            f"no offset of the tokens is what the loss wants: the best has {losses[best]:.3g}, the worst "
            f"{max(losses.values()):.3g}",
            observed=losses[best],
            allowed=SURE * max(losses.values()),
            blames=Blamed.RECIPE,
            symptom="alignment",
            suspects=("none",),
        )
    elif best != RIGHT:
        yield writer.failed(
            f"the loss wants {WORDS[best]}, not the next one: {said}, those that foretell the next {losses[RIGHT]:.3g}",
            observed=best,
            allowed=RIGHT,
            blames=Blamed.RECIPE,
            symptom="alignment",
            suspects=(SUSPECT[best],),
        )
    else:
        others = min(loss for offset, loss in losses.items() if offset != RIGHT)
        yield writer.passed(f"{said}, any other offset {others:.3g} or more", observed=best, allowed=RIGHT)


def _of_script(view: RungView, writer: Writer) -> Finding:
    """The targets of its loss, beside the tokens that its model was called with."""
    told, found = heard(view), offset(view)
    if not told:
        return writer.skipped(UNHEARD)
    if found is None:
        return writer.skipped("targets are not tokens of the sample")
    said = f"{told['offsets'][str(found)]:.0%} of the targets are {WORDS[found]}"
    if found == RIGHT:
        return writer.passed(said, observed=found, allowed=RIGHT)
    seen = next(iter(view.observed("causal")), {})
    if not seen.get("later") or seen["earlier"] > ROUNDING * seen["later"]:
        return writer.skipped(f"{said}: the model sees later tokens, so that is as good a task as any")
    return writer.failed(
        f"{said}, and the model sees no later token: it is to foretell the next one",
        observed=found,
        allowed=RIGHT,
        blames=Blamed.RECIPE,
        symptom="alignment",
        suspects=(SUSPECT[found],),
    )
