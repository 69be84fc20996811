"""The rung that memorises one batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from dist_checks.recipes.base import IGNORE, Batch
from dist_checks.worker import data
from dist_checks.worker.alone.statistics import entropy
from dist_checks.worker.loop import Trainer


class OverfitTrainer(Trainer):
    """One device, the same few samples in every step, in one piece, without weight decay and dropout."""

    def read(self, index: int) -> tuple[int, list[list[int]]]:
        count = max(1, int(self.payload.get("single", {}).get("overfit") or 8))
        return index, [data.order(self.recipe.samples, self.rung.seed, 0)[:count]]

    def run(self) -> None:
        self.model.eval()
        _, [ids] = self.read(0)
        batch = self.recipe.collate(ids)
        self.probe.observe("batch", ids=ids, floor=floor(batch, causal=self.recipe.next_token), targets=batch.count)
        super().run()


def floor(batch: Batch, *, causal: bool = True) -> float:
    """The loss per target, in nats, that no model can be below: where what a model sees of two samples is the same and
    the targets differ. It sees the tokens up to the target where it is ``causal``, else the whole sample."""
    seen: dict[Hashable, Counter[int]] = {}
    if batch.targets.shape == batch.inputs.shape and not batch.inputs.is_floating_point():
        for tokens, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
            for at, target in enumerate(targets):
                if target != IGNORE:
                    read = tuple(tokens[: at + 1]) if causal else (at, *tokens)
                    seen.setdefault(read, Counter())[target] += 1
    elif batch.targets.ndim == 1:
        for row, target in zip(batch.inputs.flatten(1).tolist(), batch.targets.tolist(), strict=True):
            if target != IGNORE:
                seen.setdefault(tuple(row), Counter())[target] += 1
    total = sum(counts.total() for counts in seen.values())
    return sum(entropy(counts.values()) * counts.total() for counts in seen.values()) / total if total else 0.0
