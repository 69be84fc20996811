"""What a script prints, logs and saves: read as it is, or said why not."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from parts import need
from torch import Tensor

from dist_checks.judging.reading import read
from dist_checks.probe import outside
from dist_checks.probe.events import scalars
from dist_checks.probe.saved import NotRead, weights

MODEL = {"a.weight": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([1.5, 2.5], dtype=torch.bfloat16)}


def same(found: dict[str, Tensor]) -> bool:
    return set(found) == set(MODEL) and all(torch.equal(found[name], x) for name, x in MODEL.items())


def test_losses_in_text_and_json() -> None:
    lines = ["hello", "step 10: loss 4.2500, 3 ms", "step 20: loss 1e-05, 3 ms"]
    told = outside.told(r"step (?P<step>\d+): loss (?P<loss>\S+),", lines, "")
    assert [(each.step, each.loss) for each in told] == [(10, 4.25), (20, 1e-05)]
    assert [each.resolution for each in told] == pytest.approx([5e-5, 5e-6])
    assert sorted(outside.numbered(told)) == [0, 10]
    told = outside.told("jsonl:train.loss", ['{"train": {"loss": 2.50}, "step": 3}', "no json"], "")
    assert [(each.step, each.loss, each.resolution) for each in told] == [(3, 2.5, 0.005)]
    assert outside.told("loss=([0-9.]+)", ["loss=3.5", "loss=x"], "")[0].loss == 3.5


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def test_scalars_of_tensorboard(tmp_path: Path) -> None:
    def event(step: int, tag: str, value: float) -> bytes:
        scalar = field(1, tag.encode()) + varint(2 << 3 | 5) + struct.pack("<f", value)
        body = varint(1 << 3 | 1) + struct.pack("<d", 1.0) + varint(2 << 3) + varint(step) + field(5, field(1, scalar))
        return struct.pack("<Q", len(body)) + bytes(4) + body + bytes(4)

    data = event(300, "loss", 2.5) + event(1, "loss", 3.5) + event(2, "lr", 0.1)
    (tmp_path / "events.out.tfevents.1.host").write_bytes(data + event(4, "loss", 1.0)[:-7])
    assert scalars(tmp_path, "loss") == [(1, 3.5), (300, 2.5)]


def test_scalars_that_tensorboard_itself_wrote(tmp_path: Path) -> None:
    need("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        writer.add_scalar("loss", 0.25, 7)
    assert scalars(tmp_path, "loss") == [(7, 0.25)]


def test_weights_of_torch_save(tmp_path: Path) -> None:
    torch.save({"model": {f"module.{name}": x for name, x in MODEL.items()}, "step": 3}, tmp_path / "a.pt")
    torch.save(MODEL, tmp_path / "b.pt")
    assert same(weights(tmp_path / "a.pt"))
    assert same(weights(tmp_path / "b.pt"))


def test_weights_of_safetensors(tmp_path: Path) -> None:
    header, data = {}, b""
    for name, x in MODEL.items():
        raw = bytes(x.contiguous().view(torch.uint8).flatten().tolist())
        dtype = {torch.float32: "F32", torch.bfloat16: "BF16"}[x.dtype]
        header[name] = {"dtype": dtype, "shape": list(x.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    assert same(weights(tmp_path / "model.safetensors"))
    assert same(weights(tmp_path))


def test_weights_of_distributed_checkpoint(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="in a single process"):
        dcp.save({"model": MODEL, "step": 3}, checkpoint_id=tmp_path / "dcp")
    assert same(weights(tmp_path / "dcp"))


def test_why_weights_are_not_read(tmp_path: Path) -> None:
    with pytest.raises(NotRead, match=r"the script left no model\.pt"):
        weights(tmp_path / "model.pt")
    torch.save({"model": MODEL, "config": Path("x")}, tmp_path / "evil.pt")
    with pytest.raises(NotRead, match="holds more than tensors, and is not executed"):
        weights(tmp_path / "evil.pt")
    torch.save({"g": MODEL, "d": MODEL}, tmp_path / "gan.pt")
    with pytest.raises(NotRead, match="which of g, d is the model is not known"):
        weights(tmp_path / "gan.pt")


def test_a_script_in_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nprint('loss: 2.5')\ntorch.save({'w': torch.ones(3)}, 'w.pt')\nprint('loss: 1.5')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DIST_CHECKS_TRACE", str(tmp_path / "single"))
    about = {"rung": {"id": "single", "steps": 2}, "loss": "loss: (.*)", "checkpoint": "w.pt"}
    monkeypatch.setenv("DIST_CHECKS_RUNG", json.dumps(about))
    monkeypatch.setattr(outside.signal, "signal", lambda *_: None)
    assert outside.main([sys.executable, str(script)]) == 0
    trace = read(tmp_path / "single", 1)
    assert trace.cut == ""
    assert [trace.ranks[0].steps[step]["loss_sum"] for step in (0, 1)] == [2.5, 1.5]
    assert [entry.name for entry in trace.ranks[0].entries.values()] == ["w"]
    assert outside.main([sys.executable, "-c", "raise SystemExit(7)"]) == 7
