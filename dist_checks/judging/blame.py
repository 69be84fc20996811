"""From what each rung did to the verdict: what is to blame, in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from dist_checks.axes import SPEC, Axis
from dist_checks.judging.court import Court
from dist_checks.judging.outcome import Outcome
from dist_checks.judging.verdict import Blamed, Broken, Status, Verdict
from dist_checks.rung import Role, Rung

LADDER = (Role.SINGLE, Role.RUNG)
"""What neighbours are looked for among."""

NOTHING_COMPARED = "INCONCLUSIVE one device alone: there was nothing to compare it with"


def blame(outcomes: Sequence[Outcome]) -> Verdict:
    """The verdict over all rungs of a run."""
    court = Court(outcomes)
    accused = [*court.recipe(), *court.launcher(), *court.counted()]
    # Reruns that end otherwise on another host are no race where failures follow a host.
    host = court.host()
    if not host:
        accused += court.races()
        host = court.host()
    broken = () if host else tuple(court.axes())
    accused += host + [(Blamed.AXIS, _words(each, outcomes)) for each in broken]
    failed = any(outcome.status is Status.FAIL for outcome in outcomes)
    if failed:
        # A failure that nobody is accused of is still one.
        blamed = accused[0][0] if accused else None
        words = "; ".join(words for _, words in accused) or _list_failures(outcomes)
        return Verdict(status=Status.FAIL, sentence=f"FAIL broken: {words}", blamed=blamed, broken=broken)
    return _not_failed(outcomes)


def _words(broken: Broken, outcomes: Sequence[Outcome]) -> str:
    """``tp (alone)``, ``dp_replicate x accum (only together)``, ``tp (alone; 4 fails, 2 passes)``."""
    name = " x ".join(
        SPEC[axis].word(value) if axis is Axis.CUSTOM else axis.value for axis, value in broken.setting.items()
    )
    notes = ["alone" if len(broken.setting) == 1 else "only together"]
    choices = [str(value) for axis, value in broken.setting.numerics.items() if SPEC[axis].takes == "choice"]
    notes += [f"in {value}" for value in choices]
    smallest = next(o.rung for o in outcomes if o.rung.id == broken.first.rung)
    same = [o for o in outcomes if o.rung.recipe == smallest.recipe]
    if not broken.decided:
        notes = [f"not decided: {_undecided(broken, same)}"]
    if len(broken.setting) == 1:
        notes += _degrees(broken, same)
    notes += _recipes(broken, smallest, outcomes)
    if broken.first.check == "evaluation":
        notes.append("what is evaluated, not what is trained")
    return f"{name} ({'; '.join(notes)})"


def _recipes(broken: Broken, smallest: Rung, outcomes: Sequence[Outcome]) -> list[str]:
    """Where one recipe fails and another passes with all the same axes on."""
    there = [o for o in outcomes if o.rung.setting == smallest.setting and o.rung.role in LADDER]
    passing = [o.rung.id for o in there if o.rung.recipe != smallest.recipe and o.status is Status.PASS]
    failing = {o.rung.recipe for o in outcomes if o.rung.id in broken.rungs}
    return [f"{smallest.id} fails, {passing[0]} passes"] if passing and failing == {smallest.recipe} else []


def _undecided(broken: Broken, outcomes: Sequence[Outcome]) -> str:
    """Which neighbours would have decided."""
    by_setting = {o.rung.setting: o for o in outcomes if o.rung.role in LADDER}
    smallest = next(o.rung for o in outcomes if o.rung.id == broken.first.rung)
    of_recipe = f"@{smallest.recipe}" if smallest.recipe else ""
    missing = []
    for near in smallest.setting.neighbours().values():
        outcome = by_setting.get(near)
        if outcome is None:
            missing.append(f"{near.name}{of_recipe} was not run: it would decide")
        elif outcome.status is not Status.PASS:
            again = "" if outcome.status is Status.FAIL else ": run again, it would decide"
            missing.append(f"{near.name}{of_recipe} is {outcome.status}{again}")
    return ", ".join(missing) or "its reruns disagree"


def _degrees(broken: Broken, outcomes: Sequence[Outcome]) -> list[str]:
    """Where it depends on the degree: which fail and which pass, all else being equal."""
    ((axis, _),) = broken.setting.items()
    failing = next(o.rung.setting for o in outcomes if o.rung.id == broken.first.rung)
    found: dict[Status, list[str]] = {}
    for outcome in outcomes:
        setting = outcome.rung.setting
        if axis in setting and outcome.rung.role is not Role.TWIN and setting.without(axis) == failing.without(axis):
            values = found.setdefault(outcome.status, [])
            if str(setting[axis]) not in values:
                values.append(str(setting[axis]))
    passing = [value for value in found.get(Status.PASS, ()) if value not in found.get(Status.FAIL, ())]
    if SPEC[axis].takes != "degree" or not passing:
        return []
    fails, passes = sorted(found[Status.FAIL], key=int), sorted(passing, key=int)
    return [
        f"{' and '.join(fails)} {'fail' if len(fails) > 1 else 'fails'}, {' and '.join(passes)} "
        f"{'pass' if len(passes) > 1 else 'passes'}"
    ]


def _list_failures(outcomes: Sequence[Outcome]) -> str:
    failed = [o for o in outcomes if o.status is Status.FAIL]
    return ", ".join(f"{o.rung.id} ({o.first.check if o.first else ''})" for o in failed)


def _not_failed(outcomes: Sequence[Outcome]) -> Verdict:
    rungs = [o for o in outcomes if o.rung.role is Role.RUNG]
    passed = [o for o in rungs if o.status is Status.PASS]
    open_ = [o for o in outcomes if o.status is not Status.PASS and (o.rung.planned or o.rung.role is not Role.RUNG)]
    unread = [o for o in open_ if o.status is Status.SKIP and o.unread]
    open_ = [o for o in open_ if o not in unread]
    compared = [o for o in outcomes if o.rung.role is Role.SINGLE and o.rung.truth is not None]
    if not outcomes:
        return Verdict(status=Status.INCONCLUSIVE, sentence="INCONCLUSIVE no rung was run", blamed=None, broken=())
    if open_:
        blames = {o.first.blames for o in open_ if o.first is not None}
        blamed = Blamed.NOT_COMPARABLE if Blamed.NOT_COMPARABLE in blames else None
        what = "; ".join(f"{o.rung.id} ({_why_open(o)})" for o in open_[:3])
        more = f" and {len(open_) - 3} more" if len(open_) > 3 else ""
        sentence = f"INCONCLUSIVE {len(passed)} of {_count(rungs)} equal to one device; not decided: {what}{more}"
        return Verdict(status=Status.INCONCLUSIVE, sentence=sentence, blamed=blamed, broken=())
    if passed:
        others = f"; not read: {', '.join(o.rung.id for o in unread)}" if unread else ""
        sentence = f"PASS {_count(passed)} equal to one device{others}"
        return Verdict(status=Status.PASS, sentence=sentence, blamed=None, broken=())
    zero = [o for o in outcomes if o.rung.is_zero]
    if zero and not compared:
        sentence = f"PASS one device is healthy ({', '.join(o.rung.id for o in zero)})"
        return Verdict(status=Status.PASS, sentence=sentence, blamed=None, broken=())
    if compared:
        sentence = f"PASS {_count(compared, 'single')} equal to float64 up to rounding"
        return Verdict(status=Status.PASS, sentence=sentence, blamed=None, broken=())
    return Verdict(status=Status.INCONCLUSIVE, sentence=NOTHING_COMPARED, blamed=None, broken=())


def _why_open(outcome: Outcome) -> str:
    first = outcome.first
    if first is None:
        return "nothing was checked"
    return "not comparable" if first.blames is Blamed.NOT_COMPARABLE else first.check


def _count(outcomes: Sequence[Outcome], noun: str = "rung") -> str:
    return f"{len(outcomes)} {noun}{'s' * (len(outcomes) != 1)}"
