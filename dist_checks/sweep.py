"""Every node of a cluster, and each pair of neighbours, before a night is spent on them: which one is odd?"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from dist_checks.doctor import Check
from dist_checks.launching import open_launcher
from dist_checks.matrix import ConfigError, Matrix
from launch import scratch
from launch.base import Exit, Job, LaunchError, State
from launch.cluster import ClusterLauncher

ENTRY = "dist_checks.worker.known_products:main"
DEADLINE = 60.0


def sweep(matrix: Matrix, fault: str = "") -> list[Check]:
    """A line for each node and each pair. Raises ConfigError where the launcher cannot start, or has one machine."""
    placed = replace(matrix, launch=replace(matrix.launch, ranks_per_node=1))
    try:
        with open_launcher(placed) as launcher, scratch.held("dist-checks-") as folder:
            if not isinstance(launcher, ClusterLauncher):
                raise ConfigError("--every-node: one machine is all that the launcher 'local' has")
            names = launcher.nodes
            jobs = list(_jobs(names, folder, fault))
            exits = {exit.job: exit for exit in launcher.run(jobs)}
            lost = [Check(what="nodes", ok=False, seen=note.splitlines()[0]) for note in launcher.notes]
            return [*lost, *_nodes(names, exits, folder), *_pairs(names, exits)]
    except LaunchError as error:
        raise ConfigError(f"--every-node: {error}") from None


def _jobs(names: Sequence[str], folder: Path, fault: str) -> Iterator[Job]:
    for group in [(name,) for name in names] + list(pairwise(names)):
        own = folder / "+".join(group)
        payload = {"folder": str(own.absolute())} | ({"fault": fault} if fault else {})
        yield Job(
            name="+".join(group),
            folder=own,
            world_size=len(group),
            nodes=group,
            entry=ENTRY,
            payload=payload,
            deadline=DEADLINE,
        )


def _nodes(names: Sequence[str], exits: dict[str, Exit], folder: Path) -> Iterator[Check]:
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        path = folder / name / "bits-0.json"
        if exits[name].state is State.DONE and path.exists():
            found[name] = json.loads(path.read_text())
    usual = {kind: _usual([each for each in found.values() if each["kind"] == kind]) for kind in _kinds(found)}
    for name in names:
        if name not in found:
            yield Check(what=f"node {name}", ok=False, seen=_last(exits[name]))
            continue
        own = found[name]
        others = sum(each["kind"] == own["kind"] for each in found.values()) - 1
        odd = [key for key, bits in own["bits"].items() if bits != usual[own["kind"]][key]]
        if not own["exact"]:
            yield Check(what=f"node {name}", ok=False, seen="products of whole numbers are wrong")
        elif odd:
            seen = f"other bits than most of the {others} nodes of its kind in {len(odd)} products: {odd[0]}"
            yield Check(what=f"node {name}", ok=False, seen=seen)
        else:
            like = f"the bits of {others} other nodes" if others else "no other node of its kind to compare with"
            yield Check(what=f"node {name}", ok=True, seen=f"{len(own['bits'])} products, {like} ({own['kind']})")


def _pairs(names: Sequence[str], exits: dict[str, Exit]) -> Iterator[Check]:
    for pair in pairwise(names):
        exit = exits["+".join(pair)]
        good = exit.state is State.DONE
        yield Check(
            what=f"{pair[0]} with {pair[1]}",
            ok=good,
            seen=f"2 ranks agree, {exit.seconds:.2f} s" if good else _last(exit),
        )


def _kinds(found: dict[str, dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(each["kind"] for each in found.values()))


def _usual(alike: Sequence[dict[str, Any]]) -> dict[str, str]:
    """What most of them compute; where two halves disagree, the first half's."""
    keys = alike[0]["bits"] if alike else {}
    return {key: Counter(each["bits"][key] for each in alike).most_common(1)[0][0] for key in keys}


def _last(exit: Exit) -> str:
    lines = exit.error.strip().splitlines() or [str(exit.state)]
    return lines[0]
