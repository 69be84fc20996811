"""Turns tensors into records of the trace: where each lies, its digest, one line for what could not be read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from dist_checks.probe.digest import digest_many
from dist_checks.probe.extents import Part, Unreadable, locate
from dist_checks.probe.header import dtype_name
from dist_checks.probe.hooks import MicroBatch, samples
from dist_checks.probe.quiet import undisturbed
from dist_checks.trace import NO_ITEM, Entry, Kind, Values, Writer


class Scribe:
    """On every rank: small tensors of one call that are alike, whatever their kind, share the cost of a digest."""

    def __init__(self, writer: Writer, device: torch.device, unrecorded: Callable[[Kind, str, str], None]) -> None:
        self._writer = writer
        self._device = device
        self._unrecorded = unrecorded

    def tensors(
        self, step: int, named: Iterable[tuple[Kind, str, Tensor | Part]], *, divide: float = 1.0, item: int = NO_ITEM
    ) -> None:
        """One record for each tensor; the values that are written are divided by ``divide``, the loss scale."""
        names: list[tuple[Kind, str]] = []
        parts: list[Part] = []
        with undisturbed(self._device):
            for kind, name, x in named:
                try:
                    parts.append(x if isinstance(x, Part) else locate(x))
                    names.append((kind, name))
                except Unreadable as why:
                    self._unrecorded(kind, name, str(why))
            found = _digests(parts, divide)
        for (kind, name), part, values in zip(names, parts, found, strict=True):
            self._write(step, kind, name, part, values, item)

    def samples(self, step: int, kind: Kind, name: str, x: Tensor, batch: MicroBatch) -> None:
        """One record for each sample of a block's output, or of its gradient."""
        divide = batch.loss_scale if kind is Kind.OUTPUT_GRADIENT else 1.0
        with undisturbed(self._device):
            try:
                parts = samples(x, batch)
            except Unreadable as why:
                self._unrecorded(kind, name, str(why))
                return
            found = _digests(parts, divide)
        for sample, part, values in zip(batch.ids, parts, found, strict=True):
            self._write(step, kind, name, part, values, sample)

    def _write(self, step: int, kind: Kind, name: str, part: Part, values: Values, item: int) -> None:
        self._writer.digest(step, Entry(kind, name, dtype_name(part.local.dtype), part.extent), values, item)


def _digests(parts: Sequence[Part], divide: float) -> list[Values]:
    found = digest_many([part.local for part in parts], places=[part.place for part in parts])
    return [scaled(values, part.factor / divide) for part, values in zip(parts, found, strict=True)]


def scaled(values: Values, factor: float) -> Values:
    """The digest of the tensor times ``factor``, but for the fingerprint, which stays that of the bits in memory.

    Scaling the digest instead of the tensor costs nothing, and small fp16 gradients do not underflow on the way. Ranks
    of one run have one loss scale, so their fingerprints can be compared all the same.
    """
    if factor == 1.0:
        return values
    return values._replace(
        sum_squares=values.sum_squares * factor**2,
        largest=values.largest * abs(factor),
        sketch=tuple(x * factor for x in values.sketch),
    )
