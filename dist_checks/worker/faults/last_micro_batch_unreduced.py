"""O11: the flag that lets DDP reduce is set between forward and backward; DDP has read it in forward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker.axes import accum
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.loop import Trainer


def plant(rung: Rung) -> None:
    right_reduction, right_normalise = accum.reduction, Trainer.normalise
    reduce_now = True

    @contextmanager
    def reduction(model: nn.Module, last: bool) -> Iterator[None]:
        nonlocal reduce_now
        reduce_now = last
        if isinstance(model, DistributedDataParallel):
            yield  # in forward, the flag is the one that the micro-batch before has left
        else:
            with right_reduction(model, last):
                yield

    def normalise(self: Trainer, loss_sum: Tensor, total: int) -> Tensor:
        if isinstance(self.model, DistributedDataParallel):
            self.model.require_backward_grad_sync = reduce_now
        return right_normalise(self, loss_sum, total)

    accum.reduction = reduction
    Trainer.normalise = normalise  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="O11",
    title="DDP's sync flag set after forward: the micro-batch that steps is not reduced",
    source="karpathy/build-nanogpt PR#30",
    axes=((Axis.ACCUM, Axis.DP_REPLICATE),),
    check="replicas",
    plant=plant,
    planted_in={"axes": {"dp_replicate": 3, "accum": 5}},
    step=0,
)
