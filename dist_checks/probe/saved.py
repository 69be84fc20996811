"""The weights that a script has saved, by their plain names: safetensors, torch.save, torch.distributed.checkpoint,
DeepSpeed. Nothing that is read is executed, but for DeepSpeed's own files, which its own reader reads."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dist_checks.probe.names import plain_names

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
"""As safetensors call them."""

MODEL = ("model", "model_state_dict", "state_dict", "module", "net", "app", "weights")
"""Under these a checkpoint keeps the weights of its model."""


class NotRead(Exception):
    """There are no weights to be read; the message says why."""


def weights(path: Path) -> dict[str, Tensor]:
    """The model's tensors in the file or folder. Raises NotRead."""
    if not path.exists():
        raise NotRead(f"the script left no {path.name}")
    try:
        found = _folder(path) if path.is_dir() else _file(path)
    except NotRead:
        raise
    except Exception as error:  # of whatever wrote or read it
        raise NotRead(f"{path.name} cannot be read: {type(error).__name__}: {str(error).splitlines()[0]}") from error
    if not found:
        raise NotRead(f"{path.name} has no tensors of a model")
    try:
        names = plain_names(found)
    except ValueError:
        return found
    return {names[name]: x for name, x in found.items()}


def _file(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        return dict(_safetensors(path))
    try:
        return model_of(torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:  # torch tells this case by its words only; any other is raised again
        if "weights_only" in str(error) or "Weights only" in str(error):
            raise NotRead(f"{path.name} holds more than tensors, and is not executed: save a state_dict") from error
        raise


def _folder(path: Path) -> dict[str, Tensor]:
    if (path / ".metadata").is_file():
        return model_of(_distributed(path))
    if (path / "latest").is_file():
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

        return model_of(get_fp32_state_dict_from_zero_checkpoint(str(path)))
    files = sorted(path.glob("*.safetensors"))
    if files:
        return {name: x for file in files for name, x in _safetensors(file)}
    files = sorted((*path.glob("*.pt"), *path.glob("*.pth"), *path.glob("*.bin")))
    if not files:
        raise NotRead(f"{path.name} has no .metadata, no latest, no .safetensors, .pt, .pth or .bin")
    return _file(max(files, key=lambda file: file.stat().st_mtime))


def _safetensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Eight bytes with the length of a JSON header; the header: dtype, shape and place of each tensor; the data."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        data = bytearray(file.read())
    for name, about in header.items():
        if name == "__metadata__":
            continue
        start, stop = about["data_offsets"]
        dtype = DTYPES[about["dtype"]]
        if math.prod(about["shape"]) == 0:
            yield name, torch.empty(about["shape"], dtype=dtype)
        else:
            yield name, torch.frombuffer(data[start:stop], dtype=dtype).reshape(about["shape"])


def _distributed(path: Path) -> dict[str, Any]:
    """Of all ranks together, in this one process."""
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

    out: dict[str, Any] = {}
    planner = _EmptyStateDictLoadPlanner()  # type: ignore[no-untyped-call]
    _load_state_dict(out, storage_reader=FileSystemReader(path), planner=planner, no_dist=True)
    return out


def model_of(saved: object) -> dict[str, Tensor]:
    """The state dict of the model in what was saved: all of it, or under one of the usual names, or the only one."""
    if not isinstance(saved, Mapping):
        raise NotRead(f"it holds a {type(saved).__name__}, not a state_dict")
    tensors = {str(name): x for name, x in saved.items() if isinstance(x, Tensor)}
    if tensors:
        return tensors
    inner = {str(name): value for name, value in saved.items() if isinstance(value, Mapping)}
    for name in MODEL:
        if name in inner:
            return model_of(inner[name])
    found = [value for value in inner.values() if any(isinstance(x, Tensor) for x in value.values())]
    if len(found) == 1:
        return model_of(found[0])
    raise NotRead(f"which of {', '.join(saved)} is the model is not known: call it 'model'")
