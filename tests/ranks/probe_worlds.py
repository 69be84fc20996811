"""Worlds of gloo ranks for the probe's tests: a tiny model, and the ways in which it is made parallel."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from dist_checks.probe import Probe, Record

VOCABULARY, WIDTH, HIDDEN, TOKENS, SAMPLES = 13, 6, 10, 8, 12
"""Nothing divides evenly by 3, and the halves of the hidden size not by 2."""

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["dist_checks.probe.recorder", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor.parallel"]
)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(self.up(self.norm(x)).tanh())
        return out


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.gate = nn.Parameter(torch.full((2,), 0.5))
        """Fewer elements than ranks that shard it."""
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.register_buffer("scale", torch.tensor([1.5]))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) * self.scale
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x)) * self.gate.sum()
        return logits


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How the model is made parallel: the mesh, and whether norms see a part of the sequence."""

    axes: dict[str, int]
    sequence: bool = False
    flat: bool | None = None
    """FSDP1 instead of FSDP2, with this ``use_orig_params``."""

    @property
    def size(self) -> int:
        return torch.Size(self.axes.values()).numel()


def parallel(model: Tiny, way: Way, mesh: DeviceMesh | None) -> nn.Module:
    """On every rank: the model with every axis of ``way`` applied."""
    if mesh is None:
        return model
    if "tp" in way.axes:
        tokens = Shard(1) if way.sequence else Replicate()
        plan: dict[str, Any] = {
            "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=tokens),
            "blocks.*.up": ColwiseParallel(input_layouts=tokens),
            "blocks.*.down": RowwiseParallel(output_layouts=tokens),
            "head": ColwiseParallel(input_layouts=tokens, output_layouts=Replicate()),
        }
        if way.sequence:
            plan |= {"blocks.*.norm": SequenceParallel(), "norm": SequenceParallel()}
        parallelize_module(model, mesh["tp"], plan)
    if way.flat is not None:
        groups = tuple(mesh[name].get_group() for name in reversed(way.axes))
        strategy = ShardingStrategy.HYBRID_SHARD if len(groups) > 1 else ShardingStrategy.FULL_SHARD
        given: dict[str, Any] = {
            "process_group": groups if len(groups) > 1 else groups[0],
            "sharding_strategy": strategy,
            "use_orig_params": way.flat,
            "device_id": torch.device("cpu"),
        }
        for number, block in enumerate(model.blocks):
            model.blocks[number] = FullyShardedDataParallel(block, **given)
        return FullyShardedDataParallel(model, **given)
    if "dp_shard" in way.axes:
        names = tuple(name for name in way.axes if name != "tp")
        for block in model.blocks:
            fully_shard(block, mesh=mesh[names])
        fully_shard(model, mesh=mesh[names])
    elif "dp_replicate" in way.axes:
        return DistributedDataParallel(model, process_group=mesh["dp_replicate"].get_group())
    return model


def train(way: Way, rank: int, folder: Path | None, *, steps: int = 2) -> nn.Module:
    """On every rank: trains, and records to ``folder``, or not at all where it is None."""
    mesh = init_device_mesh("cpu", tuple(way.axes.values()), mesh_dim_names=tuple(way.axes)) if way.axes else None
    torch.manual_seed(0)
    plain = Tiny().double()
    blocks: dict[str, nn.Module] = {
        "embedding": plain.embedding,
        "blocks.0": plain.blocks[0],
        "blocks.1": plain.blocks[1],
    }
    model = parallel(plain, way, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    coordinates = {} if mesh is None else dict(zip(way.axes, mesh.get_coordinate() or (), strict=True))
    tp = way.axes.get("tp", 1)
    data_rank, data_size = rank // tp, way.size // tp
    part = TOKENS // tp
    start = part * coordinates.get("tp", 0)
    probe = Probe()
    if folder is not None:
        header = {"rung": folder.name, "world_size": way.size, "device": "cpu", "coordinates": coordinates}
        record = Record(state_every=1)
        probe = Probe.attach(model, optimizer, folder=folder, rank=rank, header=header, blocks=blocks, record=record)
    for step in range(steps):
        ids = torch.arange(SAMPLES)[data_rank::data_size] + SAMPLES * step
        tokens = (ids[:, None] * 5 + torch.arange(TOKENS) ** 2) % VOCABULARY
        probe.micro_batch(ids, tokens=(start, start + part, TOKENS) if way.sequence else None, loss_scale=data_size)
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), (tokens.flatten() + 1) % 13, reduction="sum")
        # Data ranks average their gradients.
        (loss * data_size / (SAMPLES * TOKENS)).backward()  # type: ignore[no-untyped-call]
        probe.gradients()
        optimizer.step()
        probe.step(loss_sum=loss.item(), targets=tokens.numel())
        optimizer.zero_grad()
    probe.close()
    return model


def _rank(function: Callable[..., Any], way: Way, folder: Path, rank: int, arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    os.environ["TORCH_FR_BUFFER_SIZE"] = "2000"
    try:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=way.size)
        result = function(way, rank, *arguments)
        dist.barrier()
        dist.destroy_process_group()
        torch.save(result, folder / f"result-{rank}")
    except BaseException:
        (folder / f"error-{rank}").write_text(traceback.format_exc())
        raise


def run(function: Callable[..., Any], way: Way, folder: Path, *arguments: Any) -> list[Any]:
    """What ``function(way, rank, *arguments)`` returned on each rank; AssertionError with the ranks' own errors."""
    folder.mkdir(parents=True)
    processes = [
        _CONTEXT.Process(target=_rank, args=(function, way, folder, rank, arguments), daemon=True)
        for rank in range(way.size)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(100)
    errors = [path.read_text() for path in sorted(folder.glob("error-*"))]
    assert not errors, "\n".join(errors)
    assert [process.exitcode for process in processes] == [0] * way.size
    return [torch.load(folder / f"result-{rank}", weights_only=True) for rank in range(way.size)]
