"""No change of a tensor keeps its fingerprint, and sketches tell how far two tensors are from each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor

from dist_checks.probe.digest import digest, digest_many
from dist_checks.trace import BUCKETS

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn)
INTEGER_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


def bits(x: Tensor) -> Tensor:
    return x.view(INTEGER_OF_SIZE[x.element_size()])


# ---------------------------------------------------------------------------------------------------- cannot be fooled

Change = Callable[[Tensor], Tensor]


def negated(x: Tensor) -> Tensor:
    return (bits(x) ^ bits(torch.tensor(-0.0).to(x.dtype))).view(x.dtype)


def exchanged(x: Tensor, dim: int, a: slice, b: slice) -> Tensor:
    order = torch.arange(x.shape[dim])
    order[a], order[b] = order[b].clone(), order[a].clone()
    return bits(x).index_select(dim, order).view(x.dtype)


def halves(x: Tensor, dim: int) -> Tensor:
    half = x.shape[dim] // 2
    return exchanged(x, dim, slice(0, half), slice(half, 2 * half))


def blocks(x: Tensor) -> Tensor:
    """Two 4 x 8 blocks that lie diagonally."""
    y = bits(x).clone()
    y[:4, :8], y[8:12, 16:24] = bits(x)[8:12, 16:24], bits(x)[:4, :8]
    return y.view(x.dtype)


def doubled(x: Tensor) -> Tensor:
    return (2 * x.double()).to(x.dtype)


def columns_permuted(x: Tensor) -> Tensor:
    return bits(x)[:, torch.randperm(x.shape[1])].view(x.dtype)


def at_middle(x: Tensor, value: Tensor) -> Tensor:
    y = bits(x).clone()
    y[x.shape[0] // 2, x.shape[1] // 2] = value
    return y.view(x.dtype)


def unit_in_last_place(x: Tensor) -> Tensor:
    return at_middle(x, bits(x)[x.shape[0] // 2, x.shape[1] // 2] ^ 1)


def negative_zero(x: Tensor) -> Tensor:
    """x has a zero in the middle."""
    return at_middle(x, bits(torch.tensor(-0.0).to(x.dtype)))


def other_nan(x: Tensor) -> Tensor:
    """NaN for the NaN that x has in its last corner, with another sign bit."""
    y = bits(x).clone()
    y[-1, -1] ^= bits(torch.tensor(-0.0).to(x.dtype))
    return y.view(x.dtype)


CHANGES: dict[str, Change] = {
    "negated": negated,
    "two rows exchanged": lambda x: exchanged(x, 0, slice(1, 2), slice(4, 5)),
    "two columns exchanged": lambda x: exchanged(x, 1, slice(1, 2), slice(9, 10)),
    "halves of the rows exchanged": lambda x: halves(x, 0),
    "halves of the columns exchanged": lambda x: halves(x, 1),
    "two blocks exchanged": blocks,
    "doubled": doubled,
    "columns permuted": columns_permuted,
    "one unit in the last place": unit_in_last_place,
    "-0.0 for 0.0": negative_zero,
    "another NaN": other_nan,
}


def fooled_by(fingerprint: Callable[[Tensor], int], x: Tensor) -> list[str]:
    """The changes that `fingerprint` does not see."""
    changed = {name: change(x) for name, change in CHANGES.items()}
    assert not [name for name, y in changed.items() if torch.equal(bits(x), bits(y))]
    before = fingerprint(x)
    return [name for name, y in changed.items() if fingerprint(y) == before]


def table_tensors(shape: tuple[int, int], dtype: torch.dtype) -> Iterator[Tensor]:
    """Random numbers; and +-1, which differ in their sign bits only. A zero in the middle, a NaN in the last corner."""
    for x in (torch.randn(shape), torch.randn(shape).sign()):
        x[shape[0] // 2, shape[1] // 2] = 0.0
        x[-1, -1] = math.nan
        yield x.to(dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(64, 64), (32, 96), (48, 600), (12, 8200)])
def test_cannot_be_fooled(shape: tuple[int, int], dtype: torch.dtype) -> None:
    for x in table_tensors(shape, dtype):
        assert fooled_by(lambda y: digest(y).fingerprint, x) == []


def test_a_fingerprint_without_the_fold_is_fooled() -> None:
    """So the table above can fail."""

    def weak(x: Tensor) -> int:
        weights = torch.randint(-(2**62), 2**62, (x.numel(),), generator=torch.Generator().manual_seed(1)) | 1
        return int((bits(x).view(-1) * weights).sum())

    for x in table_tensors((64, 64), torch.float64):
        assert "negated" in fooled_by(weak, x)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_an_even_number_of_flipped_signs_is_seen(dtype: torch.dtype) -> None:
    x = torch.randn(32, 300).to(dtype)
    flips = bits(torch.tensor(-0.0).to(dtype))
    changed = []
    for i in range(100):
        chosen = torch.randperm(x.numel())[: 2 * (i + 1)]
        y = bits(x).clone()
        y.view(-1)[chosen] ^= flips
        changed.append(y.view(dtype))
    assert digest(x).fingerprint not in {values.fingerprint for values in digest_many(changed)}


# ------------------------------------------------------------------------------------------------- distance and scale


def differences(shape: tuple[int, int]) -> Iterator[Tensor]:
    rows, columns = shape
    yield torch.randn(shape)
    yield torch.ones(shape)
    yield torch.randn(rows, 1) * torch.randn(columns)
    one_row, one_column = torch.zeros(2, rows, columns)
    one_row[torch.randint(rows, ())] = torch.randn(columns)
    one_column[:, torch.randint(columns, ())] = torch.randn(rows)
    yield one_row
    yield one_column
    constant_row, constant_column = torch.zeros(2, rows, columns)
    constant_row[torch.randint(rows, ())] = 1.0
    constant_column[:, torch.randint(columns, ())] = 1.0
    yield constant_row
    yield constant_column


@pytest.mark.parametrize("shape", [(64, 64), (512, 128), (200, 67), (128, 300), (200, 1000), (64, 8192)])
def test_sketches_estimate_distances(shape: tuple[int, int]) -> None:
    ratios = []
    for _ in range(10):
        a = torch.randn(shape, dtype=torch.float64)
        for difference in differences(shape):
            b = a + 1e-3 * difference
            estimate = math.dist(digest(a).sketch, digest(b).sketch)
            ratios.append(estimate / (a - b).norm().item())
    spread, mean = torch.std_mean(torch.tensor(ratios))
    assert min(ratios) > 0.6
    assert max(ratios) < 1.5
    assert 0.93 < mean < 1.07
    assert spread < 1.6 / math.sqrt(2 * BUCKETS)


def inner(a: Sequence[float], b: Sequence[float]) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def test_a_wrong_scale_is_measured_exactly() -> None:
    b = torch.randn(100, 300, dtype=torch.float64)
    sketch_a, sketch_b = digest(1.05 * b).sketch, digest(b).sketch
    assert inner(sketch_a, sketch_b) / inner(sketch_b, sketch_b) == pytest.approx(1.05, rel=1e-12)
