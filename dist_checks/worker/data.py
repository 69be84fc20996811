"""Which samples are read when and by whom: plain arithmetic on ids, the same on every rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch


class Step(NamedTuple):
    """What one optimizer step reads, over all ranks."""

    epoch: int
    ids: list[int]


def order(samples: int, seed: int, epoch: int) -> list[int]:
    """The ids 0 to ``samples - 1`` as they are read in ``epoch``; another order in each."""
    generator = torch.Generator().manual_seed((seed << 20) + epoch)
    return torch.randperm(samples, generator=generator).tolist()


def steps_of_epoch(samples: int, batch: int) -> int:
    """The last step of an epoch reads what is left: it may be smaller."""
    return -(-samples // batch)


def read(step: int, samples: int, batch: int, seed: int) -> Step:
    """The samples of optimizer step ``step``, counted over epochs."""
    epoch, index = divmod(step, steps_of_epoch(samples, batch))
    return Step(epoch, order(samples, seed, epoch)[index * batch : (index + 1) * batch])


@dataclass(slots=True)
class Loader:
    """Where a run is in its samples; the same on every rank."""

    samples: int
    batch: int
    epoch: int = 0
    at: int = 0
    """Batches of this epoch that have been read."""

    def next(self) -> int:
        """The number of the next batch, counted over epochs, which is then read."""
        each = steps_of_epoch(self.samples, self.batch)
        number = self.epoch * each + self.at
        self.epoch, self.at = divmod(number + 1, each)
        return number

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self.epoch, self.at = state["epoch"], state["at"]


def part(ids: Sequence[int], data_rank: int, data_size: int) -> list[int]:
    """What data rank ``data_rank`` reads of a batch: every ``data_size``-th sample, uneven where that must be."""
    return list(ids[data_rank::data_size])


def held_out(samples: int, count: int, data_rank: int, data_size: int) -> list[int]:
    """What data rank ``data_rank`` evaluates of the ``count`` samples behind those of an epoch; uneven, not padded."""
    return part(range(samples, samples + count), data_rank, data_size)


def micro_batches(ids: Sequence[int], count: int) -> list[list[int]]:
    """``count`` pieces in the order of ``ids``; their lengths differ by at most one."""
    short, longer = divmod(len(ids), count)
    stops = [(i + 1) * short + min(i + 1, longer) for i in range(count)]
    return [list(ids[start:stop]) for start, stop in zip([0, *stops], stops, strict=False)]


def check(samples: int, batch: int, data_size: int, passes: int) -> None:
    """ValueError where some forward pass would have no sample: ranks must run equally many, or they wait for ever."""
    smallest = samples % batch or min(samples, batch)
    if smallest < data_size * passes:
        raise ValueError(
            f"data ranks ({data_size}) x micro-batches ({passes}) must be at most the smallest batch ({smallest} of "
            f"{samples} samples, {batch} at a time), so that every micro-batch has a sample"
        )
