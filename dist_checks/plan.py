"""From a matrix to the ordered rungs, references first; every combination that is dropped keeps its reason."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from covertable import Controller

from dist_checks import restarts
from dist_checks.axes import SPEC, SPECS, ZERO_STAGES, Axis, Layout, Setting, Value
from dist_checks.matrix import ConfigError, Matrix
from dist_checks.refusals import Facts, Refusals, steps_of_epoch
from dist_checks.rung import Role, Rung

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    setting: Setting
    reason: str
    recipe: str = ""

    @property
    def name(self) -> str:
        return self.setting.name + _suffix(self.recipe)

    def to_json(self) -> dict[str, Any]:
        of_recipe = {"recipe": self.recipe} if self.recipe else {}
        return {"name": self.name, "axes": self.setting.to_json(), "reason": self.reason, **of_recipe}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The rungs in the order in which they are started, and what was left out."""

    rungs: tuple[Rung, ...]
    skipped: tuple[Skipped, ...]

    @property
    def processes(self) -> int:
        return sum(phase.rung.layout.world_size for rung in self.rungs for phase in rung.phases)

    def only(self, chosen: Collection[str]) -> Plan:
        """The rungs of these ids, with the singles that they are compared with and the neighbours that blame needs."""
        by_id = {rung.id: rung for rung in self.rungs}
        by_setting = {
            (rung.recipe, rung.setting, rung.seed): rung.id
            for rung in self.rungs
            if rung.role in (Role.SINGLE, Role.RUNG)
        }
        needed = set(chosen)
        for rung in map(by_id.__getitem__, chosen):
            settings = rung.setting.neighbours().values()
            near = (by_setting.get((rung.recipe, setting, rung.seed)) for setting in settings)
            needed.update(id for id in (rung.twin_of, *near) if id)
        for rung in map(by_id.__getitem__, tuple(needed)):
            needed.update(id for id in (rung.reference, rung.truth) if id)
        return replace(self, rungs=tuple(rung for rung in self.rungs if rung.id in needed))

    def with_more(self, rungs: Iterable[Rung], skipped: Iterable[Skipped] = ()) -> Plan:
        """What blame has asked for, after all others."""
        return replace(self, rungs=(*self.rungs, *rungs), skipped=(*self.skipped, *skipped))

    def to_json(self) -> dict[str, Any]:
        return {
            "rungs": [rung.to_json() for rung in self.rungs],
            "skipped": [skip.to_json() for skip in self.skipped],
        }


def make(matrix: Matrix, facts: Mapping[str, Facts] | Facts, devices: int) -> Plan:
    """The rungs of every recipe; ``facts`` of each, by what its rungs are called by.

    Raises ConfigError where a value of the matrix cannot run on its own.
    """
    each = {"": facts} if isinstance(facts, Facts) else facts
    plans = []
    for label, ladder in matrix.ladders.items():
        try:
            plans.append(_ladder(ladder, label, each[label], devices))
        except ConfigError as error:
            raise ConfigError(matrix.key(label) + str(error)) from None
    rungs = [rung for plan in plans for rung in plan.rungs]
    rungs.sort(key=lambda r: (r.role is not Role.SINGLE, not r.is_zero, matrix.seeds.index(r.seed)))
    return Plan(rungs=tuple(rungs), skipped=tuple(skip for plan in plans for skip in plan.skipped))


def refusals(matrix: Matrix, facts: Mapping[str, Facts], devices: int) -> Callable[[str, Setting], str]:
    """Why a setting of a recipe cannot run though it is asked for, or an empty string."""
    each = {label: Refusals(ladder, facts[label], devices) for label, ladder in matrix.ladders.items()}
    return lambda recipe, setting: each[recipe](setting, asked=True)


def _ladder(matrix: Matrix, label: str, facts: Facts, devices: int) -> Plan:
    """The rungs of one recipe."""
    refuse = Refusals(matrix, facts, devices)
    alone = _alone(matrix)
    skipped: dict[Setting, str] = {}
    for (axis, index), setting in alone.items():
        reason = refuse(setting)
        if reason and any(reason == f"{each} {facts.of(setting).lacking.get(each)}" for each in setting):
            skipped[setting] = reason  # the recipe cannot do it: no mistake, and nothing to be judged
        elif reason:
            raise ConfigError(f"axes.{axis}[{index}]: {reason}")

    for index, setting in enumerate(matrix.included):
        if reason := refuse(setting, asked=True):
            raise ConfigError(f"combine.include[{index}]: {reason}")

    wanted: list[Setting] = [*(setting for setting in alone.values() if setting not in skipped), *matrix.included]
    if matrix.combine.mode != "singles":
        for setting in _combinations(matrix, refuse, skipped):
            wanted.append(setting)
    planned = dict.fromkeys(setting for setting in wanted if setting)
    neighbours = [
        near
        for setting in planned
        for near in setting.neighbours().values()
        if not refuse(near, asked=setting in matrix.included)
    ]
    rungs: list[Rung] = []
    for seed in matrix.seeds:
        rungs += _rungs_of_seed(matrix, label, facts, seed, planned, neighbours)
    rungs += _rung_zero(matrix, label)
    # How ranks are started is not a matter of the recipe: one cold twin is enough.
    rungs += _twins(rungs, cold=matrix.launch.cold_twin and not label)
    return Plan(
        rungs=tuple(rungs),
        skipped=tuple(Skipped(setting=setting, reason=reason, recipe=label) for setting, reason in skipped.items()),
    )


def _alone(matrix: Matrix) -> dict[tuple[Axis, int], Setting]:
    """Each value of the matrix on its own, with the axes that it needs at their first value."""
    out = {}
    for axis, values in matrix.axes.items():
        for index, value in enumerate(values):
            if value != matrix.plain:
                out[axis, index] = _standing(Setting({axis: value}), matrix)
    return out


def _combinations(matrix: Matrix, refuse: Refusals, skipped: dict[Setting, str]) -> list[Setting]:
    """``all``: every combination. ``pairs``: a covering array of the structural axes, where each pair of values that
    can be on together is on in some rung, and each of them alone with each value of the others: numbers do not depend
    on how many ranks there are, so nothing is won by pairing them with the largest worlds."""
    factors = {
        axis.value: [SPEC[axis].off, *(value for value in values if value != matrix.plain)]
        for axis, values in matrix.axes.items()
    }

    @functools.cache  # the array asks about the same few hundred settings a hundred times each
    def reason(setting: Setting) -> str:
        many = len(setting.structural) > matrix.combine.most
        return f"more than {matrix.combine.most} structural axes" if many else refuse(setting)

    def allowed(row: Mapping[str, Value]) -> bool:
        return not reason(Setting(row))

    pairs = {_standing(pair, matrix): pair for pair in _pairs(factors)}
    skipped.update({setting: why for setting in pairs if (why := reason(setting))})
    if matrix.combine.mode == "all":
        rows = (dict(zip(factors, values, strict=True)) for values in itertools.product(*factors.values()))
        return [Setting(row) for row in rows if allowed(row)]

    # What the user sets may be anything: it is paired with each axis alone, like numbers.
    apart = {axis.value for axis in factors_apart()}
    structural = {axis: values for axis, values in factors.items() if axis not in apart}
    others = [
        setting for setting, pair in pairs.items() if apart.intersection(pair.to_json()) and setting not in skipped
    ]
    if len(structural) < 2:
        return others
    constraint = {
        "operator": "fn",
        "requires": list(structural),
        "evaluate": lambda row: allowed(_only(row, structural)),
    }
    # The controller, not covertable.make: that one raises where a pair is impossible, and those are listed above.
    rows = Controller(structural, strength=2, constraints=[constraint]).make()
    return [*map(Setting, rows), *others]


def factors_apart() -> tuple[Axis, ...]:
    """Axes whose values are paired with each value of the others alone."""
    return tuple(spec.axis for spec in SPECS if not spec.structural or spec.axis is Axis.CUSTOM)


def _only(row: Mapping[str, Value], factors: Mapping[str, Sequence[Value]]) -> dict[str, Value]:
    """Covertable's rows have keys of its own besides the factors."""
    return {axis: row[axis] for axis in factors}


def _standing(pair: Setting, matrix: Matrix) -> Setting:
    """With the axes that it needs, at their first value."""
    needed = {need: matrix.axes[need][0] for axis in pair for need in SPEC[axis].needs if need not in pair}
    return Setting({**needed, **pair})


def _pairs(factors: Mapping[str, Sequence[Value]]) -> Iterable[Setting]:
    for one, two in itertools.combinations(factors, 2):
        for pair in itertools.product(factors[one][1:], factors[two][1:]):
            yield Setting({one: pair[0], two: pair[1]})


def _suffix(recipe: str) -> str:
    return f"@{recipe}" if recipe else ""


def _computed_in(setting: Setting, matrix: Matrix) -> str:
    """DeepSpeed has no float64: where the other rungs are exact its own are in float32."""
    precision = str(setting.get(Axis.PRECISION, matrix.plain))
    return "fp32" if precision == "fp64" and setting.get(Axis.ZERO) in ZERO_STAGES else precision


def _compared_with(setting: Setting, matrix: Matrix) -> Setting:
    """The single of the same numerics. DeepSpeed's bf16 and fp16 are no autocast: the model itself is in 16 bits."""
    numerics = matrix.numerics(setting)
    if setting.get(Axis.ZERO) not in ZERO_STAGES:
        return numerics
    precision = _computed_in(setting, matrix)
    if precision in ("bf16", "fp16") and not matrix.command:
        precision += "_params"
    elif precision == matrix.plain:
        return numerics
    return Setting({**numerics, Axis.PRECISION: precision})


def _rungs_of_seed(
    matrix: Matrix,
    label: str,
    facts: Facts,
    seed: int,
    planned: Mapping[Setting, None],
    neighbours: Sequence[Setting],
) -> list[Rung]:
    """Singles first, then by number of axes and by size, so that the simplest failure is seen first."""
    settings = dict.fromkeys((*planned, *neighbours))
    numerics = dict.fromkeys((Setting(), *map(matrix.numerics, settings)))
    numerics |= dict.fromkeys(_compared_with(setting, matrix) for setting in settings)
    singles = dict.fromkeys((*map(matrix.truth, numerics), *numerics))

    suffix = _suffix(label) + (f"@seed{seed}" if seed != matrix.seeds[0] else "")

    def rung(setting: Setting, role: Role) -> Rung:
        truth = matrix.truth(setting)
        return Rung(
            id=setting.name + suffix,
            role=role,
            setting=setting,
            precision=_computed_in(setting, matrix),
            seed=seed,
            steps=matrix.steps,
            reference=None if role is Role.SINGLE else _compared_with(setting, matrix).name + suffix,
            truth=None if setting == truth else truth.name + suffix,
            recipe=label,
            cold=bool(matrix.custom_of(setting).env),
            planned=setting in planned or not setting,
            restarts=_restarts(matrix, facts, setting),
        )

    others = sorted(
        (setting for setting in settings if setting not in singles),
        key=lambda setting: (len(setting), Layout(setting).world_size),
    )
    return [
        *(rung(setting, Role.SINGLE) for setting in singles),
        *(rung(setting, Role.RUNG) for setting in others),
    ]


def _restarts(matrix: Matrix, facts: Facts, setting: Setting) -> tuple[int, ...]:
    if Axis.RESUME not in setting:
        return ()
    return restarts.points(matrix.steps, steps_of_epoch(matrix, facts, setting))


def _rung_zero(matrix: Matrix, label: str) -> list[Rung]:
    """Whether the recipe is healthy on one device, of the first seed."""
    wanted = (
        (Role.OVERFIT, matrix.single.overfit_steps * bool(matrix.overfit_samples)),
        (Role.LEARN, matrix.learn_steps),
    )
    plain = {"setting": Setting(), "precision": matrix.plain, "seed": matrix.seeds[0], "recipe": label}
    return [
        Rung(id=role.value + _suffix(label), role=role, steps=steps, **plain)  # type: ignore[arg-type]
        for role, steps in wanted
        if steps
    ]


def _twins(rungs: Sequence[Rung], *, cold: bool) -> list[Rung]:
    """The single again, and the smallest rung of several ranks started cold."""
    first = rungs[0]
    twins = [replace(first, id=f"{first.id}@again", role=Role.TWIN, twin_of=first.id)]
    several = [
        rung
        for rung in rungs
        if rung.role is Role.RUNG and rung.layout.world_size > 1 and not rung.cold and not rung.restarts
    ]
    if cold and several:
        small = min(several, key=lambda rung: rung.layout.world_size)
        twins.append(replace(small, id=f"{small.id}@cold", role=Role.TWIN, twin_of=small.id, cold=True))
    return twins
