"""What a cluster wants to be told: the tables [launch.slurm] and [launch.ray] of matrix.toml."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Annotated

from annotated_types import Ge, Gt
from pydantic import ConfigDict

_STRICT = ConfigDict(extra="forbid", strict=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slurm:
    """Empty: Slurm's own default. Used where the launcher submits; inside an allocation, only `srun`."""

    __pydantic_config__ = _STRICT
    nodes: Annotated[int, Ge(1)] | None = None
    """None for as many as the largest rung needs."""
    account: str = ""
    partition: str = ""
    qos: str = ""
    constraint: str = ""
    reservation: str = ""
    gres: str = ""
    """Of each node: ``gpu:8``."""
    cpus_per_node: Annotated[int, Ge(1)] | None = None
    """None for one for each rank of a node."""
    mem: str = ""
    """Of each node: ``64G``; ``0`` for all of it."""
    exclude: str = ""
    time: str = "01:00:00"
    """For the whole ladder."""
    wait: Annotated[float, Gt(0)] = 86400.0
    """Seconds that the job may wait for its turn before it is cancelled."""
    prologue: tuple[str, ...] = ()
    """Lines of the batch script before the harness: ``module load cuda``, ``source venv/bin/activate``."""
    python: str = ""
    """That runs the harness in the job; '' for the one that submits."""
    sbatch: tuple[str, ...] = ()
    """More options for sbatch, one word each: ``--mail-type=END``."""
    srun: tuple[str, ...] = ()
    """More options for the step of each node, such as ``--container-image=...``."""

    def options(self, nodes: int, ranks_per_node: int, nodelist: tuple[str, ...]) -> list[str]:
        """For sbatch. Without a requeue: what a node has cut short is to be seen. --no-kill: the other nodes go on."""
        named = ("account", "partition", "qos", "constraint", "reservation", "gres", "mem", "exclude", "time")
        return [
            *("--no-requeue", "--no-kill", f"--nodes={self.nodes or nodes}", "--ntasks-per-node=1"),
            f"--cpus-per-task={self.cpus_per_node or ranks_per_node}",
            *(f"--{name}={value}" for name in named if (value := getattr(self, name))),
            *([f"--nodelist={','.join(nodelist)}"] if nodelist else []),
            *self.sbatch,
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ray:
    """How nodes of a Ray cluster are asked for."""

    __pydantic_config__ = _STRICT
    address: str = ""
    """Of a running cluster, ``auto`` for the one of this machine or job; '' starts one here for the time of the run."""
    nodes: Annotated[int, Ge(1)] | None = None
    """None for all that the cluster has."""
    strategy: str = "spread"
    """``spread`` over nodes, or ``packed`` on few: then several agents may be on one node."""
    cpus_per_node: Annotated[int, Ge(1)] | None = None
    gpus_per_node: Annotated[int, Ge(0)] | None = None
    """None for all that a node has."""
    wait: Annotated[float, Gt(0)] = 300.0
    """Seconds until the cluster has to have room."""


def given(words: list[str]) -> Iterator[tuple[str, object]]:
    """``--slurm partition=gpu`` and the like: keys with values as TOML would have them. Raises ValueError."""
    types = {field.name: str(field.type) for field in (*fields(Slurm), *fields(Ray))}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise ValueError(f"expected KEY=VALUE, not {word!r}")
        kind = types.get(key, "str")
        if "tuple" in kind:
            yield key, [value]
        elif re.fullmatch(r"\d+", value) and "int" in kind:
            yield key, int(value)
        elif re.fullmatch(r"\d+(\.\d*)?", value) and "float" in kind:
            yield key, float(value)
        else:
            yield key, value
