"""Which classes a script tells apart, counted as its loss is called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from dist_checks.looks.cross_entropy import Heard

MOST_CLASSES, MATRIX, WORST = 64, 16, 8


class Tally:
    """Of the forward passes of training, with whatever is dropped in them."""

    def __init__(self) -> None:
        self._said: Counter[tuple[int, int]] = Counter()
        self._losses: Counter[int] = Counter()
        self._classes = 0
        self._worst: list[dict[str, Any]] = []

    def add(self, heard: Heard, ids: Sequence[int]) -> None:
        """``ids`` are those of the samples, where each has one target."""
        if heard.classes > MOST_CLASSES:
            return
        self._classes = heard.classes
        there = (heard.targets != heard.ignored).nonzero()[:, 0]
        logits, targets = heard.logits[there].double(), heard.targets[there]
        losses = (-logits.log_softmax(-1)).gather(1, targets[:, None])[:, 0].tolist()
        known = len(ids) == len(heard.targets)
        for at, label, said, loss in zip(
            there.tolist(), targets.tolist(), logits.argmax(-1).tolist(), losses, strict=True
        ):
            self._said[label, said] += 1
            self._losses[label] += loss
            if known and label != said:
                row = {"id": ids[at], "label": label, "said": said, "loss": loss, "at": None, "text": ""}
                self._worst.append(row)
        self._worst = sorted(self._worst, key=lambda each: -each["loss"])[:WORST]

    def fields(self) -> dict[str, Any]:
        """As ``dist_checks.worker.alone.classes`` has them; ``missing`` without any."""
        numbers = range(self._classes)
        if not self._said:
            return {"missing": True}
        taken = Counter({pair: count for pair, count in self._said.items() if pair[0] != pair[1]})
        return {
            "names": [str(number) for number in numbers],
            "counts": [sum(self._said[label, said] for said in numbers) for label in numbers],
            "right": [self._said[label, label] for label in numbers],
            "losses": [float(self._losses[label]) for label in numbers],
            "confusion": [[label, said, count] for (label, said), count in taken.most_common(WORST)],
            "matrix": [[self._said[label, said] for said in numbers] for label in numbers]
            if self._classes <= MATRIX
            else None,
            "worst": self._worst,
        }
