"""Is it one world, with each rank in it once?"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from dist_checks.axes import Axis
from dist_checks.judging.reading import rank_list
from dist_checks.judging.verdict import Blamed, Finding
from dist_checks.judging.view import RungView


def check(view: RungView) -> Iterator[Finding]:
    """Several worlds of one process each, repeated ranks (Lightning-AI/pytorch-lightning#13605,
    NVIDIA-NeMo/Speech#8333), two ranks on one device: no axis is to blame for those."""
    writer = view.writer("launch")
    headers = [rank for rank in view.trace.ranks if rank.header]
    planned = view.layout.world_size
    if not headers:
        yield writer.unseen("no rank left a header")
        return
    wrong = [*_repeated(view), *_wrong_worlds(view), *_wrong_places(view)]
    # A rank that says it is in another world explains why others are missing.
    for message, ranks in wrong[:1]:
        yield writer.failed(message, ranks=ranks, observed=len(headers), allowed=planned, blames=Blamed.LAUNCHER)
    if wrong:
        return
    if view.trace.missing:
        yield writer.unseen(f"{rank_list(view.trace.missing)} of {planned} left no header", ranks=view.trace.missing)
        return
    hosts = sorted(set(view.trace.hosts.values()))
    yield writer.passed(
        f"one world of {planned} rank{'s' * (planned > 1)} on {len(hosts)} host{'s' * (len(hosts) > 1)}",
        observed=len(headers),
        allowed=planned,
    )


def _repeated(view: RungView) -> Iterator[tuple[str, list[int]]]:
    """Several processes that each take themselves for the same rank."""
    counts = Counter(rank for rank, _ in view.trace.repeated)
    sizes = {int(header.get("world_size", 0)) for _, header in view.trace.repeated}
    for rank, count in sorted(counts.items()):
        worlds = f", each of a world of {min(sizes)}" if len(sizes) == 1 else ""
        yield (
            f"{count + 1} processes take themselves for rank {rank}{worlds}; planned was one world of "
            f"{view.layout.world_size}",
            [rank],
        )


def _wrong_worlds(view: RungView) -> Iterator[tuple[str, list[int]]]:
    planned = view.layout.world_size
    sizes: dict[int, list[int]] = defaultdict(list)
    for rank in view.trace.ranks:
        if rank.header:
            sizes[int(rank.header.get("world_size", planned))].append(rank.rank)
    for size, ranks in sorted(sizes.items()):
        if size != planned:
            yield f"{rank_list(ranks)} started in a world of {size}, planned was one of {planned}", ranks
    extra = [rank.rank for rank in view.trace.ranks if rank.rank >= planned]
    if extra:
        yield f"{rank_list(extra)} wrote traces, planned was a world of {planned}", extra
    others = [rank.rank for rank in view.trace.ranks if rank.header.get("rung", view.rung.id) != view.rung.id]
    if others:
        yield f"{rank_list(others)} worked on another rung", others


def _wrong_places(view: RungView) -> Iterator[tuple[str, list[int]]]:
    devices: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank in view.trace.ranks:
        header = rank.header
        if not header:
            continue
        host, device = view.trace.hosts.get(rank.rank, ""), str(header.get("device", "cpu"))
        if not device.startswith("cpu"):
            # Where each rank sees one device only, all of them call it cuda:0: then only an id of its own tells.
            devices[host, str(header.get("device_id", device))].append(rank.rank)
        planned = {axis.value: at for axis, at in view.layout.coordinates(rank.rank).items()}
        said = {str(axis): at for axis, at in (header.get("coordinates") or {}).items() if axis in set(Axis)}
        wrong = [axis for axis, at in said.items() if at != planned.get(axis, 0)]
        if wrong:
            axis = wrong[0]
            yield (
                f"rank {rank.rank} is at {said[axis]} on {axis}, planned was {planned.get(axis, 0)}",
                [rank.rank],
            )
    for (host, device), ranks in devices.items():
        if len(ranks) > 1:
            yield f"{rank_list(ranks)} share {device} of {host}", ranks
