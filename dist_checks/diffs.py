"""``dist-checks diff``: which traces of two folders belong together, and what to say of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dist_checks.judging.diffing import Diff, compare
from dist_checks.judging.judge import PlanError, read_plan
from dist_checks.judging.losses import losses
from dist_checks.judging.noise import Noise, end, noise
from dist_checks.judging.reading import TraceError, read
from dist_checks.judging.seen import Seen
from dist_checks.matrix import ConfigError
from dist_checks.rung import Role, Rung


def diffs(a: Path, b: Path) -> dict[str, Diff]:
    """By what is compared: two traces, or each rung that two runs have in common. Raises ConfigError."""
    out = {}
    for name, one, other in _pairs(a, b):
        try:
            out[name] = compare(one, other)
        except (TraceError, FileNotFoundError) as error:
            raise ConfigError(str(error)) from None
    return out


def between_seeds(a: Path, b: Path) -> dict[str, Noise]:
    """Of each rung that two runs have with the same seeds: is the loss at its end another than seeds make it?"""
    one, other = _ends(a), _ends(b)
    pairs: dict[str, list[tuple[float, float]]] = {}
    for key in one:
        if key in other:
            pairs.setdefault(key[0], []).append((one[key], other[key]))
    return {name: noise(each) for name, each in pairs.items()}


def _ends(run: Path) -> dict[tuple[str, int], float]:
    """The mean of the last losses of each rung, by what it is called without its seed, and by seed. Empty of a trace by
    itself: nobody knows its seed."""
    try:
        rungs = [Rung.from_json(each) for each in read_plan(run)["rungs"]]
    except PlanError:
        return {}
    out = {}
    for rung in rungs:
        folder = run / "rungs" / rung.id
        if rung.role is Role.TWIN or not any(folder.glob("rank-*")):
            continue
        try:
            found = losses(Seen(rung, read(folder, rung.layout.world_size)))
        except TraceError:
            continue
        value = end([found[step].mean for step in sorted(found)])
        if value is not None:
            out[rung.id.removesuffix(f"@seed{rung.seed}"), rung.seed] = value
    return out


def _pairs(a: Path, b: Path) -> Iterator[tuple[str, Path, Path]]:
    for folder in (a, b):
        if not _traces(folder):
            raise ConfigError(f"{folder}: neither a run nor the trace of one: no rungs, and no rank-00000.jsonl")
    one, other = _traces(a), _traces(b)
    if "" in one and "" in other:
        yield f"{a.name} and {b.name}", one[""], other[""]
        return
    if "" in one or "" in other:
        run = b if "" in one else a
        raise ConfigError(f"{run}: this is a run; name one of its traces: {', '.join(sorted(_traces(run)))} in rungs/")
    common = [name for name in one if name in other]
    if not common:
        raise ConfigError(f"{a} and {b} have no rung in common: name two traces, such as {a}/rungs/{min(one)}")
    for name in common:
        yield name, one[name], other[name]


def _traces(folder: Path) -> dict[str, Path]:
    """Those of a run by the ids of its rungs; a trace by itself has no name."""
    if any(folder.glob("rank-*.jsonl")):
        return {"": folder}
    found = sorted(folder.glob("rungs/*/rank-00000.jsonl"))
    return {path.parent.name: path.parent for path in found}
