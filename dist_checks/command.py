"""A script of the user's own as what a rung runs: its command line, and what can be seen of it. No torch here."""

from __future__ import annotations

import shlex
import string
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import ConfigDict

from dist_checks.axes import SPEC, Axis, Setting

GIVEN = ("seed", "steps", "rung", "out", "world_size")
"""Placeholders besides those of axes and options. ``{out}`` is a folder of the rung's own."""


HOOKS = "dist_checks.probe.unchanged"
OUTSIDE = "dist_checks.probe.outside"

OF_A_RANK = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun tells a rank, and a script that starts ranks would take for its own."""


class Run(Protocol):
    """Of a rung, what a command line is filled with."""

    @property
    def id(self) -> str: ...
    @property
    def setting(self) -> Setting: ...
    @property
    def precision(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def steps(self) -> int: ...
    @property
    def cold(self) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """The table ``[command]``: a training script, started on every rank under torchrun's environment."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)
    argv: str
    """``train.py --tp {tp} --dp {dp_replicate} {sp:--sequence-parallel} --seed {seed} --steps {steps}``: the value of
    an axis, or a text where it is on and nothing where it is off."""
    see: Literal["probe", "hooks", "log"] = "probe"
    """By the probe that the script attaches; by hooks that ``dist-checks attach`` puts in, no line changed; or only by
    what the script prints and saves."""
    precision: Literal["fp64", "fp32", "bf16", "fp16"] = "fp32"
    """What it computes in where the precision axis is off."""
    warm: bool = False
    """Fork ranks from a process that has imported torch, instead of starting python anew for each: much faster."""
    launches: bool = False
    """It starts its ranks by itself (Ray Train, torchrun): it is run once, and told by ``{world_size}`` how many."""
    shuffle: bool = True
    """It reads each epoch in another order."""
    loss: str = ""
    """Where the loss of a step is to be found: a regular expression with a group ``loss`` and perhaps ``step``, or
    ``jsonl:KEY``, or ``tensorboard:TAG``."""
    log: str = ""
    """The file or folder that ``loss`` is read from, such as ``{out}/metrics.jsonl``; by default what is printed."""
    starts_trained: bool | None = None
    """Whether its weights are trained ones before the first step. Where this is not said, a first loss that is lower
    than chance is not called wrong."""
    pad: int | None = None
    begin: int | None = None
    end: int | None = None
    """Tokens that are padding, and that begin and end a text, for rung zero to look for in its batches."""
    spares_norms: bool = False
    """Norms and biases are to have no weight decay."""
    checkpoint: str = ""
    """What it saves at the end: a file or a folder, such as ``{out}/model.safetensors``."""

    @property
    def words(self) -> list[str]:
        """Raises ValueError where quotes are not closed."""
        return shlex.split(self.argv)

    @property
    def name(self) -> str:
        """What rungs of it are said to run."""
        return next((Path(word).name for word in self.words if word.endswith(".py")), self.words[0])

    def fields(self) -> Iterator[str]:
        """Names of the placeholders of ``argv``. Raises ValueError where a brace is not closed."""
        yield from _fields(self.argv)

    @property
    def can_be_alone(self) -> bool:
        """Whether it can be run for as many steps as rung zero needs, and be seen."""
        return self.see != "log" and "steps" in self.fields()

    def filled(self, run: Run, options: Mapping[str, Any], folder: Path) -> tuple[str, ...]:
        """The command of a rung whose files are in ``folder``."""
        words = [self.fill(word, run, options, folder) for word in self.words]
        words = [word for word, template in zip(words, self.words, strict=True) if word or not _is_flag(template)]
        if self.launches:  # it is no rank itself
            return ("env", *(f"--unset={name}" for name in OF_A_RANK), *_python(words[0]), *words)
        python = _python(words[0])
        if self.see == "hooks":
            python += ["-m", HOOKS]
        if self.see == "log":
            return (sys.executable, "-m", OUTSIDE, *python, *words)
        return (*python, *words)

    def script(self, argv: tuple[str, ...]) -> list[str]:
        """The part of :meth:`filled` that is the script with its arguments."""
        return list(argv[{"probe": 1, "hooks": 3, "log": 4}[self.see] :])

    def forks(self, run: Run) -> bool:
        """Whether a rung is run by ranks that were forked."""
        return self.warm and not self.launches and not run.cold and self.words[0].endswith(".py")

    def fill(self, text: str, run: Run, options: Mapping[str, Any], folder: Path) -> str:
        """``text`` with the values of a rung in its placeholders."""
        values: dict[str, Any] = {axis.value: _Value(axis, run) for axis in Axis}
        values |= dict(options)
        values |= {"seed": run.seed, "steps": run.steps, "rung": run.id, "out": out_of(folder)}
        values["world_size"] = world_size(run.setting)
        return string.Formatter().vformat(text, (), values)


def out_of(folder: Path) -> Path:
    """Where the script of the rung in ``folder`` may write."""
    return folder.absolute() / "out"


def world_size(setting: Setting) -> int:
    from dist_checks.axes import Layout

    return Layout(setting).world_size


def _python(word: str) -> list[str]:
    """What runs a command whose first word is this."""
    return [sys.executable] if word.endswith(".py") or word.startswith("-") else []


class _Value:
    """``{tp}``, and ``{tp:--tensor-parallel}``, which is nothing where tp is off."""

    def __init__(self, axis: Axis, run: Run) -> None:
        self._axis, self._run = axis, run

    def __format__(self, text: str) -> str:
        axis, setting = self._axis, self._run.setting
        if text:
            return text if axis in setting else ""
        if axis is Axis.PRECISION:
            return self._run.precision
        value = setting.get(axis, 0 if axis is Axis.ZERO else SPEC[axis].off)
        return str(value).lower() if isinstance(value, bool) else str(value)


def _fields(text: str) -> Iterator[str]:
    for _, field, _, _ in string.Formatter().parse(text):
        if field is not None:
            yield field


def _is_flag(template: str) -> bool:
    """Nothing but placeholders: where they give nothing, the word is left out."""
    return all(not literal for literal, *_ in string.Formatter().parse(template))


def mistakes(command: Command, axes: Mapping[Axis, tuple[object, ...]], options: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the table, a line for each key."""
    try:
        if not command.words:
            yield "command.argv: expected a command such as 'train.py --tp {tp}', not ''"
            return
    except ValueError as error:
        yield f"command.argv: {str(error).lower()}: {command.argv!r}"
        return
    known = {*Axis, *GIVEN, *options}
    for key in ("argv", "log", "checkpoint"):
        try:
            found = set(_fields(getattr(command, key)))
        except ValueError as error:
            yield f"command.{key}: {error}: write {{{{ and }}}} for braces"
            return
        for name in sorted(found - known):
            yield f"command.{key}: there is nothing to put in for {{{name}}}, expected an axis, " + (
                f"one of {', '.join(GIVEN)}, or a key of [options]"
            )
    placed = set(command.fields())
    unplaced = [axis for axis, values in axes.items() if values and axis not in placed and axis is not Axis.CUSTOM]
    # One of them may be what is left of the world: scripts take that from WORLD_SIZE.
    rest = [axis for axis in unplaced if SPEC[axis].devices]
    for axis in unplaced:
        if axis not in rest[:1]:
            yield f"axes.{axis}: command.argv has no {{{axis}}}: the script would not know of it"
    if command.see == "hooks" and not (command.words[0].endswith(".py") or command.words[0] == "-m"):
        first = command.words[0]
        yield f"command.argv: hooks are put into 'train.py ...' or '-m package.train ...', not into {first!r}"
    if command.launches and (command.see != "probe" or command.warm):
        yield "command.launches: ranks that a script starts are neither forked (warm) nor seen without its probe (see)"
    if command.see == "log" and not (command.loss or command.checkpoint):
        yield "command.see: by its log alone: say where its loss is (command.loss) or what it saves (.checkpoint)"
