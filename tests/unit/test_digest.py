"""The digest keeps its definition, adds up over any cut of a tensor, sees every change, and measures distances."""

from __future__ import annotations

import functools
import itertools
import math
import threading
from collections.abc import Iterator, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dist_checks.probe import _sums, _tables
from dist_checks.probe import digest as digest_module
from dist_checks.probe.digest import digest, digest_flat, digest_many
from dist_checks.trace import BUCKETS, Values, add

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn)
DTYPES = (*FLOATS, torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64)
SHAPES = (
    (),
    (1,),
    (7,),
    (300,),
    (9001,),
    (3, 5),
    (70, 64),
    (13, 257),
    (50, 67),
    (2, 4100),
    (40, 3, 3, 3),
    (6, 7, 300),
    (3, 2, 2, 260),
)
INTEGER_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


def some(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Random values, among them 0.0 and -0.0 where there is room."""
    if dtype.is_complex:
        return torch.randn(shape, dtype=dtype)
    x = 3 * torch.randn(shape, dtype=torch.float64)
    if x.numel() > 3:
        x.view(-1)[1], x.view(-1)[-2] = 0.0, -0.0
    if dtype == torch.bool:
        return x > 0
    return (x.abs() if dtype == torch.uint8 else x).to(dtype)


def bits(x: Tensor) -> Tensor:
    return x.view(INTEGER_OF_SIZE[x.element_size()])


def tolerance(dtype: torch.dtype) -> float:
    return 1e-6 if dtype.is_floating_point and dtype.itemsize <= 2 else 1e-12


def assert_same(a: Values, b: Values, dtype: torch.dtype) -> None:
    assert a._replace(sum_squares=0.0, sketch=()) == b._replace(sum_squares=0.0, sketch=())
    assert a.sum_squares == pytest.approx(b.sum_squares, rel=tolerance(dtype))
    assert math.dist(a.sketch, b.sketch) <= tolerance(dtype) * math.sqrt(b.sum_squares)


def total(parts: Sequence[Values]) -> Values:
    return functools.reduce(add, parts, digest_module.NOTHING)


# ---------------------------------------------------------------------------------------------------- the definition


def hashed(index: int, salt: int) -> int:
    """Unsigned."""
    z = (index + (salt << 48)) * 0x9E3779B97F4A7C15 % 2**64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return z ^ z >> 31


def sign_of(unsigned: int) -> int:
    return -1 if unsigned >> 63 else 1


def defined(x: Tensor) -> tuple[int, list[float]]:
    """Fingerprint and sketch, element by element, from the words of the module's docstring."""
    if x.is_complex():
        x = torch.view_as_real(x)
    dims, length = x.dim(), 1
    while dims and length < 256:
        dims -= 1
        length *= x.shape[dims]
    lanes = 71 if math.prod(x.shape[dims + 1 :]) % 67 == 0 else 67
    segments = -(-length // 4096)
    data = x.contiguous().view(-1).view(torch.uint8).tolist() if x.dim() else x.view(1).view(torch.uint8).tolist()
    numbers = x.flatten().double().tolist()

    fingerprint, sketch = 0, [0.0] * BUCKETS
    for row, segment in itertools.product(range(x.numel() // length), range(segments)):
        block = hashed(row * segments + segment, salt=3)
        first = row * length + segment * 4096
        last = min(first + 4096, (row + 1) * length)
        content = bytes(data[first * x.element_size() : last * x.element_size()])
        for k in range(0, len(content), 8):
            word = int.from_bytes(content[k : k + 8].ljust(8, b"\0"), "little", signed=True)
            fingerprint += (block | 1) * (hashed(k // 8, salt=1) | 1) * (word + (word >> 33))
        for j, number in enumerate(numbers[first:last]):
            diagonal = row + segment
            sign = sign_of(block) * sign_of(hashed((diagonal + j) % 4096, salt=2))
            sketch[(j % lanes + lanes * diagonal) % BUCKETS] += sign * number if math.isfinite(number) else 0.0
    return fingerprint % 2**64, sketch


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_follows_its_definition(dtype: torch.dtype) -> None:
    for shape in SHAPES if dtype == torch.float32 else ((), (300,), (13, 257), (50, 67), (2, 4100)):
        x = some(shape, dtype)
        fingerprint, sketch = defined(x)
        values = digest(x)
        real = torch.view_as_real(x).double() if x.is_complex() else x.double()
        assert values.fingerprint == fingerprint, shape
        assert math.dist(values.sketch, sketch) <= tolerance(dtype) * math.sqrt(values.sum_squares)
        assert values.elements == real.numel()
        assert values.zeros == (real == 0).sum()
        assert values.nonfinite == 0
        assert values.largest == real.abs().max()
        assert values.sum_squares == pytest.approx(real.square().sum().item(), rel=tolerance(dtype))


def test_stays_the_same_between_versions() -> None:
    """Traces of last night are compared with those of tonight."""
    values = digest(torch.arange(10_000, dtype=torch.float32).view(20, 500))
    assert values.fingerprint == 7597346532374588416
    assert values.sketch[:4] == (81616.0, -167982.0, 137174.0, -126338.0)


# ---------------------------------------------------------------------------------------------------- parts add up


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    x = some(draw(st.sampled_from((*SHAPES, (1500, 300), (2, 70_000)))), draw(st.sampled_from(DTYPES)))
    if x.dtype in FLOATS and x.numel() > 8 and draw(st.booleans()):
        x.view(-1)[5] = math.nan
        if x.dtype != torch.float8_e4m3fn:
            x.view(-1)[-1] = -math.inf
    return x


def cuts(data: st.DataObject, size: int) -> list[tuple[int, int]]:
    at = sorted({0, size, *data.draw(st.lists(st.integers(0, size), max_size=2))})
    return list(itertools.pairwise(at))


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_boxes_add_up(data: st.DataObject) -> None:
    x = data.draw(tensors())
    grid = itertools.product(*(cuts(data, size) for size in x.shape))
    boxes = [tuple(slice(*ends) for ends in box) for box in grid]
    parts = [digest(x[box], shape=x.shape, offset=[ends.start for ends in box]) for box in boxes]
    assert_same(total(parts), digest(x), x.dtype)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_flat_ranges_add_up(data: st.DataObject) -> None:
    x = data.draw(tensors())
    flat = x.flatten()
    ranges = cuts(data, len(flat))
    parts = [digest_flat(flat[start:stop], shape=x.shape, start=start) for start, stop in ranges]
    assert_same(total(parts), digest(x), x.dtype)


def test_boxes_and_flat_ranges_add_up_together() -> None:
    x = some((40, 300), torch.bfloat16)
    parts = [
        digest_flat(x.flatten()[:7001], shape=x.shape, start=0),
        digest_flat(x.flatten()[7001:7200], shape=x.shape, start=7001),
        digest(x[24:, :99], shape=x.shape, offset=[24, 0]),
        digest(x[24:, 99:], shape=x.shape, offset=[24, 99]),
    ]
    assert_same(total(parts), digest(x), x.dtype)


def test_columns_of_a_large_tensor_add_up() -> None:
    x = some((1100, 4500), torch.float32)
    parts = [
        digest(x[:, a:b], shape=x.shape, offset=[0, a]) for a, b in itertools.pairwise((0, 1125, 2250, 4200, 4500))
    ]
    assert_same(total(parts), digest(x), x.dtype)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 5, 300), (600, 0)])
def test_nothing_is_nothing(shape: tuple[int, ...]) -> None:
    nothing = Values(0, 0, 0, 0, 0.0, 0.0, (0.0,) * BUCKETS)
    assert digest(torch.empty(shape)) == nothing
    assert digest(torch.empty(0, 300), shape=[7, 300], offset=[7, 0]) == nothing
    assert digest_flat(torch.empty(0), shape=[7, 300], start=2100) == nothing
    assert digest_many([]) == []


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_many_are_as_one_by_one(dtype: torch.dtype) -> None:
    whole = [some(shape, dtype) for shape in [*SHAPES, (0,), (64, 64), (13, 257), (2, 4100)] for _ in range(5)]
    shards = [some((13, 257), dtype) for _ in range(9)]
    if dtype in FLOATS:
        bits(whole[20]).view(-1)[3] = bits(torch.tensor(math.nan).to(dtype))
        bits(shards[2]).view(-1)[100] = bits(torch.tensor(math.nan).to(dtype))
    boxes = [None] * len(whole) + [((39, 257), (13 * (i % 3), 0)) for i in range(9)]
    many = digest_many([*whole, *shards], places=boxes)
    one_by_one = [digest(x) for x in whole]
    one_by_one += [digest(x, shape=(39, 257), offset=(13 * (i % 3), 0)) for i, x in enumerate(shards)]
    for a, b in zip(many, one_by_one, strict=True):
        assert_same(a, b, dtype)


# ------------------------------------------------------------------------------------------ however it lies in memory


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(70, 64), (13, 257), (6, 7, 300)])
def test_strides_and_storage_offsets_do_not_matter(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = some(shape, dtype)
    values = digest(x)
    assert digest(x.transpose(0, 1).contiguous().transpose(0, 1)) == values
    assert digest(torch.stack((x, x), -1)[..., 1]) == values
    assert digest(torch.cat((x, x), -1)[..., : shape[-1]]) == values
    for offset in range(1, 9):
        moved = torch.empty(offset + x.numel(), dtype=dtype)[offset:].view(shape)
        assert digest(moved.copy_(x)) == values


def test_lazy_views_are_read_as_what_they_stand_for() -> None:
    x = some((20, 30), torch.complex64)
    assert digest(x.conj()) == digest(x.conj().resolve_conj())
    assert digest(x.conj().imag) == digest(x.conj().imag.resolve_neg())
    assert digest(torch.ones(1).expand(9, 300)) == digest(torch.ones(9, 300))


# -------------------------------------------------------------------------------------------------- numbers that hurt


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nonfinite_values_count_apart(dtype: torch.dtype) -> None:
    x = some((30, 300), dtype)
    expected = x.double().clone()
    places = [0, 17, 4000, 8999]
    for place, value in zip(places, [math.nan, math.inf, -math.inf, math.nan], strict=True):
        x.view(-1)[place] = value if dtype != torch.float8_e4m3fn else math.nan
        expected.view(-1)[place] = 0.0
    values, finite = digest(x), digest(expected)
    assert values.nonfinite == 4
    assert values.zeros == finite.zeros - 4
    assert values.largest == finite.largest
    assert values.sum_squares == pytest.approx(finite.sum_squares, rel=1e-12)
    assert math.dist(values.sketch, finite.sketch) <= 1e-12 * math.sqrt(finite.sum_squares)


@pytest.mark.parametrize("size", [1e-30, 1e-20, 1e30])
def test_squares_of_bfloat16_neither_vanish_nor_overflow(size: float) -> None:
    x = (size * torch.randn(50, 300)).bfloat16()
    values = digest(x)
    assert values.nonfinite == 0
    assert values.sum_squares == pytest.approx(x.double().square().sum().item(), rel=1e-12)
    assert values.largest == x.abs().max().item()


def test_an_overflow_of_the_sum_itself_is_no_nonfinite_element() -> None:
    values = digest(torch.full((9,), 1e200, dtype=torch.float64))
    assert (values.sum_squares, values.nonfinite, values.largest) == (math.inf, 0, 1e200)


# ------------------------------------------------------------------------------------------- it leaves no trace behind


def test_changes_neither_random_numbers_nor_gradients() -> None:
    x = torch.randn(50, 300, requires_grad=True)
    y = 2 * x
    state, before = torch.get_rng_state(), y.detach().clone()
    values = digest_many([x, y])
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(y, before)
    assert torch.is_grad_enabled()
    y.sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert torch.equal(x.grad, torch.full_like(x, 2))
    assert values == [digest(x.detach()), digest(y.detach())]


def test_modes_do_not_matter() -> None:
    """Tables and scratch memory made in one mode serve in the others."""
    x = torch.randn(50, 301).half()
    for cached in (_tables._all_word_weights, _tables._first_block_hashes, _tables._sign_line):
        cached.cache_clear()
    _tables._memory.buffers.clear()
    _tables._memory.views.clear()
    with torch.inference_mode():
        values = digest(x)
        inferred = x.clone()
    assert digest(x) == values
    assert digest(inferred) == values
    with torch.autocast("cpu", torch.bfloat16):
        assert digest(x) == values


def test_threads_do_not_share_scratch_memory() -> None:
    xs = [torch.randn(200, 3000) for _ in range(4)]
    expected, found = [digest(x) for x in xs], {}

    def work(i: int) -> None:
        found[i] = [digest(xs[i]) for _ in range(5)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {i: [expected[i]] * 5 for i in range(4)}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_way_of_accelerators_gives_the_same(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    xs = [some(shape, dtype) for shape in (*SHAPES, (300, 1000))]
    expected = digest_many(xs)
    for module in (_tables, _sums):
        monkeypatch.setattr(module, "is_cpu", lambda device: False)
    for a, b in zip(digest_many(xs), expected, strict=True):
        assert_same(a, b, dtype)


@pytest.mark.skipif(not torch.accelerator.is_available(), reason="no accelerator")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_accelerators_give_the_same(dtype: torch.dtype) -> None:
    xs = [some(shape, dtype) for shape in (*SHAPES, (300, 1000))]
    device = torch.accelerator.current_accelerator()
    for a, b in zip(digest_many([x.to(device) for x in xs]), digest_many(xs), strict=True):
        assert_same(a, b, dtype)


# -------------------------------------------------------------------------------------------------------- clear errors


def test_a_part_outside_of_its_tensor_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\[3, 4\] at \[2, 0\] is no box of a tensor of shape \[4, 4\]"):
        digest(torch.ones(3, 4), shape=[4, 4], offset=[2, 0])
    with pytest.raises(ValueError, match=r"\[5\] at \[0\] is no box of a tensor of shape \[5, 1\]"):
        digest(torch.ones(5), shape=[5, 1])
    with pytest.raises(ValueError, match=r"\[5\] elements at 13 are no flat range of a tensor of shape \[4, 4\]"):
        digest_flat(torch.ones(5), shape=[4, 4], start=13)
    with pytest.raises(ValueError, match="shorter"):
        digest_many([torch.ones(5)], places=[])


def test_what_would_need_a_collective_or_much_memory_is_refused() -> None:
    with pytest.raises(ValueError, match=r"this one is torch\.sparse_coo"):
        digest(torch.ones(3, 4).to_sparse())
    like_a_dtensor = torch.ones(3, 4)
    like_a_dtensor.to_local = lambda: like_a_dtensor  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="take its local tensor and its box"):
        digest(like_a_dtensor)
