"""Where does the computation first differ: block outputs in forward order, then their gradients backwards?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from dist_checks.judging.comparison import Comparison
from dist_checks.judging.differences import findings
from dist_checks.judging.verdict import Finding, Status
from dist_checks.judging.view import RungView
from dist_checks.trace import Kind


def check(view: RungView) -> Iterator[Finding]:
    """Sample by sample; of the first step that differs, the first place that differs."""
    writer = view.writer("forward")
    if refused := writer.incomparable():
        yield refused
        return
    # A stage of a pipeline names its own; the single has them all.
    assert view.yard is not None
    blocks = [str(name) for name in view.yard.trace.header.get("blocks") or ()]
    if not blocks:
        nothing = "no list of blocks was found in the model" if view.own_loop else "the recipe names no blocks"
        yield writer.skipped(nothing)
        return
    place = {name: at for at, name in enumerate(blocks)}
    outputs = _ordered(view.compare(Kind.OUTPUT), place, 1)
    gradients = _ordered(view.compare(Kind.OUTPUT_GRADIENT), place, -1)
    told = list(findings(writer, Kind.OUTPUT, outputs, explained=False))
    if told[0].status is not Status.FAIL and _only_weighted(view, gradients):
        told.append(
            writer.skipped("backward computes the right thing of samples that have other weights: see contributions")
        )
    else:
        told += findings(writer, Kind.OUTPUT_GRADIENT, gradients, explained=False)
    if view.own_loop:
        told = [replace(finding, status=Status.SKIP) if _unrecorded(finding) else finding for finding in told]
    failing = [finding for finding in told if finding.status is Status.FAIL]
    # Both at one step: the output was computed first.
    yield from sorted(failing, key=lambda finding: finding.step or 0)[:1] or told


def _unrecorded(finding: Finding) -> bool:
    """A script's blocks may be cut in ways that nobody has told."""
    return finding.status is Status.INCONCLUSIVE and finding.blames is None


def _only_weighted(view: RungView, found: Comparison) -> bool:
    """Where gradients fail, one factor for each sample undoes it: how samples are weighted is no matter of blocks."""
    bad = found.first_failing()
    if not bad.size or view.yard is None or not np.isfinite(found.scale[bad]).all():
        return False
    mine, yard = view.own.full(Kind.OUTPUT_GRADIENT), view.yard.full(Kind.OUTPUT_GRADIENT)
    a, b = mine.sketch[found.rows[bad]], yard.sketch[found.yard_rows[bad]]
    items = np.unique(mine.item[found.rows[bad]], return_inverse=True)[1].reshape(-1)
    factor = np.bincount(items, np.einsum("ij,ij->i", a, b)) / np.bincount(items, np.square(b).sum(1))
    left = np.linalg.norm(a - factor[items, None] * b, axis=1)
    return bool((left <= np.maximum(np.abs(factor[items]), 1.0) * found.allowed[bad]).all())


def _ordered(found: Comparison, place: dict[str, int], direction: int) -> Comparison:
    """The same with the rows of each step in the order of ``place``, or backwards."""
    ordinal = np.array([direction * place.get(key.name, len(place)) for key in found.keys], np.int64)
    return found.take(np.lexsort((ordinal, found.step)))
