"""Does every parameter that is trained get a gradient?"""

from __future__ import annotations

from collections.abc import Iterator

from dist_checks.judging.verdict import Blamed, Finding
from dist_checks.judging.view import RungView
from dist_checks.trace import Kind


def check(view: RungView) -> Iterator[Finding]:
    """One that is not zero, in any recorded step. No gradient at all: the graph was cut, or the module is not used."""
    writer = view.writer("grads_reach")
    gradients = view.own.full(Kind.GRADIENT)
    rows = view.trace.header.get("parameters") or ()
    trained = [str(row["name"]) for row in rows if row.get("trainable", True) and not row.get("tied")]
    if not len(gradients) or not trained:
        said = "no gradients were recorded"
        yield writer.unseen(f"{said}: {view.trace.cut}") if view.trace.cut else writer.skipped(said)
        return
    there, some = set(gradients.names), set[str]()
    for tensor, squares, bad in zip(gradients.tensor, gradients.sum_squares, gradients.nonfinite, strict=True):
        if squares > 0 or bad:
            some.add(gradients.names[tensor])
    missing = [name for name in trained if name not in there]
    zero = [name for name in trained if name in there and name not in some]
    unread = {str(each["name"]) for each in view.trace.ranks[0].evidence.get("unrecorded") or ()}
    missing = [name for name in missing if name not in unread]
    if missing or zero:
        names = missing or zero
        what = "have no gradient at all" if missing else "have a gradient of zero in every step"
        yield writer.failed(
            f"{len(names)} of {len(trained)} parameters {what}: {', '.join(names[:4])}"
            f"{' and others' if len(names) > 4 else ''}",
            tensor=names[0],
            observed=len(names),
            allowed=0,
            blames=Blamed.RECIPE,
            symptom="gradient_missing",
            suspects=("detached",) if missing else ("dead", "zero") if _rectified(names) else ("detached", "zero"),
        )
        return
    yield writer.passed(f"each of {len(trained)} parameters has a gradient", observed=0, allowed=0)


def _rectified(names: list[str]) -> bool:
    """Matrix and bias of one layer together: what follows it is off."""
    layers = {name.rpartition(".")[0] for name in names}
    return all(f"{layer}.weight" in names and f"{layer}.bias" in names for layer in layers)
