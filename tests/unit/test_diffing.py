"""Two traces from any place: the first difference, and the settings that could explain it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dist_checks import Probe, compare
from dist_checks.diffs import diffs
from dist_checks.matrix import ConfigError


def trace(folder: Path, *, lr: float = 0.1, factor: float = 1.0, momentum: float = 0.0, clip: float = 0.0) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    header: dict[str, Any] = {"world_size": 1, "coordinates": {}}
    probe = Probe.attach(model, optimizer, folder=folder, rank=0, header=header)
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    for step in range(3):
        probe.micro_batch(range(6))
        (model(x).square().mean() * (factor if step else 1.0)).backward()
        probe.gradients()
        if clip:
            norm = nn.utils.clip_grad_norm_(model.parameters(), clip).item()
            probe.norm(used=norm, limit=clip, printed=norm)
        optimizer.step()
        optimizer.zero_grad()
        probe.step(loss_sum=1.0, targets=6)
    probe.close()
    return folder


def test_the_same_again(tmp_path: Path) -> None:
    found = compare(trace(tmp_path / "a"), trace(tmp_path / "b"))
    assert found.same
    assert found.equal_bits
    assert found.sentence.startswith("equal bit for bit: ")


def test_one_setting_is_an_answer(tmp_path: Path) -> None:
    found = compare(trace(tmp_path / "a"), trace(tmp_path / "b", lr=0.2))
    assert found.first is not None
    assert (found.first.kind, found.first.step, found.first.tensor) == ("weight", 0, "0.weight")
    assert set(found.settings) == {"optimizer[0].lr"}
    assert "The one setting that differs: optimizer[0].lr (0.1 -> 0.2)" in found.sentence
    assert found.warning == ""


def test_several_are_a_warning_that_names_them(tmp_path: Path) -> None:
    found = compare(trace(tmp_path / "a"), trace(tmp_path / "b", lr=0.2, momentum=0.9))
    assert "Settings that differ: optimizer[0].lr (0.1 -> 0.2), optimizer[0].momentum (0 -> 0.9)" in found.sentence
    assert "2 settings differ, so nothing can be blamed on one of them" in found.warning


def test_no_setting_differs_and_the_gradient_does(tmp_path: Path) -> None:
    found = compare(trace(tmp_path / "a"), trace(tmp_path / "b", factor=2.0))
    assert found.first is not None
    assert (found.first.kind, found.first.step) == ("gradient", 1)
    assert found.first.scale == pytest.approx(2.0)
    assert found.first.cosine == pytest.approx(1.0)
    assert "No setting that was recorded differs: the code, the data, a host or a race" in found.sentence


def test_which_traces_belong_together(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    trace(a / "rungs" / "single")
    trace(b / "rungs" / "single", clip=1e-3)
    ((name, found),) = diffs(a, b).items()
    assert name == "single"
    assert found.first is not None
    assert found.first.kind == "applied"
    assert set(found.settings) == {"clip"}
    with pytest.raises(ConfigError, match="neither a run nor the trace of one"):
        diffs(tmp_path, b)
    with pytest.raises(ConfigError, match=r"this is a run; name one of its traces: single in rungs/"):
        diffs(a, b / "rungs" / "single")
