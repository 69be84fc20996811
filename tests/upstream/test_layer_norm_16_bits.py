"""torch on a CPU adds up the gradient of a LayerNorm's bias in 16 bits; that of a Linear's bias it does not.

``worker/axes/precision.py`` computes norms of 16-bit models in float32 therefore.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

TOKENS = 4096


def error(module: nn.Module, dtype: torch.dtype) -> float:
    """Relative, of the gradient of the bias, which is the sum over tokens of what arrives."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(TOKENS, 32, generator=generator).to(dtype)
    arriving = (torch.randn(TOKENS, 32, generator=generator) + 0.5).to(dtype)
    module.to(dtype)(x).backward(arriving)
    bias = module.bias
    assert isinstance(bias, Tensor)
    assert bias.grad is not None
    right = arriving.double().sum(0)
    return float((bias.grad.double() - right).norm() / right.norm())


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As ranks have; several threads add up a part each, and lose less."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("dtype", "lost"), [(torch.bfloat16, 0.3), (torch.float16, 0.005)])
def test_the_sum_over_tokens_is_lost(dtype: torch.dtype, lost: float) -> None:
    assert error(nn.LayerNorm(32), dtype) > lost
    assert error(nn.Linear(32, 32), dtype) < torch.finfo(dtype).eps
