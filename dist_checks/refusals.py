"""What cannot run, and why: from what the recipe says about itself, and from what axes do to each other."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from dist_checks import pipeline, restarts
from dist_checks.axes import SPEC, ZERO_STAGES, Axis, Layout, Setting
from dist_checks.matrix import Matrix


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

    def of(self, setting: Setting) -> Facts:
        """Those of the recipe as a custom axis makes it."""
        other = self.description.get("custom", {}).get(setting.get(Axis.CUSTOM))
        return self if other is None else Facts.from_json({**self.description, **other})

    @property
    def missing(self) -> Mapping[str, str]:
        """For an axis, what the machine lacks for it."""
        found: Mapping[str, str] = self.description.get("missing", {})
        return found

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


def steps_of_epoch(matrix: Matrix, facts: Facts, setting: Setting) -> int:
    """The last one may be smaller. One epoch, where the recipe does not say how many samples it has."""
    samples = facts.of(setting).samples
    return matrix.steps if samples is None else -(-samples // matrix.train_of(setting).batch)


class Refusals:
    """Why a setting cannot run, or an empty string."""

    def __init__(self, matrix: Matrix, facts: Facts, devices: int) -> None:
        self._matrix, self._facts, self._devices = matrix, facts, devices

    def __call__(self, setting: Setting, *, asked: bool = False) -> str:
        """``asked``: the user has named this very setting, so it may have degrees that could be confused."""
        layout = Layout(setting)
        facts = self._facts.of(setting)
        for axis in setting:
            if reason := facts.missing.get(axis):
                return f"{axis} {reason}"
            for needed in SPEC[axis].needs:
                if needed not in setting:
                    return f"{axis} needs {needed}"
            for other, why in () if self._matrix.command else SPEC[axis].refuses:
                if other in setting:
                    return f"{axis} cannot be combined with {other}: {why}"
            if lacking := facts.lacking.get(axis):
                return f"{axis} {lacking}"
            for name, number in facts.divisors.get(axis, {}).items():
                if rule := setting.must_divide(axis, f"the recipe's {name}", number):
                    return rule
        if reason := self._numbers(setting) or self._framework(setting):
            return reason
        if layout.world_size > self._devices:
            return f"a world of {layout.world_size} ranks is larger than the {self._devices} devices"
        return self._of_loop(setting) or self._left_out(setting, asked=asked)

    def _of_loop(self, setting: Setting) -> str:
        """What the worker's loop cannot do; a script has its own."""
        if self._matrix.command:
            return ""
        layout, batch = Layout(setting), self._smallest_batch(setting)
        cut = pipeline.micro_batches(setting)
        micro_batches = setting.degree(Axis.ACCUM) * cut
        passes = layout.data_size * micro_batches
        if batch < passes:
            of = f" ({setting.degree(Axis.ACCUM)} of accum x {cut} of pp)" if cut > 1 else ""
            return (
                f"{layout.data_size} data ranks with {micro_batches} micro-batches each{of} need {passes} "
                f"samples, and the smallest batch has {batch}"
            )
        return pipeline.refusal(setting) or self._too_many_stages(setting) or self._resume(setting)

    def _left_out(self, setting: Setting, *, asked: bool) -> str:
        for excluded in self._matrix.excluded:
            if excluded.items() <= setting.items():
                return f"combine.exclude has {excluded.name}"
        return "" if asked else self._confusing(setting)

    def _resume(self, setting: Setting) -> str:
        """A run that is too short, and what the layout in between cannot do."""
        if Axis.RESUME not in setting:
            return ""
        try:
            restarts.points(self._matrix.steps, steps_of_epoch(self._matrix, self._facts, setting))
        except ValueError as error:
            return str(error)
        between = restarts.between(setting)
        if between is not None and setting.get(Axis.ZERO) in ZERO_STAGES:
            return (
                "resume_other cannot be combined with zero 1 to 3: DeepSpeed loads partitions only where there are as "
                "many ranks as have saved them"
            )
        if between is None or not (reason := self(between, asked=True)):
            return ""
        return f"resume_other goes on as {between.name} in between: {reason}"

    def _too_many_stages(self, setting: Setting) -> str:
        facts = self._facts.of(setting)
        stages, most = pipeline.stages(setting), facts.stages
        if most is None or stages <= most:
            return ""
        name = facts.description.get("name", "")
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
        if precision in ("bf16_pure", "bf16_fsdp") and Axis.ZERO in setting:
            return f"zero cannot be combined with {precision}: it has casts and master weights of its own"
        if Axis.FUSED in setting and self._matrix.train_of(setting).optimizer == "sgd":
            for axis in (Axis.DP_SHARD, Axis.TP, Axis.EP):
                if axis in setting:
                    return f"fused with train.optimizer sgd cannot be combined with {axis}: torch has none for DTensors"
        if setting.get(Axis.ZERO) == 3 and Axis.COMPILE in setting:
            return (
                "zero 3 cannot be combined with compile: DeepSpeed's hooks break graphs, and torch falls back to eager"
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

    def _smallest_batch(self, setting: Setting) -> int:
        """In samples: the last batch of an epoch may be smaller than the others."""
        batch = self._matrix.train_of(setting).batch
        samples = self._facts.of(setting).samples
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
