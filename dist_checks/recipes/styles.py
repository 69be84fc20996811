"""The one tensor-parallel style that torch lacks: a norm that every rank computes whole, with DTensor parameters."""

from __future__ import annotations

from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import SequenceParallel


class ReplicatedNorm(SequenceParallel):
    """SequenceParallel of a sequence that is not cut: plain tensors in and out, weights Replicate on the tp mesh.

    Weights left plain would do for the forward pass, but foreach optimizers, the loss scaler and the gradient norm
    refuse a mixture of DTensors and plain tensors.
    """

    def __init__(self) -> None:
        super().__init__(use_local_output=True)
        self.sequence_sharding = (Replicate(),)  # type: ignore[assignment]  # declared by torch as Shard only
