"""Reads which collectives the ranks of one rung have called, and where those were that hung."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from dist_checks.judging.files import Part, parts
from dist_checks.judging.reading import DAMAGED, TraceError, lines_of, rank_list, read_line
from dist_checks.trace import Chain, collectives_path

Tensors = tuple[tuple[str, tuple[int, ...]], ...]
"""(dtype, shape) of each."""


class Group(NamedTuple):
    """A process group: the same object for all its ranks."""

    name: str
    ranks: tuple[int, ...]
    description: str


class Call(NamedTuple):
    """What was called, with what, and from where."""

    operation: str
    inputs: Tensors
    outputs: Tensors
    site: str


class Record(NamedTuple):
    """One collective of a group, as one of its ranks called it."""

    call: Call
    step: int
    pending: bool
    at: int
    """Its place among all that the rank called, of whatever group."""


class Hang(NamedTuple):
    """Where a rank was when it was asked."""

    step: int
    site: str


@dataclass(slots=True)
class RankCalls:
    """Of one rank."""

    rank: int
    collectives: dict[Group, dict[int, Record]] = field(default_factory=dict)
    """By number within the group, from 1. Sends and receives are left out."""
    lost: int = 0
    """Left the recorder's ring before they were read."""
    ended: bool = False
    """All that the rank has called is written."""
    left: bool = False
    """Its work went well to the end."""
    hang: Hang | None = None
    problem: str = ""
    """Why the file is not whole."""

    def pending(self) -> list[tuple[Group, int, Record]]:
        """In the order of steps."""
        found = [
            (group, number, record)
            for group, records in self.collectives.items()
            for number, record in records.items()
            if record.pending
        ]
        return sorted(found, key=lambda each: (each[2].step, each[1]))


POINT_TO_POINT = ("send", "recv", "recv_any_source", "isend", "irecv")


def read_calls(folder: Path, world_size: int) -> dict[int, RankCalls]:
    """By rank, those that left a file."""
    groups: dict[tuple[object, ...], Group] = {}
    calls: dict[Call, Call] = {}
    files = parts(folder)
    return {
        rank: _read_rank(path, files[path.name], rank, groups, calls)
        for rank in range(world_size)
        if (path := collectives_path(folder, rank)).name in files
    }


def _read_rank(
    path: Path, part: Part, rank: int, groups: dict[tuple[object, ...], Group], calls: dict[Call, Call]
) -> RankCalls:
    out = RankCalls(rank)
    own_groups: dict[int, Group] = {}
    own_calls: dict[int, Call] = {}
    number, chain, seen = 0, Chain(path), 0
    problems: list[str] = []
    for number, line in enumerate(lines_of(part, rank, problems), 1):
        try:
            event = read_line(line, path, chain)
            match event["event"]:
                case "group":
                    own_groups[event["index"]] = _group(event, groups)
                case "call":
                    call = Call(
                        operation=str(event["operation"]),
                        inputs=_tensors(event["inputs"]),
                        outputs=_tensors(event["outputs"]),
                        site=str(event["site"]),
                    )
                    own_calls[event["index"]] = calls.setdefault(call, call)
                case "collectives":
                    out.ended = False
                    for index, sequence, made, step, pending in event["records"]:
                        if own_calls[made].operation not in POINT_TO_POINT:
                            known = out.collectives.setdefault(own_groups[index], {})
                            # One that was pending comes again.
                            at = known[int(sequence)].at if int(sequence) in known else seen
                            known[int(sequence)] = Record(own_calls[made], int(step), bool(pending), at)
                            seen += 1
                case "lost":
                    out.lost += int(event["count"])
                case "hang":
                    out.hang = Hang(int(event["step"]), str(event["site"]))
                case "end":
                    out.ended = True
                case "left":
                    out.left = True
        except TraceError as error:  # of another version: nothing in it can be told
            out.problem = str(error)
            break
        except DAMAGED as error:
            out.problem = f"{path.name} of rank {rank} is cut or damaged at line {number} ({type(error).__name__})"
            out.ended = out.left = False
            break
    if not number:
        out.problem = problems[0] if problems else f"{path.name} of rank {rank} is empty"
    return out


def _group(event: Mapping[str, Any], groups: dict[tuple[object, ...], Group]) -> Group:
    ranks = tuple(int(rank) for rank in event["ranks"] or ())
    # Where torch did not tell the ranks any more, the name is all there is.
    group = Group(str(event["name"]), ranks, str(event["description"]))
    return groups.setdefault((group.name, group.ranks), group)


def _tensors(value: Any) -> Tensors:
    return tuple((str(dtype), tuple(int(length) for length in shape)) for dtype, shape in value)


def words(call: Call) -> str:
    """``all_reduce of double [3, 4] at sum_over_data (mesh.py:122)``."""
    shown = [f"{dtype} {list(shape)}" for dtype, shape in (call.inputs or call.outputs)[:2]]
    more = f" and {len(call.inputs) - 2} more" if len(call.inputs) > 2 else ""
    of = f" of {', '.join(shown)}{more}" if shown else ""
    return f"{call.operation}{of}" + (f" at {call.site}" if call.site else "")


def name(group: Group) -> str:
    """``the tp group of ranks 0 and 1``."""
    kind = group.description.removeprefix("mesh_") + " " if group.description.startswith("mesh_") else ""
    return f"the {kind}group of {rank_list(group.ranks)}" if group.ranks else f"the {kind}group {group.name}"
