"""Which part of its full tensor a tensor of this rank holds; reads layouts only, and never communicates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from dist_checks.extent import Extent, Flat, shard
from dist_checks.probe.digest import Place


class Unreadable(Exception):
    """The tensor cannot be recorded; the message says why. Goes into the evidence, never into the user's loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What this rank holds of a full tensor."""

    local: Tensor
    """Detached; its shape is the length of the extent's only box, or [elements] of its only flat range."""
    extent: Extent
    factor: float = 1.0
    """Values are to be multiplied by it: 1 / group size where partial values still have to be averaged."""

    @property
    def place(self) -> Place:
        """(full shape, offset or where a flat range starts) as the digest wants them; None for a full tensor."""
        if self.extent.flats:
            return self.extent.shape, self.extent.flats[0].start
        return None if self.extent.is_full else (self.extent.shape, self.extent.boxes[0].offset)

    @classmethod
    def flat(cls, local: Tensor, shape: Sequence[int], start: int, padding: int = 0) -> Part:
        """``local`` [n] are the elements start to start + n of a full tensor of ``shape``, in row-major order."""
        part = Flat(start, start + local.numel())
        return cls(local=local.detach(), extent=Extent(shape=tuple(shape), flats=(part,), padding=padding))


def locate(x: Tensor) -> Part:
    """The local part of ``x`` and where it lies; a plain tensor is full. Raises Unreadable."""
    if isinstance(x, DTensor):
        return _locate_dtensor(x)
    if x.layout != torch.strided or x.is_meta:
        raise Unreadable(f"a tensor of layout {x.layout} on {x.device}")
    return Part(local=_settled(x), extent=Extent.full(x.shape))


def _locate_dtensor(x: DTensor) -> Part:
    mesh, placements = x.device_mesh, x.placements
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise Unreadable("this rank is not in the tensor's device mesh")
    names = mesh.mesh_dim_names or tuple(f"mesh_dim_{i}" for i in range(mesh.ndim))
    partial, factor = [], 1.0
    for i, placement in enumerate(placements):
        if isinstance(placement, Partial):
            if placement.reduce_op not in ("sum", "avg"):
                raise Unreadable(f"partial values that are combined by {placement.reduce_op}, not by a sum")
            partial.append(names[i])
            factor /= mesh.size(i) if placement.reduce_op == "avg" else 1
    cuts = [
        (dim, mesh.size(i), coordinate[i])
        for dim, mesh_dims in _cutting_order(placements, mesh.shape).items()
        for i in mesh_dims
    ]
    box = shard(x.shape, cuts)
    local = _settled(x._local_tensor)
    if tuple(local.shape) != box.length:
        raise Unreadable(f"local shape {tuple(local.shape)}, but {placements} of {tuple(x.shape)} gives {box.length}")
    return Part(local=local, extent=Extent(shape=tuple(x.shape), boxes=(box,), partial=tuple(partial)), factor=factor)


def _cutting_order(placements: Sequence[Placement], sizes: Sequence[int]) -> dict[int, list[int]]:
    """For each sharded tensor dim, the mesh dims that cut it, outermost cut first.

    Mesh dims cut from left to right. A ``_StridedShard`` (FSDP over tensor parallel) comes after as many of the mesh
    dims to its right as multiply to its split factor. Mesh dims are inserted from right to left, as DTensorSpec does.
    Where it does not divide evenly this is how FSDP2 cuts; ``distribute_tensor`` would cut otherwise.
    """
    order: dict[int, list[int]] = {}
    for i in reversed(range(len(placements))):
        placement = placements[i]
        # By class: _StridedShard is no subclass of Shard, and its is_shard() is False.
        if isinstance(placement, Shard | _StridedShard):
            cuts = order.setdefault(placement.dim, [])
            wanted = int(placement.split_factor) if isinstance(placement, _StridedShard) else 1
            at, before = 0, 1
            while before != wanted and at < len(cuts):
                before *= sizes[cuts[at]]
                at += 1
            if before != wanted:
                raise Unreadable(f"{placement} does not follow any of the cuts that {tuple(placements)} makes")
            cuts.insert(at, i)
        elif not isinstance(placement, Replicate | Partial):
            raise Unreadable(f"unknown placement {placement}")
    return order


def _settled(x: Tensor) -> Tensor:
    """Without autograd, and arrived: waiting for a collective that the model has issued anyway issues none."""
    if isinstance(x, AsyncCollectiveTensor):
        waited: Tensor = x.wait()
        x = waited
    return x.detach()
