"""Keeps the probe's own arithmetic apart from whatever mode the user's code runs in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch.utils._python_dispatch import _disable_current_modes


@contextmanager
def undisturbed(device: torch.device) -> Iterator[None]:
    """No autograd, no autocast, no inference mode, no dispatch mode of the user's reaches the code inside.

    Hooks run in the middle of the model's forward: under autocast the sums of a digest would be computed in bf16, and
    a FLOP counter would count them.
    """
    with ExitStack() as stack:
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        if torch.is_autocast_enabled(device.type):
            stack.enter_context(torch.autocast(device.type, enabled=False))
        stack.enter_context(_disable_current_modes())
        yield
