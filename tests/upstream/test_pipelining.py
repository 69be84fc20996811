"""torch's pipelining with DDP, FSDP2, tensor parallelism and checkpointing: what is wrong in this release.

Each is the smallest case, in a world of one rank, and what ``worker/pipelining.py`` and ``worker/axes`` do instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._composable.checkpoint_activation import checkpoint
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe, ScheduleInterleavedZeroBubble
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.parallel.ddp import _pre_dp_module_transform
from torch.nn.parallel import DistributedDataParallel

MICRO_BATCHES = 4


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[DeviceMesh]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
    dist.destroy_process_group()


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.up = nn.Linear(4, 8)
        self.down = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(self.norm(x)).tanh())


def mean(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean()


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(8, 4), torch.randn(8, 4)


def gpipe(model: nn.Module, kind: Callable[..., PipelineStage] = PipelineStage) -> ScheduleGPipe:
    return ScheduleGPipe(kind(model, 0, 1, torch.device("cpu")), MICRO_BATCHES, loss_fn=mean)


def test_tensor_parallel_gradients_under_ddp_are_not_divided_by_the_micro_batches(mesh: DeviceMesh) -> None:
    """Parameters that ``_pre_dp_module_transform`` has made local vanish from ``parameters()`` with the first forward
    pass, and that is what ``PipelineStage.scale_grads`` divides. Adam hides it. The worker replicates by FSDP2's
    ``replicate``, and divides the loss instead of the gradients."""
    model, x, target = Residual(), *batch()
    mean(model(x), target).backward()
    right = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    _pre_dp_module_transform(model)
    held = dict(model.named_parameters())
    wrapped = DistributedDataParallel(model)
    gpipe(wrapped).step(x, target=target)
    assert set(dict(model.named_parameters())) == {"norm.weight", "norm.bias"}
    for name, parameter in held.items():
        assert parameter.grad is not None
        factor = 1 if name.startswith("norm") else MICRO_BATCHES
        torch.testing.assert_close(parameter.grad, factor * right[name])


class WithoutDDP(PipelineStage):
    def _compute_outputs(self, *args: Tensor, module: nn.Module, **kwargs: Any) -> Any:
        return super()._compute_outputs(*args, module=module.module, **kwargs)


def test_the_pass_that_learns_shapes_makes_ddp_fail_at_the_second_step(mesh: DeviceMesh) -> None:
    """It goes through DDP's forward, which then takes the first backward pass for one to reduce, and lists every
    parameter twice. Interleaved schedules fail alike. The worker has that pass go through the module inside."""
    schedule, (x, target) = gpipe(DistributedDataParallel(Residual())), batch()
    schedule.step(x, target=target)
    with pytest.raises(RuntimeError) as failed:
        schedule.step(x, target=target)
    assert "rebuilt_param_indices_.size() INTERNAL ASSERT FAILED" in str(failed.value.__cause__)
    right = gpipe(DistributedDataParallel(Residual()), WithoutDDP)
    for _ in range(3):
        right.step(x, target=target)


@pytest.mark.parametrize("reshard", [True, False])
def test_zero_bubble_loses_gradients_of_weights_that_fsdp_shards_again_after_forward(
    mesh: DeviceMesh, reshard: bool
) -> None:
    """Gradients of weights are sought for the parameters that the module has at that moment, and a later forward pass
    has put the sharded ones there. Nothing is said. The worker does not reshard after forward inside a pipeline."""
    x, target = batch()
    stages = []
    for index in range(2):
        model = nn.Sequential(Residual(), Residual())
        for module in (*model, model):
            fully_shard(module, mesh=mesh, reshard_after_forward=reshard)
        stages.append(PipelineStage(model, index, 2, torch.device("cpu")))
    ScheduleInterleavedZeroBubble(stages, MICRO_BATCHES, loss_fn=mean).step(x, target=target)
    without = [
        [name for name, parameter in stage.submod.named_parameters() if parameter.grad is None] for stage in stages
    ]
    assert without[0] == []
    assert bool(without[1]) == reshard, without


def test_a_composable_checkpoint_computes_again_only_once() -> None:
    """Backward of inputs and of weights apart goes through a block twice. The plan refuses zerobubble x ckpt_act."""
    model, x = Residual(), torch.randn(2, 4, requires_grad=True)
    checkpoint(model)
    loss = model(x).sum()
    torch.autograd.grad(loss, x, retain_graph=True)
    with pytest.raises(AttributeError, match="_GeneratorContextManager"):
        torch.autograd.grad(loss, list(model.parameters()))
