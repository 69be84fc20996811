"""In 16 bits: are statistics, softmax, the loss and the optimizer's state still computed in wider numbers?"""

from __future__ import annotations

from collections.abc import Iterator

from dist_checks.judging.tolerance import DTYPE, EPS, eps_of
from dist_checks.judging.verdict import Finding
from dist_checks.judging.view import RungView
from dist_checks.trace import Kind

AUTOCAST = ("bf16", "fp16")
SURELY = ("_log_softmax", "nll_loss_forward", "rsqrt", "var", "var_mean")
"""Of a loss, and of the statistics of a norm; not of any sum or mean that a model takes."""
WORDS = {"_log_softmax": "log_softmax", "nll_loss_forward": "the loss"}


def check(view: RungView) -> Iterator[Finding]:
    """By the operations that were dispatched in the first step, whatever the modules are called."""
    writer = view.writer("fp32_islands")
    if EPS[DTYPE[view.rung.precision]] <= EPS["float32"]:
        yield writer.skipped(f"{view.rung.precision} is not narrow")
        return
    if view.rung.precision not in AUTOCAST:
        yield writer.skipped("parameters in 16 bits: what is computed from them alone is as narrow as they are")
        return
    ranks = view.trace.ranks
    islands = ranks[0].evidence.get("islands") if ranks else None
    if islands is None or not ranks[0].evidence.get("narrowed"):
        yield writer.skipped("operations are recorded by singles that are not compiled")
        return
    narrow = [each for each in islands if eps_of(each["dtype"]) > EPS["float32"]]
    if view.own_loop:  # which may take a mean of what it likes
        narrow = [each for each in narrow if each["operation"] in SURELY]
    state = [e.name for e in ranks[0].entries.values() if e.kind is Kind.STATE and eps_of(e.dtype) > EPS["float32"]]
    if narrow:
        first = narrow[0]
        names = sorted({f"{_words(each['operation'])} in {each['module'] or 'the loss'}" for each in narrow})
        yield writer.failed(
            f"computed in {first['dtype']}: {', '.join(names[:4])}",
            step=0,
            tensor=first["module"] or None,
            observed=len(narrow),
            allowed=0,
            symptom="narrow_islands",
            suspects=("manual",),
        )
    elif state:
        yield writer.failed(
            f"{len(state)} states of the optimizer are in 16 bits: {', '.join(state[:3])}",
            tensor=state[0],
            observed=len(state),
            allowed=0,
            symptom="narrow_islands",
            suspects=("cast",),
        )
    else:
        yield writer.passed(f"{len(islands)} sums, means and losses are in float32 or wider", observed=0, allowed=0)


def _words(operation: str) -> str:
    return WORDS.get(operation, operation)
