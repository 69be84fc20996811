"""Of a rung that hung: which ranks wait in which collective, who is missing there, and what that one does instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dist_checks.judging.calls import Group, RankCalls, Record, name, words
from dist_checks.judging.reading import rank_list
from dist_checks.judging.view import RungView


@dataclass(frozen=True, slots=True, kw_only=True)
class Hung:
    sentence: str
    step: int
    ranks: tuple[int, ...]
    """Those that do otherwise than most."""


@dataclass(frozen=True, slots=True)
class Waits:
    """In a collective."""

    group: Group
    number: int
    record: Record


@dataclass(frozen=True, slots=True)
class _Is:
    """Anywhere else."""

    one: str
    many: str

    def of(self, ranks: list[int]) -> str:
        return self.many if len(ranks) > 1 else self.one


_Place = Waits | _Is


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Where the ranks of a job are, in words."""

    words: tuple[str, ...]
    odd: tuple[int, ...]
    """Ranks that do otherwise than most."""
    waiting: tuple[Waits, ...]


def tell(view: RungView, calls: Mapping[int, RankCalls]) -> Hung:
    """In words. Ranks that did not answer are where the launcher saw their stacks."""
    exits = {int(rank["rank"]): rank for rank in (view.exit or {}).get("ranks") or () if "rank" in rank}
    found = told(view.layout.world_size, calls, exits)
    step = min((place.record.step for place in found.waiting), default=_last_step(calls, view))
    when = "before the first step" if step < 0 else f"in step {step}"
    if step >= view.stop:
        when = "after the last step"
    return Hung(sentence=f"hung {when}: {'; '.join(found.words)}", step=max(step, 0), ranks=found.odd)


def told(world_size: int, calls: Mapping[int, RankCalls], exits: Mapping[int, Mapping[str, Any]]) -> Told:
    """Of ranks that hung, whatever they run: who waits in which collective, and what the others do instead.

    ``calls`` is what they have called, ``exits`` how they ended, as exit.json has it, each by rank.
    """
    places: dict[object, tuple[_Place, list[int]]] = {}
    for rank in range(world_size):
        place = _place(rank, calls.get(rank), exits.get(rank, {}))
        key = (place.group, place.number, place.record.call.operation) if isinstance(place, Waits) else place
        places.setdefault(key, (place, []))[1].append(rank)
    # Most ranks first, and of as many, those that wait.
    ordered = sorted(places.values(), key=lambda each: (-len(each[1]), isinstance(each[0], _Is)))
    waiting = [(place, ranks) for place, ranks in ordered if isinstance(place, Waits)]
    others = [(place, ranks) for place, ranks in ordered if isinstance(place, _Is)]
    sentences: list[str] = []
    said: set[int] = set()
    for place, ranks in waiting:
        absent = _absent(place, calls)
        sentence = f"{rank_list(ranks)} {_wait(ranks)} in {_what(place)}"
        if absent:
            sentence += f", {_ahead(place, absent, calls)}"
        for other, who in others:
            if mine := [rank for rank in who if rank in absent and rank not in said]:
                sentence += f", {'which' if mine == absent else rank_list(mine)} {other.of(mine)}"
                said.update(mine)
        sentences.append(sentence + other_sites(place, ranks, calls))
    for other, who in others:
        if rest := [rank for rank in who if rank not in said]:
            sentences.append(f"{rank_list(rest)} {other.of(rest)}")
    odd = ordered[-1][1] if len(ordered[-1][1]) < len(ordered[0][1]) else _missing(waiting, calls)
    stray, differ = _stray([place.group for place, _ in waiting], calls)
    if stray:
        odd = stray
        sentences.append(differ)
    return Told(words=tuple(sentences), odd=tuple(sorted(odd)), waiting=tuple(place for place, _ in waiting))


def _place(rank: int, found: RankCalls | None, exit: Mapping[str, Any]) -> _Place:
    if found is not None and (pending := found.pending()) and not found.left and exit.get("killed", True):
        return Waits(*pending[0])
    if not exit.get("killed", False) and exit.get("code") == 0:
        short = "" if found is None or found.left else " before its work was done"
        return _is("has", f"ended with exit code 0{short}")
    if not exit.get("killed", False) and (exit.get("code") or exit.get("signal")):
        how = f"signal {exit['signal']}" if exit.get("signal") else f"exit code {exit['code']}"
        return _is("has", f"ended with {how}")
    site = (found.hang.site if found is not None and found.hang is not None else "") or str(exit.get("where") or "")
    return _is("is", f"in {site}") if site else _Is("did not say where it is", "did not say where they are")


def _absent(place: Waits, calls: Mapping[int, RankCalls]) -> list[int]:
    """Ranks of the group that have not called this collective."""
    return [rank for rank in place.group.ranks if place.number not in _records(calls, rank, place.group)]


def _records(calls: Mapping[int, RankCalls], rank: int, group: Group) -> Mapping[int, Record]:
    return calls[rank].collectives.get(group, {}) if rank in calls else {}


def _ahead(place: Waits, absent: list[int], calls: Mapping[int, RankCalls]) -> str:
    behind = {place.number - max(_records(calls, rank, place.group), default=0) for rank in absent}
    number = {1: "one"}.get(min(behind), str(min(behind)))
    return f"{number} ahead of {rank_list(absent)}"


def _what(place: Waits) -> str:
    call = place.record.call
    at = f" at {call.site}" if call.site else ""
    return f"{words(call._replace(site=''))} of {name(place.group)} (its collective {place.number}){at}"


def other_sites(place: Waits, ranks: list[int], calls: Mapping[int, RankCalls]) -> str:
    """Where the group first called the same thing from different places: there the extra one may be."""
    mine = _records(calls, ranks[0], place.group)
    for other in place.group.ranks:
        theirs = _records(calls, other, place.group)
        for number in sorted(set(mine) & set(theirs)):
            here, there = mine[number].call.site, theirs[number].call.site
            if here != there:
                return (
                    f"; the collective {number} of that group was {mine[number].call.operation} at {here} on rank "
                    f"{ranks[0]} and at {there} on rank {other}"
                )
    return ""


def _missing(waiting: list[tuple[Waits, list[int]]], calls: Mapping[int, RankCalls]) -> list[int]:
    absent = {rank for place, _ in waiting for rank in _absent(place, calls)}
    return sorted(absent or {rank for _, ranks in waiting for rank in ranks})


def _stray(groups: list[Group], calls: Mapping[int, RankCalls]) -> tuple[list[int], str]:
    """Where the same ranks wait for each other in several groups: who first called something else than the others.

    In such a circle each rank is one ahead of another, and only the order over the groups tells who left it.
    """
    if (
        len(set(groups)) < 2
        or len({group.ranks for group in groups}) > 1
        or not all(r in calls for r in groups[0].ranks)
    ):
        return [], ""
    told = {
        rank: sorted(
            (record.at, group, number, record)
            for group in set(groups)
            for number, record in _records(calls, rank, group).items()
        )
        for rank in groups[0].ranks
    }
    for index in range(min(map(len, told.values()))):
        sides: dict[tuple[Group, int], list[int]] = {}
        for rank, sequence in told.items():
            sides.setdefault(sequence[index][1:3], []).append(rank)
        if len(sides) > 1:
            most, fewest = max(sides.values(), key=len), min(sides.values(), key=len)
            said = (f"{rank_list(side)} called {words(told[side[0]][index][3].call)}" for side in (most, fewest))
            return (fewest, f"first to differ: {', '.join(said)}") if len(fewest) < len(most) else ([], "")
    return [], ""


def _last_step(calls: Mapping[int, RankCalls], view: RungView) -> int:
    steps = [found.hang.step for found in calls.values() if found.hang is not None]
    return min(steps, default=max(view.trace.steps, default=-1) + 1)


def _is(verb: str, words: str) -> _Is:
    return _Is(f"{verb} {words}", f"{'have' if verb == 'has' else 'are'} {words}")


def _wait(ranks: list[int]) -> str:
    return "wait" if len(ranks) > 1 else "waits"
