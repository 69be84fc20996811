"""What the user wrote: matrix.toml, or the same in Python, validated at the door."""

from __future__ import annotations

import datetime
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import tomli_w
from annotated_types import Ge, Gt
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from dist_checks.axes import SPEC, Axis, Setting, Value
from dist_checks.command import Command, mistakes
from dist_checks.custom import Custom, unknown, unusable
from dist_checks.rung_zero import LEARN_STEPS, OVERFIT_SAMPLES, Expect, Single, of_script
from dist_checks.site import Ray, Slurm

PRESETS = Path(__file__).with_name("presets")
SAMPLE = Path(__file__).with_name("sample.toml")
"""What ``dist-checks init`` writes."""


class ConfigError(ValueError):
    """The configuration is wrong. Each line of the message names a key, its value and what was expected."""


_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_STRICT = ConfigDict(extra="forbid", strict=True)
_AtLeastOne = Annotated[int, Ge(1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    """How every rung trains; a recipe may read more from its own options."""

    __pydantic_config__ = _STRICT
    batch: _AtLeastOne = 31
    """Samples of an optimizer step over all ranks. A prime: no world divides it, so no rank has an even share."""
    optimizer: Literal["adamw", "sgd"] = "adamw"
    learning_rate: Annotated[float, Gt(0)] = 3e-3
    weight_decay: Annotated[float, Ge(0)] = 0.1
    clip: Annotated[float, Ge(0)] = 1.0
    """Largest norm of the gradient; 0 for no clipping."""
    warmup: Annotated[int, Ge(0)] = 4
    """Steps in which the learning rate grows linearly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Combine:
    """Which combinations of the values in ``[axes]`` become rungs."""

    __pydantic_config__ = _STRICT
    mode: Literal["singles", "pairs", "all"] = "pairs"
    most: _AtLeastOne = 3
    """Structural axes that are on in one rung, at most."""
    include: tuple[str, ...] = ()
    """Names of settings, like ``tp2+accum5``, that are planned whatever the mode, with any values."""
    exclude: tuple[str, ...] = ()
    """Names of settings, like ``tp2+accum5``: no rung that has all of it on is planned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Where and how the ranks run."""

    __pydantic_config__ = _STRICT
    launcher: Literal["local", "slurm", "ray"] = "local"
    devices: _AtLeastOne | None = None
    """Largest world; None for the number of accelerators, or 8 processes where there are none."""
    slots: _AtLeastOne | None = None
    """Ranks that run at the same time when rungs run side by side; None for the accelerators, or two for each core."""
    deadline: Annotated[float, Gt(0)] = 300.0
    """Seconds that a rung may take."""
    stall: Annotated[float, Gt(0)] = 120.0
    """Seconds in which no rank of a rung ends a step, after which it is taken for hung."""
    ranks_per_node: _AtLeastOne | None = None
    """Of one rung on one node of a cluster, at most; None for the node's devices, or its CPUs."""
    nodelist: tuple[str, ...] = ()
    """Use only these nodes."""
    max_device_hours: Annotated[float, Gt(0)] | None = None
    """A plan that is estimated to need more is refused."""
    slurm: Slurm = field(default_factory=Slurm)
    ray: Ray = field(default_factory=Ray)
    cold_twin: bool = True
    """Start one rung a second time by torch elastic, in new processes, and compare the bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """What is run after the ladder to decide what is to blame."""

    __pydantic_config__ = _STRICT
    budget: Annotated[int, Ge(0)] = 8
    """Rungs, at most: reruns of the smallest that failed (is it a race?), and neighbours that were not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accept:
    """A finding that the user knows and lives with, until a date; where a field is empty, any value fits."""

    __pydantic_config__ = _STRICT
    reason: str
    until: datetime.date
    rung: str = ""
    check: str = ""
    tensor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Also:
    """A second recipe in the same ladder, for axes that the first one does not have: trained as the first one is, with
    the same seeds, and compared with a single of its own."""

    __pydantic_config__ = _STRICT
    recipe: str
    name: str = ""
    """What its rungs are called by: ``ep2@moe``. By default the name of the recipe, or of its class."""
    options: dict[str, Any] = field(default_factory=dict)
    axes: dict[Axis, tuple[Value, ...]] = field(default_factory=dict)
    combine: Combine = Combine()

    @property
    def label(self) -> str:
        return self.name or self.recipe.rpartition(":")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """One ladder. Build it in Python with keywords, or read it with :func:`load`; both are checked by :func:`parse`."""

    __pydantic_config__ = _STRICT
    name: str = "ladder"
    recipe: str = "gpt"
    """Built in, or ``my_pkg.train:MyRecipe``."""
    steps: _AtLeastOne = 8
    seeds: tuple[int, ...] = (0,)
    repeat: _AtLeastOne = 1
    """Instead of seeds: 0, 1, ... so many of them."""
    record_every: _AtLeastOne = 1
    """Gradients and weights are recorded in the first five steps, and then in every so many. Losses, norms, samples and
    collectives are recorded in every step."""
    exact: bool = True
    """Compute in float64 where the precision axis is off; else in float32, judged by a float64 run."""
    options: dict[str, Any] = field(default_factory=dict)
    """Handed to the recipe."""
    train: Train = Train()
    axes: dict[Axis, tuple[Value, ...]] = field(default_factory=dict)
    """The values that each axis takes besides off."""
    combine: Combine = Combine()
    launch: Launch = Launch()
    single: Single = field(default_factory=Single)
    expect: Expect = field(default_factory=Expect)
    blame: Blame = Blame()
    accept: tuple[Accept, ...] = ()
    custom: dict[str, Custom] = field(default_factory=dict)
    """What each value of the axis custom sets."""
    also: tuple[Also, ...] = ()
    """Further recipes, each with axes of its own."""
    command: Command | None = None
    """A script of the user's own instead of a recipe."""

    @property
    def trained(self) -> str:
        """What is trained, in a word."""
        return self.command.name if self.command else ", ".join(each.recipe for each in self.ladders.values())

    @property
    def ladders(self) -> dict[str, Matrix]:
        """What each recipe is to run, by what its rungs are called by: nothing for the first one's."""
        out = {"": replace(self, also=())}
        for also in self.also:
            out[also.label] = replace(
                self, recipe=also.recipe, options=also.options, axes=also.axes, combine=also.combine, also=()
            )
        return out

    def key(self, label: str) -> str:
        """Where in the matrix the recipe of ``label`` stands, as errors name it: ``also[0].``."""
        return next((f"also[{index}]." for index, also in enumerate(self.also) if also.label == label), "")

    def custom_of(self, setting: Setting) -> Custom:
        """What a rung of that setting has on top of what every rung has."""
        return self.custom.get(str(setting.get(Axis.CUSTOM, "")), Custom())

    def train_of(self, setting: Setting) -> Train:
        return replace(self.train, **self.custom_of(setting).train)

    def numerics(self, setting: Setting) -> Setting:
        """The setting of the single that a rung is compared with."""
        structural = set(setting.structural) - (set() if self.custom_of(setting).same else {Axis.CUSTOM})
        return Setting({axis: value for axis, value in setting.items() if axis not in structural})

    def truth(self, setting: Setting) -> Setting:
        """The setting of the single in float64 that says how far a rung's rounding goes."""
        own = self.numerics(setting).get(Axis.CUSTOM, "")
        if self.command:  # what it computes in by itself: nobody knows whether it can do more
            return Setting({Axis.CUSTOM: own})
        return Setting({Axis.PRECISION: "" if self.exact else "fp64", Axis.CUSTOM: own})

    @property
    def learn_steps(self) -> int:
        """0: rung zero does not learn."""
        given = self.single.learn
        return given if given is not None else LEARN_STEPS * self._one_device

    @property
    def overfit_samples(self) -> int:
        """0: rung zero memorises nothing."""
        given = self.single.overfit
        return given if given is not None else OVERFIT_SAMPLES * self._one_device

    @property
    def _one_device(self) -> bool:
        """Nothing else is on the ladder; a script can be told how many steps to run, and is seen."""
        told = self.command is None or self.command.can_be_alone
        return told and not any(self.axes.values()) and not self.combine.include

    @property
    def plain(self) -> str:
        """The precision where the precision axis is off."""
        if self.command:
            return self.command.precision
        return "fp64" if self.exact else "fp32"

    @property
    def included(self) -> tuple[Setting, ...]:
        return tuple(Setting.parse(name) for name in self.combine.include)

    @property
    def excluded(self) -> tuple[Setting, ...]:
        return tuple(Setting.parse(name) for name in self.combine.exclude)

    def to_toml(self) -> str:
        """What :func:`load` reads back to an equal matrix."""
        return tomli_w.dumps(cast("dict[str, Any]", _without_none(asdict(self))))


def load(path: Path) -> Matrix:
    """Read a TOML file. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    try:
        return parse(tomllib.loads(text), source=str(path))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: this is not TOML: {error}") from None


def preset(name: str) -> Matrix:
    """A matrix that comes with the package. Raises ConfigError."""
    names = sorted(path.stem for path in PRESETS.glob("*.toml"))
    if name not in names:
        raise ConfigError(f"--preset: there is no preset '{name}', expected one of {', '.join(names)}")
    return load(PRESETS / f"{name}.toml")


def parse(data: Mapping[str, Any] | Matrix, source: str = "matrix") -> Matrix:
    """Check what the user wrote. Raises ConfigError with a line for each key that is wrong."""
    given = _without_none(asdict(data)) if isinstance(data, Matrix) else dict(data)
    problems: list[str] = []
    given["axes"] = _parse_axes(given.get("axes", {}), problems)
    if isinstance(given.get("also"), (list, tuple)):
        given["also"] = [
            {**also, "axes": _parse_axes(also.get("axes", {}), problems, f"also[{index}].")}
            if isinstance(also, Mapping)
            else also
            for index, also in enumerate(given["also"])
        ]
    try:
        # As JSON, where arrays may become tuples and tables dataclasses while numbers are still told from strings.
        matrix = TypeAdapter(Matrix).validate_json(json.dumps(given, default=str))
    except ValidationError as error:
        problems += [_line(detail) for detail in error.errors()]
    else:
        problems += _rules(matrix)
    if problems:
        raise ConfigError("\n".join(f"{source}: {problem}" for problem in problems))
    seeds = tuple(range(matrix.repeat)) if matrix.repeat > 1 else matrix.seeds
    exact = matrix.command.precision == "fp64" if matrix.command else matrix.exact
    return replace(matrix, seeds=seeds, exact=exact)


def _parse_axes(given: object, problems: list[str], key: str = "") -> dict[Axis, tuple[Value, ...]]:
    """``tp = 2`` and ``tp = [2, 4]`` alike."""
    if not isinstance(given, Mapping):
        problems.append(f"{key}axes: expected a table of axes, not {given!r}")
        return {}
    axes: dict[Axis, tuple[Value, ...]] = {}
    for name, values in given.items():
        if name not in list(Axis):
            problems.append(f"{key}axes.{name}: this is no axis, expected one of {', '.join(Axis)}")
            continue
        spec = SPEC[Axis(name)]
        listed = values if isinstance(values, (list, tuple)) else [values]
        parsed: list[Value] = []
        for index, value in enumerate(listed):
            try:
                parsed.append(spec.parse(value))
            except ValueError as error:
                problems.append(f"{key}axes.{name}[{index}]: {error}")
        axes[spec.axis] = tuple(dict.fromkeys(value for value in parsed if value != spec.off))
    return axes


def _rules(matrix: Matrix) -> list[str]:
    """What concerns more than one key."""
    problems = []
    for label, ladder in matrix.ladders.items():
        problems += [matrix.key(label) + problem for problem in _rules_of_ladder(ladder)]
    problems += unusable(matrix.custom)
    problems += _rules_of_command(matrix)
    for name, table in matrix.custom.items():
        try:
            TypeAdapter(Train).validate_json(json.dumps(asdict(matrix.train) | table.train, default=str))
        except ValidationError as error:
            problems += [f"custom.{name}.train.{_line(detail)}" for detail in error.errors()]
    labels = [also.label for also in matrix.also]
    for index, label in enumerate(labels):
        if not _LABEL.fullmatch(label) or label in ("again", "cold"):
            problems.append(f"also[{index}].name: expected letters, digits, '-' and '_', not {label!r}")
        elif label in labels[:index]:
            problems.append(f"also[{index}].name: {label!r} is the name of also[{labels.index(label)}] as well")
    if matrix.repeat > 1 and matrix.seeds not in ((0,), tuple(range(matrix.repeat))):
        problems.append(f"repeat: give either this or seeds ({list(matrix.seeds)})")
    if not matrix.seeds or len(set(matrix.seeds)) != len(matrix.seeds) or min(matrix.seeds) < 0:
        problems.append(f"seeds: expected at least one seed, each 0 or more and none twice, not {list(matrix.seeds)}")
    return problems


def _rules_of_command(matrix: Matrix) -> list[str]:
    if matrix.command is None:
        return []
    others = (
        ("recipe", matrix.recipe != Matrix().recipe),
        ("also", bool(matrix.also)),
        ("train", matrix.train != Train()),
        *((f"custom.{name}.train", bool(table.train)) for name, table in matrix.custom.items()),
    )
    problems = [f"{key}: it says nothing to a script: leave it out, or leave out [command]" for key, on in others if on]
    options = [*matrix.options, *(key for table in matrix.custom.values() for key in table.options)]
    problems += mistakes(matrix.command, matrix.axes, dict.fromkeys(options))
    return problems or list(of_script(matrix.command, matrix.single, matrix.expect))


def _rules_of_ladder(matrix: Matrix) -> list[str]:
    problems = []
    for axis, values in matrix.axes.items():
        for needed in SPEC[axis].needs if values else ():
            if not matrix.axes.get(needed):
                problems.append(f"axes.{axis}: {axis} needs {needed}, and axes.{needed} has no value")
    for key, names in (("include", matrix.combine.include), ("exclude", matrix.combine.exclude)):
        for index, name in enumerate(names):
            try:
                Setting.parse(name)
            except ValueError as error:
                problems.append(f"combine.{key}[{index}]: {error}")
    problems += unknown(matrix.custom, matrix.axes.get(Axis.CUSTOM, ()))
    return problems


def _line(detail: ErrorDetails) -> str:
    path = ""
    for part in detail["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    match detail["type"]:
        case "unexpected_keyword_argument":
            return f"{path.lstrip('.')}: this key is not known"
        case "missing":
            return f"{path.lstrip('.')}: this key is missing"
    return f"{path.lstrip('.')}: {detail['msg'].lower()}, not {detail['input']!r}"


def _without_none(value: Any) -> Any:
    """TOML has no null: a key that is None is left out, which means the same."""
    if isinstance(value, Mapping):
        return {str(key): _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [_without_none(item) for item in value]
    return value
