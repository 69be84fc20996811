"""The loss of each step over all ranks, from what each of them has summed up."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dist_checks.axes import Layout
from dist_checks.judging.seen import Seen

ROUNDING = 1e-5
"""Relative: ranks of a tp group may round the same sum in another order, in float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Of one step."""

    step: int
    sum: float
    """Over all targets of the batch."""
    targets: int
    printed: dict[int, float | None]
    """By rank."""
    own: dict[int, float]
    """Loss per target of the part of each rank; NaN where it has no target."""
    micro: dict[int, tuple[float, ...]]
    """Loss per target of each micro-batch of each rank, where it was recorded."""
    apart: tuple[int, int] | None
    """Two ranks with the same samples and tokens, and different sums."""
    resolution: float = 0.0
    """How far it may be off because it was printed with so many digits."""

    @property
    def mean(self) -> float:
        """Loss per target; NaN where there is no target."""
        return self.sum / self.targets if self.targets else math.nan


def losses(seen: Seen) -> dict[int, Loss]:
    """By step, for the steps that all ranks have recorded and in which every part of the batch has a loss."""
    if seen.trace.header.get("seen") == "log":
        return _told(seen)
    layout = Layout(seen.rung.setting)
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank in seen.trace.ranks:
        # Only the last stage of a pipeline has a loss.
        if rank.rank < layout.world_size and all(step["loss_sum"] is not None for step in rank.steps.values()):
            groups.setdefault(layout.loss_part(rank.rank), []).append(rank.rank)
    if len(groups) < layout.loss_parts:
        return {}
    owners = [rank for ranks in groups.values() for rank in ranks]
    out = {}
    for step in seen.trace.steps:
        events = {rank: seen.trace.by_rank[rank].steps[step] for rank in owners}
        sums = {rank: float(event["loss_sum"]) for rank, event in events.items()}
        counts = {rank: int(event["targets"]) for rank, event in events.items()}
        apart = None
        for ranks in groups.values():
            for other in ranks[1:]:
                if not _close(sums[ranks[0]], sums[other]) or counts[ranks[0]] != counts[other]:
                    apart = apart or (ranks[0], other)
        total = math.fsum(sums[ranks[0]] for ranks in groups.values())
        targets = sum(counts[ranks[0]] for ranks in groups.values())
        if any(event.get("loss_from") == "backward" for event in events.values()):
            # What backward is called on is a mean already, and ranks average its gradients whatever their shares.
            total, targets = total / len(groups), 1
        out[step] = Loss(
            step=step,
            sum=total,
            targets=targets,
            printed={rank: event.get("printed_loss") for rank, event in events.items()},
            own={rank: sums[rank] / counts[rank] if counts[rank] else math.nan for rank in events},
            micro={rank: tuple(map(float, event.get("micro_losses") or ())) for rank, event in events.items()},
            apart=apart,
        )
    return out


def _told(seen: Seen) -> dict[int, Loss]:
    """Of a script that is seen from the outside: what it printed."""
    out = {}
    for rank in reversed(seen.trace.ranks):
        for step, event in rank.steps.items():
            loss = float(event["loss_sum"])
            out[step] = Loss(
                step=step,
                sum=loss,
                targets=1,
                printed={rank.rank: loss},
                own={rank.rank: loss},
                micro={},
                apart=None,
                resolution=float(event.get("resolution") or 0.0),
            )
    return out


def _close(a: float, b: float) -> bool:
    return abs(a - b) <= ROUNDING * abs(a) or (math.isnan(a) and math.isnan(b))
