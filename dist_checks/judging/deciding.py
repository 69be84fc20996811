"""Which further rungs would decide what is to blame: reruns of what failed, and neighbours that were not run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dist_checks.axes import Axis, Setting
from dist_checks.judging.court import Court
from dist_checks.judging.outcome import Outcome
from dist_checks.judging.verdict import Blamed, Finding, Status
from dist_checks.rung import Role, Rung

AGAIN = "@again"


def deciding(outcomes: Sequence[Outcome]) -> tuple[Rung, ...]:
    """Rungs that are not in the plan and would decide, the most telling first; of a neighbour whose single is missing,
    the single before it. Empty where everything is decided, or nothing above a broken single could be."""
    court = Court(outcomes)
    for accuse in (court.recipe, court.launcher, court.races):
        accuse()
    known = {outcome.rung.id: outcome.rung for outcome in outcomes}
    again = {outcome.rung.twin_of for outcome in outcomes if outcome.rung.role is Role.TWIN and not outcome.rung.cold}
    wanted: dict[str, Rung] = {}
    for repeated in _to_repeat(outcomes, court):
        if repeated.id not in again:
            rerun = replace(repeated, id=f"{repeated.id}{AGAIN}", role=Role.TWIN, twin_of=repeated.id, planned=False)
            wanted[rerun.id] = rerun
    for outcome in court.smallest():
        for near in court.unknown(outcome):
            for rung in _neighbour(outcome.rung, near, known):
                wanted[rung.id] = rung
    return tuple(rung for id, rung in wanted.items() if id not in known)


def _to_repeat(outcomes: Sequence[Outcome], court: Court) -> Iterator[Rung]:
    """What may be a race: the smallest failing rung of each set, and a rung that its cold twin does not repeat."""
    by_id = {outcome.rung.id: outcome.rung for outcome in outcomes}
    for outcome in outcomes:
        rung = outcome.rung
        if rung.cold and rung.twin_of in by_id and any(_differs(finding) for finding in outcome.findings):
            yield by_id[rung.twin_of]
    for outcome in court.smallest():
        first = outcome.first
        # What waits for ever is not run again: it would wait for ever, and leaves little to compare.
        if first is not None and first.blames is not Blamed.LAUNCHER and not outcome.hung:
            yield outcome.rung


def _differs(finding: Finding) -> bool:
    return finding.check == "twins" and finding.status is not Status.PASS and finding.observed is not None


def _neighbour(rung: Rung, near: Setting, known: dict[str, Rung]) -> Iterator[Rung]:
    """The same rung with other axes on, and its single where that was not run."""
    suffix = rung.id.removeprefix(rung.setting.name)
    same = (r for r in known.values() if r.seed == rung.seed and r.recipe == rung.recipe)
    truth = next((known[r.truth] for r in same if r.truth in known), None)
    plain = "fp32" if truth is not None and truth.setting else "fp64"

    def made(setting: Setting, **fields: object) -> Rung:
        made = replace(rung, id=setting.name + suffix, setting=setting, planned=False, **fields)  # type: ignore[arg-type]
        cold = rung.cold and Axis.CUSTOM in setting
        restarts = rung.restarts if Axis.RESUME in setting else ()
        return replace(made, precision=str(setting.get(Axis.PRECISION, plain)), cold=cold, restarts=restarts)

    reference = known.get(str(rung.reference))
    # A custom axis with numbers of its own is on in the single as well.
    own = {Axis.CUSTOM: reference.setting.get(Axis.CUSTOM, "")} if reference is not None and Axis.CUSTOM in near else {}
    numerics = Setting({**near.numerics, **own})
    single = numerics.name + suffix
    if single not in known:
        yield made(numerics, role=Role.SINGLE, reference=None)
    if near != numerics:
        yield made(near, role=Role.RUNG, reference=single)
