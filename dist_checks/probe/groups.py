"""Where this rank stands in a job of which nobody has said how it is laid out: read from its meshes and groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from dist_checks.probe.fsdp1 import is_wrapped

ALIKE = ("cp", "context", "sp", "ulysses")
"""Parts of the names of mesh dims along which gradients are averaged, too, though all have the same samples."""


CUT = ("tp", "tensor")
"""Of mesh dims along which layers are cut, and every rank has the same samples."""


def mesh_coordinates(model: nn.Module) -> dict[str, int]:
    """By the name of a mesh dim, as extents call it: where this rank stands in the meshes of the parameters."""
    out: dict[str, int] = {}
    for mesh in _meshes(model):
        names = mesh.mesh_dim_names or tuple(f"mesh_dim_{i}" for i in range(mesh.ndim))
        for name, at in zip(names, mesh.get_coordinate() or (), strict=False):
            out.setdefault(name, int(at))
    return out


def _meshes(model: nn.Module) -> set[DeviceMesh]:
    return {x.device_mesh for x in model.parameters() if isinstance(x, DTensor)}


def cut_groups(model: nn.Module) -> list[list[int]]:
    """Groups of ranks, this one among them, between which layers are cut by tensor parallelism: all read the same
    samples."""
    found = {
        tuple(dist.get_process_group_ranks(mesh.get_group(dim)))
        for mesh in _meshes(model)
        for dim, name in enumerate(mesh.mesh_dim_names or ())
        if any(part in CUT for part in name.lower().split("_"))
    }
    return [list(ranks) for ranks in sorted(found) if len(ranks) > 1]


def data_groups(model: nn.Module) -> list[list[int]]:
    """Groups of ranks, this one among them, over which gradients are averaged: each reads samples of its own."""
    found = {tuple(dist.get_process_group_ranks(group)) for group in _groups(model)} if dist.is_initialized() else set()
    return [list(ranks) for ranks in sorted(found) if len(ranks) > 1]


def _groups(model: Any) -> Iterator[Any]:
    if hasattr(model, "is_gradient_accumulation_boundary"):  # a DeepSpeed engine
        yield model.data_parallel_group
        return
    for module in model.modules():
        if isinstance(module, DistributedDataParallel):
            yield module.process_group
        elif is_wrapped(module):
            yield module.process_group
            if (between := getattr(module, "_inter_node_pg", None)) is not None:
                yield between
        else:
            yield from _of_fsdp2(module)


def _of_fsdp2(module: Any) -> Iterator[Any]:
    state = module._get_fsdp_state() if hasattr(module, "_get_fsdp_state") else None
    for group in getattr(state, "_fsdp_param_groups", ()):
        info = group.mesh_info
        for dim in {getattr(info, "shard_mesh_dim", None), getattr(info, "replicate_mesh_dim", None)} - {None}:
            name = (info.mesh.mesh_dim_names or {dim: ""})[dim]
            if not any(part in ALIKE for part in name.lower().split("_")):
                yield info.mesh.get_group(dim)
