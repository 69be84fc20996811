"""O32: each data rank has saved where its own loader is; where fewer go on, the places of the others are dropped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker import data
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.loop import Trainer


def plant(rung: Rung) -> None:
    progress, load_progress = Trainer.progress, Trainer.load_progress
    loaders: list[int] = []

    def count_loaders(self: Trainer) -> dict[str, Any]:
        return {**progress(self), "loaders": self.data_size}

    def keep_own(self: Trainer, progress: Mapping[str, Any]) -> None:
        load_progress(self, progress)
        loaders.append(progress["loaders"])

    def read(self: Trainer, index: int) -> tuple[int, list[list[int]]]:
        epoch, ids = data.read(index, self.recipe.samples, self.train.batch, self.rung.seed)
        mine = data.part(ids, self.world.data_rank, max([self.data_size, *loaders]))
        return epoch, data.micro_batches(mine, self.accum)

    # That is what planting means.
    Trainer.progress, Trainer.load_progress = count_loaders, keep_own  # type: ignore[method-assign]
    Trainer.read = read  # type: ignore[method-assign]


FAULT = Fault(
    id="O32",
    title="loader states of data ranks that are no longer there are dropped: their samples are never read",
    source="pytorch/torchtitan PR#816, #811, #291, #409",
    axes=((Axis.RESUME,),),
    check="samples",
    plant=plant,
    planted_in={
        "axes": {"resume": ["same", "other"], "dp_replicate": 3},
        "combine": {"mode": "singles", "include": ["dp_replicate3+resume_other"]},
        "steps": 4,
        "options": {"samples": 61},
    },
    step=3,
)
