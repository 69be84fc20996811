"""Who is accused: from the outcomes of rungs to minimal sets of axes, or a host, the launcher, a race, the recipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dist_checks import restarts
from dist_checks.axes import Axis, Setting
from dist_checks.judging.checks import ALONE
from dist_checks.judging.outcome import Outcome, cause, rung_status
from dist_checks.judging.verdict import Blamed, Broken, Finding, Status
from dist_checks.rung import Role

ALONE_NAMES = frozenset(name for name, _ in ALONE)
"""Of what is said about one device alone, the first cause counts, whatever the step: they look at the whole run."""

Accusation = tuple[Blamed, str]


class _Guilty(NamedTuple):
    axes: Setting
    """Those without which the rung passes, or may pass."""
    outcome: Outcome
    decided: bool


class Court:
    """Who is accused. Each rung that is taken for a race or a fault of the launcher says nothing about axes, nor does
    any of a recipe whose single cannot be trusted."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self._by_id = {outcome.rung.id: outcome for outcome in outcomes}
        self._twins = [outcome for outcome in outcomes if outcome.rung.role is Role.TWIN]
        self._zero = [outcome for outcome in outcomes if outcome.rung.is_zero]
        self._others = [o for o in outcomes if o.rung.role is not Role.TWIN and not o.rung.is_zero]
        self._singles = [outcome for outcome in self._others if outcome.rung.role is Role.SINGLE]
        self._everyone = [*self._others, *self._twins]
        self._excused: set[str] = set()
        self._shaken: set[str] = set()

    def recipe(self) -> list[Accusation]:
        """One device alone is wrong, in float64 as well: nothing above it can be trusted."""
        wrong: list[Finding] = []
        for outcome in (*self._singles, *self._zero):
            first = outcome.first
            if outcome.status is not Status.FAIL or first is None or first.blames in (Blamed.LAUNCHER, Blamed.RACE):
                continue
            if outcome.rung.truth is None and Axis.CUSTOM not in outcome.rung.setting:
                told = [f for f in outcome.findings if f.status is Status.FAIL and f.check in ALONE_NAMES]
                wrong += told or [first]
                self._shaken.add(outcome.rung.recipe)
        if not wrong:
            return []
        # All of them train the same model on the same data: the first cause in any of them is that of the others.
        first = min(wrong, key=lambda finding: (finding.check == "completes", cause(finding)))
        suspect = f"; suspect: {first.suspects[0]}" if first.suspects else ""
        words = f"the recipe on one device ({first.check} of {first.rung}), so nothing above it counts{suspect}"
        return [(Blamed.RECIPE, words)]

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
            repeated = str(outcome.rung.twin_of)
            if self._is_told(repeated):
                continue
            self._excuse(repeated)
            self._shaken.update(single.rung.recipe for single in self._singles if single.rung.id == repeated)
            wrong.append(f"a race ({_not_repeated(outcome, self._by_id.get(repeated))})")
        return [(Blamed.RACE, words) for words in wrong]

    def _is_told(self, id: str) -> bool:
        """What is wrong with one device by itself, an optimizer that clears other gradients than the model has, say,
        may well make it differ from its rerun."""
        known = self._by_id.get(id)
        return known is not None and any(f.status is Status.FAIL and f.check in ALONE_NAMES for f in known.findings)

    def _excuse(self, id: str) -> None:
        """A rung that does not repeat itself says nothing about axes, nor does what has all of its axes on."""
        self._excused.add(id)
        shaken = self._by_id.get(id)
        if shaken is not None and shaken.rung.role is Role.RUNG:
            same = [o for o in self._failing() if o.rung.recipe == shaken.rung.recipe]
            items = shaken.rung.setting.items()
            self._excused |= {o.rung.id for o in same if items <= o.rung.setting.items()}

    def _blamed_twin(self, outcome: Outcome) -> Blamed | None:
        """A twin that fails as the rung does that it repeats accuses nobody; one that fails alone does, and so does
        one that ends well where the rung did not."""
        repeated = self._by_id.get(str(outcome.rung.twin_of))
        if outcome.status is not Status.FAIL:
            died = repeated is not None and repeated.status is Status.FAIL and _died(repeated)
            return Blamed.RACE if died and outcome.status is Status.PASS and not outcome.rung.cold else None
        for finding in outcome.findings:
            if finding.check == "twins" and finding.status is Status.FAIL:
                return finding.blames
        if repeated is not None and repeated.status is Status.FAIL:
            return None
        return Blamed.LAUNCHER if outcome.rung.cold else Blamed.RACE

    def counted(self) -> list[Accusation]:
        """Hosts whose devices counted errors: what a rung computed there says nothing about axes."""
        found: dict[str, list[Outcome]] = {}
        for outcome in self._everyone:
            first = outcome.first
            if outcome.status is Status.FAIL and first is not None and first.blames is Blamed.HOST:
                self._excused.add(outcome.rung.id)
                for host in first.hosts:
                    found.setdefault(host, []).append(outcome)
        return [(Blamed.HOST, f"host {host} ({_message(told[0])}, in {_some(told)})") for host, told in found.items()]

    def host(self) -> list[Accusation]:
        """One host is what all failures share, and no axis is. Asked before reruns are taken for races, and after.

        Each failure points at the ranks of that host among several; or it is the only one that takes part in every rung
        that fails and in none that passes, where rungs of several ranks pass without it: else all that several ranks do
        could be what is wrong. One failure alone is enough if it vanishes on other hosts.
        """
        failing = [o for o in self._everyone if o.status is Status.FAIL and o.rung.id not in self._excused]
        if len(failing) < 2 or any(o.first is None or o.first.blames not in (None, Blamed.RACE) for o in failing):
            return self._moved()
        passing = [o for o in self._everyone if o.status is Status.PASS]
        cleared = {host for o in passing for host in o.hosts}
        pointed = [_pointed(o) for o in failing]
        suspects = pointed if all(pointed) else [set(o.hosts) - cleared for o in failing]
        shared = set.intersection(*suspects)
        common = set.intersection(*(set(o.rung.setting.items()) for o in failing))
        without = any(o.rung.layout.world_size > 1 for o in passing)
        if common or len(shared) != 1 or not (all(pointed) or without):
            return self._moved()
        (name,) = shared
        where = f"in all {len(failing)} rungs that fail and in none that passes"
        if name in cleared or not without:
            where = "wherever it takes part"
        return [(Blamed.HOST, f"host {name} ({where}: {_some(failing)})")]

    def _moved(self) -> list[Accusation]:
        """A rung fails, and its rerun on other hosts has nothing else to say than that the bits are others; one host
        that was left out took part in nothing that passes."""
        passed = {host for o in self._everyone if o.status is Status.PASS for host in o.hosts}
        for twin in self._twins:
            repeated = self._by_id.get(str(twin.rung.twin_of))
            if repeated is None or repeated.status is not Status.FAIL or twin.rung.cold or not twin.hosts:
                continue
            wrong = {finding.check for finding in twin.findings if finding.status is Status.FAIL}
            left_out = set(repeated.hosts) - set(twin.hosts) - passed
            if wrong <= {"twins"} and len(left_out) == 1:
                (name,) = left_out
                where = ", ".join(sorted(set(twin.hosts)))
                return [(Blamed.HOST, f"host {name} ({repeated.rung.id} fails there and passes on {where})")]
        return []

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
        narrow = self._narrow(failing)
        yield from self._numbers(narrow, failing)
        failing = self._above(failing, narrow)
        sets = self._guilty_sets(failing)
        for found in sorted(sets, key=lambda found: (len(found[0].axes), [*Axis].index(next(iter(found[0].axes))))):
            values = [guilty.axes.items() for guilty in found]
            rungs = [o.rung.id for o in failing if any(items <= o.rung.setting.items() for items in values)]
            decided = any(guilty.decided for guilty in found)
            yield self._broken(found[0].axes, found[0].outcome, tuple(rungs), decided=decided)

    def _numbers(self, narrow: Sequence[Outcome], failing: Sequence[Outcome]) -> Iterator[Broken]:
        """One device alone is wrong in these numbers or with these kernels, and right in plain float64."""
        settings = [(outcome.rung.recipe, outcome.rung.setting) for outcome in narrow]
        blamed: dict[Setting, tuple[Outcome, bool]] = {}
        for outcome in sorted(narrow, key=lambda o: len(o.rung.setting)):
            recipe, setting = outcome.rung.recipe, outcome.rung.setting
            smaller = (other for of, other in settings if of == recipe and other != setting)
            if any(other.items() <= setting.items() for other in smaller):
                continue  # explained by a single with fewer axes that fails
            found, decided = Setting({Axis.PRECISION: outcome.rung.precision}), True
            if len(setting) > 1:
                found, decided = self._guilty(recipe, setting)
            elif setting:
                found = setting
            blamed.setdefault(found, (outcome, decided))
        for found, (outcome, decided) in blamed.items():
            with_it = {o.rung.id for o in narrow if found.items() <= {**o.rung.setting, **_precision(o)}.items()}
            above = [o.rung.id for o in failing if o.rung.id in with_it or o.rung.reference in with_it]
            yield self._broken(found, outcome, tuple(above), decided=decided)

    def smallest(self) -> list[Outcome]:
        """The smallest failing rung of each set of axes that is accused."""
        failing = self._failing()
        narrow = self._narrow(failing)
        return narrow + [found[0].outcome for found in self._guilty_sets(self._above(failing, narrow))]

    @staticmethod
    def _narrow(failing: Sequence[Outcome]) -> list[Outcome]:
        return [outcome for outcome in failing if outcome.rung.role is Role.SINGLE]

    @staticmethod
    def _above(failing: Sequence[Outcome], narrow: Sequence[Outcome]) -> list[Outcome]:
        """Without the singles that fail, and what is compared with them."""
        wrong = {outcome.rung.id for outcome in narrow}
        return [o for o in failing if o.rung.id not in wrong and o.rung.reference not in wrong]

    def _guilty_sets(self, failing: Sequence[Outcome]) -> list[list[_Guilty]]:
        """Minimal failing rungs, smallest first, together where the same axes are accused."""
        settings = {(outcome.rung.recipe, outcome.rung.setting) for outcome in failing}
        guilty: dict[frozenset[Axis], list[_Guilty]] = {}
        for outcome in sorted(failing, key=lambda o: (len(o.rung.setting), o.rung.layout.world_size, o.rung.id)):
            recipe, setting = outcome.rung.recipe, outcome.rung.setting
            smaller = (other for of, other in settings if of == recipe and other != setting)
            if any(other.items() <= setting.items() for other in smaller):
                continue  # explained by a smaller rung that fails
            if (recipe, restarts.between(setting)) in settings:
                continue  # explained by the layout that it has in between
            found, decided = self._guilty(recipe, setting)
            guilty.setdefault(frozenset(found), []).append(_Guilty(found, outcome, decided))
        return list(guilty.values())

    def unknown(self, outcome: Outcome) -> list[Setting]:
        """The neighbours that would decide about a failing rung and were not run."""
        recipe, setting = outcome.rung.recipe, outcome.rung.setting
        between = restarts.between(setting)
        near = [*setting.neighbours().values(), *([between] if between is not None else ())]
        return [other for other in near if self._status(recipe, other) is None]

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


def _pointed(outcome: Outcome) -> set[str]:
    """The one host among several whose ranks the failure is about; empty where it is not about one."""
    hosts = outcome.first.hosts if outcome.first else ()
    return set(hosts) if len(hosts) == 1 and len(set(outcome.hosts)) > 1 else set()


def _some(outcomes: Sequence[Outcome]) -> str:
    more = f" and {len(outcomes) - 4} more" if len(outcomes) > 4 else ""
    return ", ".join(o.rung.id for o in outcomes[:4]) + more


def _message(outcome: Outcome) -> str:
    return outcome.first.message if outcome.first is not None else ""


def _died(outcome: Outcome) -> bool:
    return outcome.first is not None and outcome.first.check == "completes"


def _not_repeated(twin: Outcome, repeated: Outcome | None) -> str:
    id, first = str(twin.rung.twin_of), twin.first
    differs = next((f for f in twin.findings if f.check == "twins" and f.status is Status.FAIL), first)
    if twin.status is not Status.FAIL and repeated is not None and repeated.first is not None:
        return f"{id} failed, and ends well when it is run again: {repeated.first.message}"
    assert differs is not None
    where = f" at step {differs.step}" if differs.step is not None else ""
    return f"{id} differs from its own rerun{where}{_in(differs)}"


def _precision(outcome: Outcome) -> dict[Axis, str]:
    """Of any rung, also where the axis is off."""
    return {Axis.PRECISION: outcome.rung.precision}


def _in(finding: Finding) -> str:
    return f" in {finding.tensor}" if finding.tensor else ""
