"""``dist-checks diff``: which traces of two folders belong together, and what to say of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dist_checks.judging.diffing import Diff, compare
from dist_checks.judging.reading import TraceError
from dist_checks.matrix import ConfigError


def diffs(a: Path, b: Path) -> dict[str, Diff]:
    """By what is compared: two traces, or each rung that two runs have in common. Raises ConfigError."""
    out = {}
    for name, one, other in _pairs(a, b):
        try:
            out[name] = compare(one, other)
        except (TraceError, FileNotFoundError) as error:
            raise ConfigError(str(error)) from None
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
