"""The trace of one rung, with its full tensors."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dist_checks.judging.logical import Floats, Full, Records, full, records
from dist_checks.judging.reading import Trace
from dist_checks.rung import Rung
from dist_checks.trace import Kind


@dataclass(frozen=True)
class Seen:
    """A rung's trace, with the full tensors that its digests add up to; each kind is put together once."""

    rung: Rung
    trace: Trace
    _records: dict[Kind, Records] = field(default_factory=dict, repr=False)
    _full: dict[Kind, Full] = field(default_factory=dict, repr=False)

    def records(self, kind: Kind) -> Records:
        if kind not in self._records:
            self._records[kind] = records(self.trace, kind)
        return self._records[kind]

    def full(self, kind: Kind) -> Full:
        if kind not in self._full:
            degrees = {axis.value: degree for axis, degree in self.rung.layout.degrees.items()}
            self._full[kind] = full(self.trace, self.records(kind), degrees)
        return self._full[kind]

    def largest(self, kind: Kind) -> Floats:
        """Largest magnitude of each full tensor."""
        given = self.records(kind)
        out = np.zeros(len(given.starts))
        for rank in np.unique(given.rank).tolist():
            at = np.flatnonzero(given.rank == rank)
            digests = self.trace.by_rank[rank].digests.take(given.record[at])
            np.maximum.at(out, given.full[at], digests["largest"])
        return out

    def skipped(self, step: int) -> bool:
        """The loss scaler left the step out."""
        return any(bool(rank.steps.get(step, {}).get("skipped")) for rank in self.trace.ranks)
