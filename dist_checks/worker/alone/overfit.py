"""The rung that memorises one batch."""

from __future__ import annotations

from dist_checks.looks.statistics import floor
from dist_checks.worker import data
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
