"""The header of a trace: who records, which parameters there are, and what the optimizer does with them."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dist_checks.probe.names import plain_names

HOST = "LAUNCH_HOST"
"""Environment variable: the node's name as the launcher knows it, where that is not the machine's own."""


def header_fields(
    parameters: Sequence[Mapping[str, Any]],
    groups: Sequence[Mapping[str, Any]],
    blocks: Sequence[str],
    given: Mapping[str, Any],
) -> dict[str, Any]:
    """Fields of the header event; ``given`` are those that only the caller knows (rung, world size, coordinates)."""
    versions = {"python": platform.python_version(), "torch": str(torch.__version__)}
    if torch.version.cuda:
        versions["cuda"] = torch.version.cuda
    return {
        "coordinates": {},
        **given,
        "host": os.environ.get(HOST) or socket.gethostname(),
        "pid": os.getpid(),
        "versions": versions,
        "parameters": list(parameters),
        "optimizer": list(groups),
        "blocks": list(blocks),
    }


def parameters_of(model: nn.Module) -> dict[str, nn.Parameter]:
    """Plain name -> parameter; a tied one once, under its first name."""
    names = plain_names(name for name, _ in model.named_parameters(remove_duplicate=False))
    return {names[name]: parameter for name, parameter in model.named_parameters()}


def buffers_of(model: nn.Module) -> dict[str, Tensor]:
    """Plain name -> buffer, those that are not saved too."""
    names = plain_names(name for name, _ in model.named_buffers())
    return {names[name]: buffer for name, buffer in model.named_buffers()}


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def full_shape(parameter: nn.Parameter) -> tuple[int, ...]:
    """ZeRO-3 leaves a parameter empty and keeps its shape beside it."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def parameter_table(model: nn.Module, elsewhere: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """One row for each name, shapes in full; ``tied`` is the first name of the same tensor, or None.

    ``elsewhere`` has the names of tensors that another rank holds a copy of.
    """
    first: dict[nn.Parameter, str] = {}
    rows = []
    everything = dict(model.named_parameters(remove_duplicate=False))
    for name, plain in plain_names(everything).items():
        parameter = everything[name]
        tied = first.setdefault(parameter, plain)
        rows.append(
            {
                "name": plain,
                "shape": list(full_shape(parameter)),
                "dtype": dtype_name(parameter.dtype),
                "trainable": parameter.requires_grad,
                "tied": (elsewhere or {}).get(plain) or (None if tied == plain else tied),
            }
        )
    return rows


def group_row(optimizer: Optimizer, group: Mapping[str, Any], names: Sequence[str | None]) -> dict[str, Any]:
    """One parameter group of the header's optimizer table."""
    return {
        "class": type(optimizer).__name__,
        "parameters": list(names),
        **{key: scalar(value) for key, value in group.items() if key != "params" and _is_scalar(value)},
    }


def _is_scalar(value: object) -> bool:
    if isinstance(value, tuple | list):
        return all(isinstance(item, bool | int | float) for item in value)
    if isinstance(value, Tensor):
        return value.numel() == 1
    return value is None or isinstance(value, bool | int | float | str)


def scalar(value: Any) -> Any:
    """A learning rate may be a tensor (``capturable``)."""
    return value.item() if isinstance(value, Tensor) else value
