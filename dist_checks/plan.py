"""From a matrix to the ordered rungs, references first; every combination that is dropped keeps its reason."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from covertable import Controller

from dist_checks import pipeline
from dist_checks.axes import SPEC, ZERO_STAGES, Axis, Layout, Setting, Value
from dist_checks.matrix import ConfigError, Matrix
from dist_checks.rung import Role, Rung

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a recipe says about itself: read by the plan, so that it needs no torch."""

    divisors: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """For an axis, the named numbers that its degree must divide: ``{"tp": {"heads": 4}}``."""
    lacking: Mapping[str, str] = field(default_factory=dict)
    """The axes that it has no seam for, each with what they need: ``{"cp": "needs a recipe with ..."}``."""
    description: Mapping[str, Any] = field(default_factory=dict)
    """All of it, for the judge."""

    @property
    def accelerators(self) -> int:
        """Devices that torch finds where ranks run; 0 on a machine with none."""
        return int(self.description.get("accelerators", 0))

    @property
    def samples(self) -> int | None:
        """Of an epoch; None where the recipe does not say."""
        return self.description.get("samples")

    @property
    def stages(self) -> int | None:
        """Into how many stages of a pipeline the model can be cut, 1 for not at all; None where it does not say."""
        return self.description.get("stages")

    @property
    def frameworks(self) -> Collection[str]:
        """Besides torch, those that can be imported where ranks run."""
        found: Collection[str] = self.description.get("frameworks", ())
        return found

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Facts:
        return cls(divisors=data.get("divisors", {}), lacking=data.get("lacking", {}), description=data)


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
        return sum(rung.layout.world_size for rung in self.rungs)

    def only(self, chosen: Collection[str]) -> Plan:
        """The rungs of these ids, with the singles that they are compared with and the neighbours that blame needs."""
        by_id = {rung.id: rung for rung in self.rungs}
        by_setting = {
            (rung.recipe, rung.setting, rung.seed): rung.id for rung in self.rungs if rung.role is not Role.TWIN
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
    rungs.sort(key=lambda rung: (rung.role is not Role.SINGLE, matrix.seeds.index(rung.seed)))
    return Plan(rungs=tuple(rungs), skipped=tuple(skip for plan in plans for skip in plan.skipped))


def refusals(matrix: Matrix, facts: Mapping[str, Facts], devices: int) -> Callable[[str, Setting], str]:
    """Why a setting of a recipe cannot run though it is asked for, or an empty string."""
    each = {label: Refusals(ladder, facts[label], devices) for label, ladder in matrix.ladders.items()}
    return lambda recipe, setting: each[recipe](setting, asked=True)


def _ladder(matrix: Matrix, label: str, facts: Facts, devices: int) -> Plan:
    """The rungs of one recipe."""
    refuse = Refusals(matrix, facts, devices)
    alone = _alone(matrix)
    for (axis, index), setting in alone.items():
        if reason := refuse(setting):
            raise ConfigError(f"axes.{axis}[{index}]: {reason}")

    for index, setting in enumerate(matrix.included):
        if reason := refuse(setting, asked=True):
            raise ConfigError(f"combine.include[{index}]: {reason}")

    skipped: dict[Setting, str] = {}
    wanted: list[Setting] = [*alone.values(), *matrix.included]
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
        rungs += _rungs_of_seed(matrix, label, seed, planned, neighbours)
    # How ranks are started is not a matter of the recipe: one cold twin is enough.
    rungs += _twins(rungs, cold=matrix.launch.cold_twin and not label)
    return Plan(
        rungs=tuple(rungs),
        skipped=tuple(Skipped(setting=setting, reason=reason, recipe=label) for setting, reason in skipped.items()),
    )


class Refusals:
    """Why a setting cannot run, or an empty string."""

    def __init__(self, matrix: Matrix, facts: Facts, devices: int) -> None:
        self._matrix, self._facts, self._devices = matrix, facts, devices

    def __call__(self, setting: Setting, *, asked: bool = False) -> str:
        """``asked``: the user has named this very setting, so it may have degrees that could be confused."""
        layout = Layout(setting)
        for axis in setting:
            for needed in SPEC[axis].needs:
                if needed not in setting:
                    return f"{axis} needs {needed}"
            for other, why in SPEC[axis].refuses:
                if other in setting:
                    return f"{axis} cannot be combined with {other}: {why}"
            if lacking := self._facts.lacking.get(axis):
                return f"{axis} {lacking}"
            for name, number in self._facts.divisors.get(axis, {}).items():
                if rule := setting.must_divide(axis, f"the recipe's {name}", number):
                    return rule
        if reason := self._numbers(setting) or self._framework(setting):
            return reason
        if layout.world_size > self._devices:
            return f"a world of {layout.world_size} ranks is larger than the {self._devices} devices"
        batch = self._smallest_batch()
        cut = pipeline.micro_batches(setting)
        micro_batches = setting.degree(Axis.ACCUM) * cut
        passes = layout.data_size * micro_batches
        if batch < passes:
            of = f" ({setting.degree(Axis.ACCUM)} of accum x {cut} of pp)" if cut > 1 else ""
            return (
                f"{layout.data_size} data ranks with {micro_batches} micro-batches each{of} need {passes} "
                f"samples, and the smallest batch has {batch}"
            )
        if reason := pipeline.refusal(setting) or self._too_many_stages(setting):
            return reason
        for excluded in self._matrix.excluded:
            if excluded.items() <= setting.items():
                return f"combine.exclude has {excluded.name}"
        return "" if asked else self._confusing(setting)

    def _too_many_stages(self, setting: Setting) -> str:
        stages, most = pipeline.stages(setting), self._facts.stages
        if most is None or stages <= most:
            return ""
        name = self._facts.description.get("name", "")
        each = stages // setting.degree(Axis.PP)
        ranks = f"{setting.degree(Axis.PP)} ranks of pp with {each} stage{'s' * (each > 1)} each"
        return f"{ranks} need {stages} stages, and recipe {name} can be cut into at most {most}"

    def _numbers(self, setting: Setting) -> str:
        """What cannot be computed in the precision that is asked for."""
        precision = str(setting.get(Axis.PRECISION, ""))
        if precision.endswith("_params") and setting.structural:
            return (
                f"{precision} is for one device, which zero with {precision.removesuffix('_params')} is compared with"
            )
        if setting.get(Axis.ZERO) in ZERO_STAGES:
            if precision == "fp64":
                return "zero 1 to 3 cannot be computed in fp64: DeepSpeed keeps float32 weights"
            if precision == "fp32" and self._matrix.exact:
                return (
                    "zero 1 to 3 are computed in fp32 where the other rungs are in fp64: this would be the same again"
                )
        return ""

    def _framework(self, setting: Setting) -> str:
        if setting.get(Axis.ZERO) in ZERO_STAGES and "deepspeed" not in self._facts.frameworks:
            return (
                "zero 1 to 3 need DeepSpeed, which cannot be imported where ranks run: "
                "pip install 'dist-checks[deepspeed]'"
            )
        return ""

    def _smallest_batch(self) -> int:
        """In samples: the last batch of an epoch may be smaller than the others."""
        batch = self._matrix.train.batch
        samples = self._facts.samples
        return batch if samples is None else min(batch, samples % batch or batch)

    def _confusing(self, setting: Setting) -> str:
        """Two axes of one degree: a factor of 2 would have two suspects. Refused where the matrix has a better one."""
        degrees = {axis: setting.degree(axis) for axis in setting if SPEC[axis].devices}
        for one, two in itertools.combinations(degrees, 2):
            if degrees[one] != degrees[two]:
                continue
            for axis, other in ((one, two), (two, one)):
                better = [value for value in self._matrix.axes.get(axis, ()) if value != degrees[other]]
                world = Layout(setting).world_size // degrees[axis]
                if any(isinstance(value, int) and value * world <= self._devices for value in better):
                    return (
                        f"{one} and {two} have the same degree ({degrees[one]}): their groups could be confused, "
                        f"and {axis} has other degrees"
                    )
        return ""


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

    structural = {axis: values for axis, values in factors.items() if SPEC[Axis(axis)].structural}
    others = [setting for setting, pair in pairs.items() if pair.numerics and setting not in skipped]
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
    numerics = setting.numerics
    if setting.get(Axis.ZERO) not in ZERO_STAGES:
        return numerics
    precision = _computed_in(setting, matrix)
    if precision in ("bf16", "fp16"):
        precision += "_params"
    elif precision == matrix.plain:
        return numerics
    return Setting({**numerics, Axis.PRECISION: precision})


def _rungs_of_seed(
    matrix: Matrix, label: str, seed: int, planned: Mapping[Setting, None], neighbours: Sequence[Setting]
) -> list[Rung]:
    """Singles first, then by number of axes and by size, so that the simplest failure is seen first."""
    settings = dict.fromkeys((*planned, *neighbours))
    numerics = dict.fromkeys((Setting(), *(setting.numerics for setting in settings)))
    numerics |= dict.fromkeys(_compared_with(setting, matrix) for setting in settings)
    truth = Setting() if matrix.exact else Setting({Axis.PRECISION: "fp64"})
    singles = dict.fromkeys((truth, *numerics))

    suffix = _suffix(label) + (f"@seed{seed}" if seed != matrix.seeds[0] else "")

    def rung(setting: Setting, role: Role) -> Rung:
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
            planned=setting in planned or not setting,
        )

    others = sorted(
        (setting for setting in settings if setting not in singles),
        key=lambda setting: (len(setting), Layout(setting).world_size),
    )
    return [
        *(rung(setting, Role.SINGLE) for setting in singles),
        *(rung(setting, Role.RUNG) for setting in others),
    ]


def _twins(rungs: Sequence[Rung], *, cold: bool) -> list[Rung]:
    """The single again, and the smallest rung of several ranks started cold."""
    first = rungs[0]
    twins = [replace(first, id=f"{first.id}@again", role=Role.TWIN, twin_of=first.id)]
    several = [rung for rung in rungs if rung.role is Role.RUNG and rung.layout.world_size > 1]
    if cold and several:
        small = min(several, key=lambda rung: rung.layout.world_size)
        twins.append(replace(small, id=f"{small.id}@cold", role=Role.TWIN, twin_of=small.id, cold=True))
    return twins
