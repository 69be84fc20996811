"""The axes: what each is called, takes, needs and refuses. No torch here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Value = int | bool | str

PRECISIONS = ("fp64", "fp32", "bf16", "fp16", "bf16_params", "fp16_params", "bf16_pure", "bf16_fsdp")
"""bf16_params and fp16_params are singles only: the model in 16 bits, of which the optimizer steps a float32 copy."""

ZERO_STAGES = (1, 2, 3)
"""The values of zero that are DeepSpeed's."""

CUSTOM_NAME = r"[A-Za-z0-9_-]+"
"""What a user may call an axis of his own: folders are called after it."""


class Axis(StrEnum):
    """Every axis that a rung can switch on, outermost in the grid of ranks first."""

    PP = "pp"
    DP_REPLICATE = "dp_replicate"
    DP_SHARD = "dp_shard"
    EP = "ep"
    CP = "cp"
    TP = "tp"
    SP = "sp"
    ZERO = "zero"
    SCHEDULE = "schedule"
    ACCUM = "accum"
    CKPT_ACT = "ckpt_act"
    RESUME = "resume"
    COMPILE = "compile"
    FUSED = "fused"
    PRECISION = "precision"
    CUSTOM = "custom"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What an axis is, apart from how it is applied (that is in ``worker/axes``)."""

    axis: Axis
    takes: Literal["degree", "switch", "choice", "name"]
    meaning: str
    structural: bool = True
    """Structural axes change how the work is split; the others change the numbers that are computed with."""
    devices: bool = False
    """The world is ``degree`` times larger."""
    data: bool = False
    """Ranks along this axis read different samples."""
    sequence: bool = False
    """Ranks along this axis hold different parts of the sequence: a rank's loss is that of its part."""
    needs: tuple[Axis, ...] = ()
    refuses: tuple[tuple[Axis, str], ...] = ()
    """The axes that it cannot be combined with, each with the reason that the plan shows."""
    choices: tuple[int | str, ...] = ()
    plain: bool = True
    """Of a choice: a rung is named by the value alone (``bf16``); else by axis and value (``zero3``)."""
    joint: str = ""
    """What stands between the two: ``resume_same``."""
    default: tuple[Value, ...] = ()
    """The values that the built-in ladder tries. Degrees of different axes are coprime where the world allows it, so
    that a gradient which is 3.000 x the reference has one suspect."""

    @property
    def off(self) -> Value:
        """The value that means off. For a choice there is none: the matrix decides which one is the plain one."""
        off: dict[str, Value] = {"degree": 1, "switch": False, "choice": "", "name": ""}
        return off[self.takes]

    def parse(self, value: object) -> Value:
        """The value that the user wrote, or ValueError with the rule that it breaks."""
        match self.takes:
            case "degree":
                if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
                    return value
                raise ValueError(f"{self.axis} takes a whole number of at least 1 (1 is off), not {value!r}")
            case "switch":
                if isinstance(value, bool):
                    return value
                raise ValueError(f"{self.axis} takes true or false, not {value!r}")
            case "choice":
                if value in self.choices and not isinstance(value, bool):
                    assert isinstance(value, int | str)
                    return value
                raise ValueError(f"{self.axis} takes one of {', '.join(map(str, self.choices))}, not {value!r}")

            case "name":
                if isinstance(value, str) and re.fullmatch(CUSTOM_NAME, value):
                    return value
                raise ValueError(f"{self.axis} takes the name of a table such as [{self.axis}.NAME], not {value!r}")

    def word(self, value: Value) -> str:
        """What ``value`` is called in the name of a rung: ``tp2``, ``sp``, ``zero3``, ``bf16``."""
        match self.takes:
            case "degree":
                return f"{self.axis}{value}"
            case "switch":
                return f"{self.axis}"
            case "choice":
                return f"{value}" if self.plain else f"{self.axis}{self.joint}{value}"
            case "name":
                return f"{self.axis}.{value}"

    def unword(self, part: str) -> Value | None:
        """The value that is called ``part``; None where it is not one of this axis."""
        if self.takes == "degree":
            number = part.removeprefix(self.axis)
            return int(number) if number != part and number.isdecimal() else None
        if self.takes == "name":
            found = re.fullmatch(rf"{self.axis}\.({CUSTOM_NAME})", part)
            return found and found[1]
        values: tuple[Value, ...] = (True,) if self.takes == "switch" else self.choices
        return next((value for value in values if part == self.word(value)), None)


SPECS: tuple[Spec, ...] = (
    Spec(
        axis=Axis.PP,
        takes="degree",
        meaning="layers split over stages, which pass micro-batches on: torch.distributed.pipelining",
        devices=True,
        default=(2,),
    ),
    Spec(
        axis=Axis.DP_REPLICATE,
        takes="degree",
        meaning="replicas that read different samples and average their gradients: DDP; with dp_shard, HSDP",
        devices=True,
        data=True,
        default=(3,),
    ),
    Spec(
        axis=Axis.DP_SHARD,
        takes="degree",
        meaning="parameters, gradients and optimizer state sharded over ranks that read different samples: FSDP2",
        devices=True,
        data=True,
        default=(3, 2),
    ),
    Spec(
        axis=Axis.EP,
        takes="degree",
        meaning="experts of a mixture spread over ranks that read different samples; tokens travel by all-to-all",
        devices=True,
        data=True,
        refuses=(
            (Axis.ZERO, "DeepSpeed would average the gradients of experts over all data ranks"),
            (Axis.CP, "gradients of experts are not added up over parts of the sequence"),
            (Axis.PP, "the balance of a mixture of experts does not travel from stage to stage"),
        ),
        default=(2,),
    ),
    Spec(
        axis=Axis.CP,
        takes="degree",
        meaning="the sequence split over ranks, which exchange keys and values in attention",
        devices=True,
        sequence=True,
        refuses=(
            (Axis.PP, "the stages of the pipeline take whole sequences"),
            (Axis.EP, "the gradients of experts are not reduced over parts of the sequence"),
            (Axis.ZERO, "its engine averages gradients over data ranks only"),
        ),
        default=(2,),
    ),
    Spec(
        axis=Axis.TP,
        takes="degree",
        meaning="matrices sharded by columns and rows, vocabulary-parallel embedding and loss",
        devices=True,
        default=(2,),
    ),
    Spec(
        axis=Axis.SP,
        takes="switch",
        meaning="norms computed on a part of the sequence, inside tp",
        needs=(Axis.TP,),
        default=(True,),
    ),
    Spec(
        axis=Axis.ZERO,
        takes="choice",
        meaning="optimizer state (1), gradients (2), parameters (3) partitioned over replicas by DeepSpeed; "
        "redundancy: torch's ZeroRedundancyOptimizer",
        needs=(Axis.DP_REPLICATE,),
        refuses=(
            (Axis.DP_SHARD, "both partition what replicas hold"),
            (
                Axis.TP,
                "DeepSpeed flattens parameters, which DTensor does not allow, and has a tensor parallelism of its own",
            ),
            (Axis.SP, "it works inside tp"),
            (Axis.PP, "DeepSpeed has pipeline stages of its own"),
            (Axis.EP, "DeepSpeed has experts of its own"),
            (Axis.CP, "DeepSpeed averages over all ranks, and has a sequence parallelism of its own"),
        ),
        choices=(*ZERO_STAGES, "redundancy"),
        plain=False,
        default=(1, 2, 3),
    ),
    Spec(
        axis=Axis.SCHEDULE,
        takes="choice",
        meaning="the order in which stages work, where it is not gpipe",
        needs=(Axis.PP,),
        choices=("1f1b", "interleaved", "zerobubble"),
        default=("1f1b", "interleaved"),
    ),
    Spec(axis=Axis.ACCUM, takes="degree", meaning="micro-batches for one optimizer step", default=(5,)),
    Spec(
        axis=Axis.CKPT_ACT,
        takes="switch",
        meaning="activation checkpointing: blocks are computed again in backward",
        default=(True,),
    ),
    Spec(
        axis=Axis.RESUME,
        takes="choice",
        meaning="saved twice, each time to go on in new processes, with the same layout, or with another in between: "
        "half of each degree, dp_replicate for dp_shard; torch.distributed.checkpoint",
        choices=("same", "other"),
        plain=False,
        joint="_",
        default=("same", "other"),
    ),
    Spec(axis=Axis.COMPILE, takes="switch", structural=False, meaning="each block compiled", default=(True,)),
    Spec(
        axis=Axis.FUSED,
        takes="switch",
        meaning="fused kernels of attention and optimizer",
        structural=False,
        default=(True,),
    ),
    Spec(
        axis=Axis.PRECISION,
        takes="choice",
        meaning="numbers that are computed with: fp64, fp32, bf16 or fp16 autocast, the last with loss scaling; "
        "bf16_params, fp16_params: the model in 16 bits; bf16_pure: the optimizer too; bf16_fsdp: cast by FSDP2",
        structural=False,
        choices=PRECISIONS,
        default=("bf16", "fp16"),
    ),
    Spec(axis=Axis.CUSTOM, takes="name", meaning="a setting of the user's own: [custom.NAME] says what it sets"),
)
SPEC: dict[Axis, Spec] = {spec.axis: spec for spec in SPECS}
