"""The norm of the full gradient, and clipping by it, whatever the parameters are sharded over."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor


def by_mesh(parameters: Iterable[nn.Parameter]) -> dict[DeviceMesh | None, list[nn.Parameter]]:
    """Those with a gradient, by what they are sharded over. Torch computes with tensors of one mesh at a time."""
    found: dict[DeviceMesh | None, list[nn.Parameter]] = defaultdict(list)
    for parameter in parameters:
        if parameter.grad is not None:
            found[parameter.grad.device_mesh if isinstance(parameter.grad, DTensor) else None].append(parameter)
    return found


def total_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """On every rank: the 2-norm of the full gradient, a scalar, the same on all ranks."""
    norms = []
    for group in by_mesh(parameters).values():
        norm = torch.nn.utils.get_total_norm([p.grad for p in group if p.grad is not None])
        norms.append(norm.full_tensor() if isinstance(norm, DTensor) else norm)
    return torch.linalg.vector_norm(torch.stack(norms)) if len(norms) != 1 else norms[0]


@torch.no_grad()
def clip(parameters: Iterable[nn.Parameter], limit: float, norm: Tensor) -> None:
    """On every rank: scale all gradients by limit / norm where that is below 1, as ``clip_grad_norm_`` does.

    Each rank scales the part it holds. DTensor would give the same, but plans a foreach product over a mesh of three
    dims for seconds.
    """
    coefficient = (limit / (norm + 1e-6)).clamp(max=1.0)
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is not None:
            (gradient.to_local() if isinstance(gradient, DTensor) else gradient).mul_(coefficient)
