"""Is the loss lower than the data allow?"""

from __future__ import annotations

from collections.abc import Iterator

from dist_checks.judging.heard import curve, next_token, starts_trained
from dist_checks.judging.verdict import Blamed, Finding
from dist_checks.judging.view import RungView
from dist_checks.rung import Role

SHARE = 0.5
"""Of the entropy of a token given the one before it: on text that was never read before, nobody is below that so soon.
Byte-level text has 2.2 nats a pair and 0.7 or so a byte for the best models that there are."""


def check(view: RungView) -> Iterator[Finding]:
    """Near zero on text that the model has not seen: labels that are not shifted, a mask that lets the answer through,
    or validation samples that were trained on."""
    writer = view.writer("too_good")
    if view.rung.role is not Role.LEARN:
        yield writer.skipped("the rung that learns tells")
        return
    train = next((split for split in view.observed("split") if split["split"] == "train"), {})
    bigram = train.get("bigram")
    if (trained := starts_trained(view)) is not False:
        said = "its weights have read" if trained else "nobody knows whether its weights have read"
        yield writer.skipped(f"{said} other text before" + ("" if trained else " (command.starts_trained)"))
        return
    if not next_token(view) or not bigram:
        yield writer.skipped(
            "only of text is it known how good is too good: nothing says that the next token is predicted"
        )
        return
    bound = SHARE * float(bigram)
    found = curve(view)
    events = view.trace.ranks[0].steps if view.trace.ranks else {}
    unread = {f"training loss at step {s}": loss for s, loss in found.items() if events[s].get("epoch", 0) == 0}
    for seen in view.observed("validation"):
        if seen["targets"] and not seen.get("heard"):  # that may be of any samples
            unread[f"validation loss before step {seen['step']}"] = seen["loss_sum"] / seen["targets"]
    if not unread:
        yield writer.unseen("no loss of samples that were not read before was recorded")
        return
    where = min(unread, key=lambda each: unread[each])
    best = unread[where]
    said = f"{where} is {best:.4g}; a token given the one before it has {bigram:.3g} nats"
    if best < bound:
        suspects = _suspects(view)
        yield writer.failed(
            said, observed=best, allowed=bound, blames=Blamed.RECIPE, symptom="too_good", suspects=suspects
        )
    else:
        yield writer.passed(f"{said}, {bound:.3g} would be too good", observed=bound, allowed=best)


def _suspects(view: RungView) -> list[str]:
    for seen in view.observed("alignment"):
        losses = seen.get("losses") or {"1": 0.0}
        if min(losses, key=lambda offset: float(losses[offset])) == "0":
            return ["unshifted"]
    for seen in view.observed("causal"):
        if seen.get("earlier"):
            return ["mask"]
    return ["overlap"]
