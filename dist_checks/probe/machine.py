"""The state of this rank's machine: random numbers and memory."""

from __future__ import annotations

import ctypes
import hashlib
import resource
import sys

import torch


def rng_hash(device: torch.device) -> str:
    """16 hex digits that are equal where the default generators, of CPU and ``device``, are in the same state."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    digest = hashlib.sha256()
    for state in states:
        digest.update(ctypes.string_at(state.data_ptr(), state.numel()))  # uint8, on the CPU; numpy() would need numpy
    return digest.hexdigest()[:16]


def memory_peak(device: torch.device) -> int:
    """Bytes: of the device's allocator on CUDA, else of the resident set of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
