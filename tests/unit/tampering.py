"""What may go wrong on a rank of the tiny world."""

from __future__ import annotations

from typing import Any

import numpy as np

from dist_checks.extent import Extent
from dist_checks.trace import Kind


class Tamper:
    """What may go wrong on a rank. Override one method and return something else."""

    def header(self, rank: int, header: dict[str, Any]) -> dict[str, Any]:
        return header

    def initial(self, rank: int, name: str, x: np.ndarray) -> np.ndarray:
        return x

    def buffer(self, rank: int, step: int, x: np.ndarray) -> np.ndarray:
        return x

    def ids(self, step: int, rank: int, ids: list[int]) -> list[int]:
        return ids

    def weight_of(self, step: int, data_rank: int, micro: int, id: int) -> float:
        """With which weight a sample enters the gradient."""
        return 1.0

    def output(self, step: int, rank: int, id: int, x: np.ndarray) -> np.ndarray:
        return x

    def gradient(self, step: int, rank: int, name: str, x: np.ndarray) -> np.ndarray:
        return x

    def reduced(self, rank: int, name: str, own: np.ndarray, reduced: np.ndarray) -> np.ndarray:
        """``own`` is what the rank would hold without any reduction over data ranks."""
        return reduced

    def norm_used(self, step: int, rank: int, norm: float) -> float:
        return norm

    def norm_printed(self, step: int, rank: int, norm: float) -> float:
        return norm

    def applied(self, step: int, rank: int, name: str, x: np.ndarray) -> np.ndarray:
        return x

    def moved(self, step: int, rank: int, name: str, before: np.ndarray, after: np.ndarray) -> np.ndarray:
        return after

    def event(self, step: int, rank: int, event: dict[str, Any]) -> dict[str, Any]:
        return event

    def extent(self, rank: int, kind: Kind, name: str, extent: Extent) -> Extent:
        return extent

    def sample_share(self, id: int, x: np.ndarray) -> np.ndarray:
        return x


HEALTHY = Tamper()
