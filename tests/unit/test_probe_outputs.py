"""Block outputs and their gradients, a digest for each sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from probe_reading import Found, Key, rank_trace, recorded
from test_probe_extents import numbered, pretended
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Shard
from torch.utils.checkpoint import checkpoint

from dist_checks import Probe
from dist_checks.extent import Extent
from dist_checks.probe import Record
from dist_checks.probe.digest import digest
from dist_checks.probe.extents import Unreadable
from dist_checks.probe.hooks import MicroBatch, samples
from dist_checks.trace import Kind


class Blocks(nn.Module):
    """``mode``: how the blocks are run. The outputs of the last forward pass are kept to compare with."""

    def __init__(self, mode: str = "plain") -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.mode = mode
        self.kept: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        for name in ("first", "second"):
            block = getattr(self, name)
            x = x.sin()
            x = block(x) if self.mode == "plain" else checkpoint(block, x, use_reentrant=self.mode == "reentrant")
            if x.requires_grad:
                x.retain_grad()
            self.kept[name] = x
        return x


def run(folder: Path, model: Blocks, *, steps: int = 1, **options: Any) -> dict[Key, Found]:
    """Two micro-batches a step; the second is what ``model.kept`` holds at the end."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    blocks = {"first": model.first, "second": model.second}
    probe = Probe.attach(model, optimizer, folder=folder, rank=0, blocks=blocks, **options)
    torch.manual_seed(1)
    x = torch.randn(2, 5, 4, requires_grad=True)
    for _ in range(steps):
        for ids in ([10, 11], [20, 21]):
            probe.micro_batch(ids)
            model(x).pow(2).sum().backward()
        probe.gradients()
        model(x)  # not announced: a validation pass, say
        optimizer.step()
        probe.step(loss_sum=1.0, targets=1)
    probe.close()
    return recorded(folder)


def of_kind(found: dict[Key, Found], kind: Kind) -> list[Key]:
    return [key for key in found if key.kind is kind]


@pytest.mark.parametrize("mode", ["plain", "reentrant", "not reentrant"])
def test_each_sample_of_each_block_and_its_gradient(mode: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Blocks(mode)
    found = run(tmp_path, model)
    keys = [Key(Kind.OUTPUT, name, 0, item) for name in ("first", "second") for item in (10, 11, 20, 21)]
    assert sorted(of_kind(found, Kind.OUTPUT)) == sorted(keys)
    assert sorted(of_kind(found, Kind.OUTPUT_GRADIENT)) == sorted(k._replace(kind=Kind.OUTPUT_GRADIENT) for k in keys)
    for name, output in model.kept.items():
        for row, item in enumerate((20, 21)):
            value = found[Key(Kind.OUTPUT, name, 0, item)]
            assert value.entry.extent == Extent.full([5, 4])
            assert value.values == digest(output[row])
            assert found[Key(Kind.OUTPUT_GRADIENT, name, 0, item)].values.largest > 0


def test_gradients_are_those_that_reach_the_output(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Blocks()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probe = Probe.attach(model, optimizer, folder=tmp_path, rank=0, blocks={"first": model.first})
    probe.micro_batch(torch.tensor([4, 9]))
    model(torch.randn(2, 3, 4)).pow(2).sum().backward()
    probe.close()
    found = recorded(tmp_path)
    gradient = model.kept["first"].grad
    assert gradient is not None
    for row, item in enumerate((4, 9)):
        assert found[Key(Kind.OUTPUT_GRADIENT, "first", 0, item)].values == digest(gradient[row])


def test_only_in_the_first_steps(tmp_path: Path) -> None:
    found = run(tmp_path, Blocks(), steps=3, record=Record(outputs_steps=2))
    assert {key.step for key in of_kind(found, Kind.OUTPUT)} == {0, 1}
    none = run(tmp_path / "none", Blocks(), record=Record(outputs_steps=0))
    assert not of_kind(none, Kind.OUTPUT)


def test_sums_are_not_rounded_to_bf16_by_the_autocast_around_them(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Blocks()
    with torch.autocast("cpu", torch.bfloat16):
        found = run(tmp_path, model)
    assert model.kept["second"].dtype == torch.bfloat16
    value = found[Key(Kind.OUTPUT, "second", 0, 20)]
    assert value.entry.dtype == "bfloat16"
    assert value.values == digest(model.kept["second"][0])
    assert rank_trace(tmp_path).evidence["matmul_dtypes"] == ["bfloat16"]


def test_works_in_inference_mode_and_leaves_it_on(tmp_path: Path) -> None:
    model = Blocks()
    probe = Probe.attach(
        model, torch.optim.SGD(model.parameters(), lr=0.1), folder=tmp_path, rank=0, blocks={"first": model.first}
    )
    with torch.inference_mode():
        probe.micro_batch([1])
        model(torch.randn(1, 3, 4))
        assert torch.is_inference_mode_enabled()
    probe.close()
    assert len(of_kind(recorded(tmp_path), Kind.OUTPUT)) == 1


def test_an_output_that_is_no_batch_is_said(tmp_path: Path) -> None:
    model = Blocks()
    probe = Probe.attach(
        model, torch.optim.SGD(model.parameters(), lr=0.1), folder=tmp_path, rank=0, blocks={"first": model.first}
    )
    probe.micro_batch([1, 2, 3])
    model(torch.randn(2, 3, 4))
    probe.close()
    assert rank_trace(tmp_path).evidence["unrecorded"] == [
        {"kind": "output", "name": "first", "reason": "3 samples, but the local shape is (2, 3, 4)"}
    ]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (None, Extent.full([6, 2])),
        ((0, 6, 6), Extent.full([6, 2])),
        ((6, 12, 12), Extent.box([12, 2], [6, 0], [6, 2])),
        ((0, 3, 6), Extent.full([6, 2])),  # gathered already
    ],
)
def test_a_part_of_the_sequence(tokens: tuple[int, int, int] | None, expected: Extent) -> None:
    parts = samples(numbered(2, 6, 2), MicroBatch(ids=(1, 2), tokens=tokens))
    assert [part.extent for part in parts] == [expected, expected]
    assert [part.local[0, 0].item() for part in parts] == [0, 12]


def test_neither_a_part_nor_the_whole_sequence_is_unreadable() -> None:
    with pytest.raises(Unreadable, match="4 tokens, neither those from 0 to 3 nor all 6"):
        samples(numbered(2, 4, 2), MicroBatch(ids=(1, 2), tokens=(0, 3, 6)))


def test_a_distributed_output_says_itself_which_tokens_it_holds() -> None:
    with pretended(1, (2,), ("tp",)) as mesh:
        x = DTensor.from_local(
            numbered(3, 2, 4), mesh, [Shard(1)], run_check=False, shape=torch.Size([3, 5, 4]), stride=(20, 4, 1)
        )
        part, *_ = samples(x, MicroBatch(ids=(1, 2, 3)))
        assert part.extent == Extent.box([5, 4], [3, 0], [2, 4])
        partial, *_ = samples(
            DTensor.from_local(numbered(3, 2, 4), mesh, [Partial()], run_check=False), MicroBatch(ids=(1, 2, 3))
        )
        assert partial.extent == Extent.full([2, 4], partial=["tp"])


class Rounding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.register_buffer("angles", torch.ones(4, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.inner(x).float().double())
        return x * self.angles  # type: ignore[operator]


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.clean = nn.Linear(4, 4)
        self.rounding = Rounding()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.rounding(self.clean(x))
        return out


def test_narrowing_names_the_module(tmp_path: Path) -> None:
    model = Outer().double()
    model.rounding.angles = model.rounding.angles.float()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probe = Probe.attach(
        model, optimizer, folder=tmp_path, rank=0, blocks={"clean": model.clean}, record=Record(narrowing=True)
    )
    for _ in range(2):
        probe.micro_batch([0])
        model(torch.randn(1, 3, 4, dtype=torch.float64)).half().sum().backward()
        probe.gradients()
        optimizer.step()
        probe.step(loss_sum=1.0, targets=1)
    probe.close()
    assert rank_trace(tmp_path).evidence["narrowed"] == [
        {"module": "rounding", "dtype": "float32"},
        {"module": "", "dtype": "float16"},
    ]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_model_that_does_not_narrow_has_none(tmp_path: Path) -> None:
    model = Outer().clean.double()
    probe = Probe.attach(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        folder=tmp_path,
        rank=0,
        blocks={"all": model},
        record=Record(narrowing=True),
    )
    probe.micro_batch([0])
    model(torch.randn(1, 3, 4, dtype=torch.float64)).sum().backward()
    probe.close()
    assert rank_trace(tmp_path).evidence["narrowed"] == []
