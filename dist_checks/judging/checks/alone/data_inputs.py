"""Are continuous inputs normalised, and do they not hold the label?"""

from __future__ import annotations

from collections.abc import Iterator

from dist_checks.judging.checks.alone.splits import split, unsplit
from dist_checks.judging.verdict import Blamed, Finding
from dist_checks.judging.view import RungView

FAR, WIDE, NARROW = 5.0, 10.0, 0.02
"""Mean from zero, and standard deviation."""
CONSTANT = 0.9
"""Share of features that never change."""


def check(view: RungView) -> Iterator[Finding]:
    """Of all features of all training samples together."""
    writer = view.writer("data_inputs")
    if (finding := unsplit(view, writer)) is not None:
        yield finding
        return
    train = split(view, "train")
    if leaks := train.get("leaks"):
        yield writer.failed(
            f"column {leaks[0]} of the inputs tells the label of every sample",
            observed=len(leaks),
            allowed=0,
            blames=Blamed.RECIPE,
            symptom="label_leak",
        )
        return
    features = train.get("features")
    if not features:
        yield writer.skipped("inputs are tokens")
        return
    mean, std, constant = features["mean"], features["std"], features["constant"]
    said = f"inputs have mean {mean:.3g} and standard deviation {std:.3g}; {constant:.0%} of the features never change"
    wrong = {"blames": Blamed.RECIPE, "symptom": "inputs_wide"}
    far = abs(mean) > FAR or not NARROW <= std <= WIDE
    if far and view.own_loop:
        yield writer.skipped(f"{said}: it is for the model to normalise them, if nothing else does")
    elif far:
        yield writer.failed(said, **wrong, observed=max(abs(mean), std), allowed=WIDE)
    elif constant > CONSTANT:
        yield writer.failed(said, **wrong, observed=constant, allowed=CONSTANT, suspects=("constant",))
    else:
        yield writer.passed(said, observed=std, allowed=WIDE)
