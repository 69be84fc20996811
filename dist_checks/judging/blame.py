"""From what each rung did to what is to blame: minimal sets of axes, or a host, the launcher, a race, the recipe."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from dist_checks.axes import SPEC, Axis, Setting
from dist_checks.judging.checks import CHECKS
from dist_checks.judging.verdict import Blamed, Broken, Finding, Status, Verdict
from dist_checks.rung import Role, Rung

ORDER = {name: at for at, (name, _) in enumerate(CHECKS)}
"""Cause before effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one rung."""

    rung: Rung
    findings: tuple[Finding, ...]
    hosts: tuple[str, ...] = ()

    @property
    def status(self) -> Status:
        """SKIP only where nothing at all was judged; one thing that could not be seen makes it INCONCLUSIVE."""
        return rung_status(finding.status for finding in self.findings)

    @property
    def first(self) -> Finding | None:
        """The finding that explains the status best: the earliest, of one step the first cause."""
        wanted = [finding for finding in self.findings if finding.status is self.status]
        if self.status is not Status.FAIL:
            # What was not seen is due to what did not happen: a lost job, other initial weights.
            return min(wanted, key=lambda f: (f.blames is None, f.check != "completes", *_when(f)), default=None)
        first = min(wanted, key=_when)
        if first.explanation is not None:
            return first
        # What repairs the tensors of the same step says more than the bare first finding.
        same = (f for f in wanted if f.explanation is not None and f.step == first.step)
        explained = min(same, key=_when, default=None)
        return first if explained is None else replace(first, explanation=explained.explanation)


def rung_status(statuses: Iterable[Status]) -> Status:
    found = set(statuses)
    order = (Status.FAIL, Status.INCONCLUSIVE, Status.PASS, Status.SKIP)
    return next((status for status in order if status in found), Status.INCONCLUSIVE)


def _when(finding: Finding) -> tuple[float, int]:
    # What names no step is true of the whole run; that a run did not complete is the last thing that happens in it.
    step = math.inf if finding.check == "completes" else -2 if finding.step is None else finding.step
    return step, ORDER.get(finding.check, len(ORDER))


def blame(outcomes: Sequence[Outcome]) -> Verdict:
    """The verdict over all rungs of a run."""
    court = _Court(outcomes)
    accused = [
        *court.recipe(),
        *court.launcher(),
        *court.races(),
    ]
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


Accusation = tuple[Blamed, str]


class _Court:
    """Who is accused. Each rung that is taken for a race or a fault of the launcher says nothing about axes, nor does
    any of a recipe whose single cannot be trusted."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self._by_id = {outcome.rung.id: outcome for outcome in outcomes}
        self._twins = [outcome for outcome in outcomes if outcome.rung.role is Role.TWIN]
        self._others = [outcome for outcome in outcomes if outcome.rung.role is not Role.TWIN]
        self._singles = [outcome for outcome in self._others if outcome.rung.role is Role.SINGLE]
        self._excused: set[str] = set()
        self._shaken: set[str] = set()

    def recipe(self) -> list[Accusation]:
        """One device alone is wrong, in float64 as well: nothing above it can be trusted."""
        wrong = []
        for outcome in self._singles:
            first = outcome.first
            if outcome.status is not Status.FAIL or first is None or first.blames in (Blamed.LAUNCHER, Blamed.RACE):
                continue
            if outcome.rung.truth is None:
                wrong.append(
                    f"the recipe on one device ({first.check} of {outcome.rung.id}), so nothing above it counts"
                )
                self._shaken.add(outcome.rung.recipe)
        return [(Blamed.RECIPE, words) for words in wrong[:1]]

    def launcher(self) -> list[Accusation]:
        wrong = []
        for outcome in self._others:
            first = outcome.first
            if outcome.status is Status.FAIL and first is not None and first.blames is Blamed.LAUNCHER:
                self._excused.add(outcome.rung.id)
                wrong.append(f"the launcher ({first.check} of {outcome.rung.id})")
        for outcome in self._twins:
            if self._blamed_twin(outcome) is Blamed.LAUNCHER:
                wrong.append(f"the launcher ({outcome.rung.id} computes something else than {outcome.rung.twin_of})")
        return [(Blamed.LAUNCHER, words) for words in wrong[:1]]

    def races(self) -> list[Accusation]:
        wrong = []
        for outcome in self._twins:
            if self._blamed_twin(outcome) is not Blamed.RACE:
                continue
            first, repeated = outcome.first, str(outcome.rung.twin_of)
            assert first is not None
            self._excused.add(repeated)
            self._shaken.update(single.rung.recipe for single in self._singles if single.rung.id == repeated)
            where = f" at step {first.step}" if first.step is not None else ""
            wrong.append(f"a race ({repeated} differs from its own rerun{where}{_in(first)})")
        return [(Blamed.RACE, words) for words in wrong]

    def _blamed_twin(self, outcome: Outcome) -> Blamed | None:
        """A twin that fails as the rung does that it repeats accuses nobody; one that fails alone does."""
        if outcome.status is not Status.FAIL:
            return None
        for finding in outcome.findings:
            if finding.check == "twins" and finding.status is Status.FAIL:
                return finding.blames
        repeated = self._by_id.get(str(outcome.rung.twin_of))
        if repeated is not None and repeated.status is Status.FAIL:
            return None
        return Blamed.LAUNCHER if outcome.rung.cold else Blamed.RACE

    def host(self) -> list[Accusation]:
        """All failures, of rungs with nothing in common, point at the ranks of one host."""
        failing = [outcome for outcome in self._failing() if outcome.rung.role is Role.RUNG]
        hosts = {outcome.first.hosts if outcome.first else () for outcome in failing}
        if len(hosts) != 1 or len(failing) < 2:
            return []
        (names,) = hosts
        common = set.intersection(*(set(outcome.rung.setting.items()) for outcome in failing))
        if len(names) != 1 or common or not all(len(set(outcome.hosts)) > 1 for outcome in failing):
            return []
        rungs = ", ".join(outcome.rung.id for outcome in failing)
        return [(Blamed.HOST, f"host {names[0]} (wherever it takes part: {rungs})")]

    def _failing(self) -> list[Outcome]:
        failing = [o for o in self._others if o.status is Status.FAIL and o.rung.id not in self._excused]
        return [o for o in failing if o.rung.recipe not in self._shaken]

    def _status(self, recipe: str, setting: Setting) -> Status | None:
        """Of all seeds together; None where it was not run."""
        found = [
            Status.INCONCLUSIVE if outcome.rung.id in self._excused else outcome.status
            for outcome in self._others
            if outcome.rung.recipe == recipe and outcome.rung.setting == setting
        ]
        return rung_status(found) if found else None

    def axes(self) -> Iterator[Broken]:
        failing = self._failing()
        narrow = [o for o in failing if o.rung.role is Role.SINGLE]
        for precision in dict.fromkeys(o.rung.precision for o in narrow):
            # One device alone is wrong in these numbers, and right in float64.
            wrong_singles = [o for o in narrow if o.rung.precision == precision]
            ids = {o.rung.id for o in wrong_singles}
            above = [o.rung.id for o in failing if o.rung.reference in ids]
            setting = Setting({Axis.PRECISION: precision})
            yield self._broken(setting, wrong_singles[0], (*ids, *above), decided=True)
        wrong = {o.rung.id for o in narrow}
        failing = [o for o in failing if o.rung.id not in wrong and o.rung.reference not in wrong]
        settings = {(outcome.rung.recipe, outcome.rung.setting) for outcome in failing}
        guilty: dict[frozenset[Axis], list[tuple[Setting, Outcome, bool]]] = {}
        for outcome in sorted(failing, key=lambda o: (len(o.rung.setting), o.rung.layout.world_size, o.rung.id)):
            recipe, setting = outcome.rung.recipe, outcome.rung.setting
            smaller = (other for of, other in settings if of == recipe and other != setting)
            if any(other.items() <= setting.items() for other in smaller):
                continue  # explained by a smaller rung that fails
            found, decided = self._guilty(recipe, setting)
            guilty.setdefault(frozenset(found), []).append((found, outcome, decided))
        for sets in sorted(guilty.values(), key=lambda sets: (len(sets[0][0]), [*Axis].index(next(iter(sets[0][0]))))):
            found, outcome, _ = sets[0]
            values = [each.items() for each, _, _ in sets]
            rungs = [o.rung.id for o in failing if any(items <= o.rung.setting.items() for items in values)]
            yield self._broken(found, outcome, tuple(rungs), decided=any(decided for *_, decided in sets))

    def _guilty(self, recipe: str, setting: Setting) -> tuple[Setting, bool]:
        """The axes without which the rung passes; False where a neighbour that would decide is not known."""
        neighbours = {axis: self._status(recipe, near) for axis, near in setting.neighbours().items()}
        passing = {axis: setting[axis] for axis, status in neighbours.items() if status is Status.PASS}
        unknown = [axis for axis, status in neighbours.items() if status is not Status.PASS]
        return Setting(passing) if passing else setting, not unknown

    @staticmethod
    def _broken(setting: Setting, outcome: Outcome, rungs: tuple[str, ...], *, decided: bool) -> Broken:
        assert outcome.first is not None
        return Broken(setting=setting, rungs=rungs, first=outcome.first, decided=decided)


def _in(finding: Finding) -> str:
    return f" in {finding.tensor}" if finding.tensor else ""


def _words(broken: Broken, outcomes: Sequence[Outcome]) -> str:
    """``tp (alone)``, ``dp_replicate x accum (only together)``, ``tp (alone; 4 fails, 2 passes)``."""
    name = " x ".join(axis.value for axis in broken.setting)
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
    return f"{name} ({'; '.join(notes)})"


def _recipes(broken: Broken, smallest: Rung, outcomes: Sequence[Outcome]) -> list[str]:
    """Where one recipe fails and another passes with all the same axes on."""
    there = [o for o in outcomes if o.rung.setting == smallest.setting and o.rung.role is not Role.TWIN]
    passing = [o.rung.id for o in there if o.rung.recipe != smallest.recipe and o.status is Status.PASS]
    failing = {o.rung.recipe for o in outcomes if o.rung.id in broken.rungs}
    return [f"{smallest.id} fails, {passing[0]} passes"] if passing and failing == {smallest.recipe} else []


def _undecided(broken: Broken, outcomes: Sequence[Outcome]) -> str:
    """Which neighbours would have decided."""
    by_setting = {o.rung.setting: o for o in outcomes if o.rung.role is not Role.TWIN}
    smallest = next(o.rung for o in outcomes if o.rung.id == broken.first.rung)
    of_recipe = f"@{smallest.recipe}" if smallest.recipe else ""
    missing = []
    for near in smallest.setting.neighbours().values():
        outcome = by_setting.get(near)
        if outcome is None:
            missing.append(f"{near.name}{of_recipe} was not run")
        elif outcome.status is not Status.PASS:
            missing.append(f"{near.name}{of_recipe} is {outcome.status}")
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
        sentence = f"PASS {_count(passed)} equal to one device"
        return Verdict(status=Status.PASS, sentence=sentence, blamed=None, broken=())
    if compared:
        sentence = f"PASS {_count(compared, 'single')} equal to float64 up to rounding"
        return Verdict(status=Status.PASS, sentence=sentence, blamed=None, broken=())
    sentence = "INCONCLUSIVE one device alone: there was nothing to compare it with"
    return Verdict(status=Status.INCONCLUSIVE, sentence=sentence, blamed=None, broken=())


def _why_open(outcome: Outcome) -> str:
    first = outcome.first
    if first is None:
        return "nothing was checked"
    return "not comparable" if first.blames is Blamed.NOT_COMPARABLE else first.check


def _count(outcomes: Sequence[Outcome], noun: str = "rung") -> str:
    return f"{len(outcomes)} {noun}{'s' * (len(outcomes) != 1)}"
