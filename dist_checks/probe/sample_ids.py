"""Which samples a batch has: by the user's word, by the sampler that chose them, or by a hash of what they are."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from dist_checks.probe.digest import digest_many
from dist_checks.probe.quiet import undisturbed

T = TypeVar("T")

MASK = 2**63 - 1
"""Ids are written as signed 64-bit numbers."""

Drawn = tuple[Sequence[int], int]
"""Indices of a batch, and how often the sampler had been gone through before."""


def sampled(
    loader: Iterable[T], ids: str | Callable[[T], Iterable[int]] | None = None
) -> Iterator[tuple[T, Iterable[int]]]:
    """Each batch of ``loader`` with the ids of its samples."""
    if ids is not None:
        for batch in loader:
            # A mapping, where the caller names a key.
            yield batch, ids(batch) if callable(ids) else batch[ids]  # type: ignore[index]
        return
    drawn = overheard(loader)
    for batch in loader:
        yield batch, drawn.popleft()[0] if drawn else hashed(batch)


def sampler_of(loader: object) -> object | None:
    """What chooses the samples of each batch; None where the data set is a stream, or the loader is not torch's."""
    loader = _torchs(loader)
    return getattr(loader, "batch_sampler", None) if isinstance(loader, torch.utils.data.DataLoader) else None


def _torchs(loader: object) -> object:
    return getattr(loader, "base_dataloader", loader)  # accelerate's is around it


def overheard(loader: object) -> deque[Drawn]:
    """Fills with the indices of each batch as the loader's sampler draws them, which workers do ahead of time."""
    loader = _torchs(loader)
    sampler = sampler_of(loader)
    if sampler is None:
        return deque()
    if not isinstance(sampler, _Overheard):
        sampler = _Overheard(sampler)
        # The loader forbids to set it once it is made: so that nobody thinks it would change the sampler's samples.
        loader.__dict__["batch_sampler"] = sampler
    sampler.drawn = deque()
    return sampler.drawn


class _Overheard:
    """A batch sampler whose batches are noted as they are drawn."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self.drawn: deque[Drawn] = deque()
        self._epochs = 0

    def __iter__(self) -> Iterator[Any]:
        drawn, epoch = self.drawn, self._epochs
        self._epochs += 1
        for batch in self._sampler:
            drawn.append(([int(index) for index in batch], epoch))
            yield batch

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)


def hashed(inputs: object) -> tuple[int, ...]:
    """63 bits of each sample of a batch, from all tensors that have a row for each; () where none has rows.

    Samples are equal where their bits are, whatever the batch that they come in: integers in any layout, floats where
    they have the same dtype.
    """
    found = [x for x in _tensors(inputs) if x.dim() and not isinstance(x, DTensor) and x.layout == torch.strided]
    first = next((x for x in found if x.dim() > 1), found[0] if found else None)
    if first is None:
        return ()
    count = first.shape[0]
    out = [0] * count
    with undisturbed(first.device):
        for x in found:
            if x.shape[0] == count and x.numel():
                rows = x.detach().reshape(count, -1).unbind()
                for index, values in enumerate(digest_many(rows)):
                    out[index] = (out[index] * 1_000_003 + values.fingerprint) & MASK
    return tuple(out)


def _tensors(value: object) -> Iterator[Tensor]:
    """In order, however they are packed."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from _tensors(value[key])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
