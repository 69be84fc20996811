"""Models of transformers, made from a config, on the ladder: every axis that they have a seam for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from parts import need

from dist_checks import session
from dist_checks.launching import PRELOAD, PRELOAD_DEEPSPEED, PRELOAD_TRANSFORMERS
from launch.local import LocalLauncher


@pytest.fixture(scope="module")
def transformers() -> Iterator[LocalLauncher]:
    need("transformers")
    with LocalLauncher(preload=(*PRELOAD, PRELOAD_DEEPSPEED, PRELOAD_TRANSFORMERS)) as launcher:
        yield launcher


QWEN = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8}
NOT_SAID = {
    "data_special_tokens": "the recipe does not say which tokens begin and end a text (begin, end)",
    "data_inputs": "inputs are tokens",
    "data_mixture": "the recipe declares no mixture of sources",
    "documents": "the recipe packs no documents (it has no documents())",
    "classes": "the recipe foretells tokens, or has no classes to count",
    "useful": "the recipe does not measure what the model is for (evaluate)",
    "expected": "nothing was written down before the launch (expect)",
}
"""What the recipe does not offer to rung zero."""


def report(
    launcher: LocalLauncher,
    folder: Path,
    axes: dict[str, Any],
    include: tuple[str, ...] = (),
    steps: int = 2,
    fault: str | None = None,
    **options: Any,
) -> dict[str, Any]:
    matrix = {
        "recipe": "huggingface",
        "steps": steps,
        "options": options,
        "axes": axes,
        "combine": {"mode": "singles", "include": include},
        "launch": {"cold_twin": False, "deadline": 200.0},
    }
    return session.run(matrix, out=folder, launcher=launcher, fault=fault).report


def test_a_llama(transformers: LocalLauncher, tmp_path: Path) -> None:
    axes = {"dp_replicate": 2, "dp_shard": 2, "tp": 2, "pp": 2, "cp": 2, "accum": 4, "ckpt_act": True, "ep": 2}
    found = report(transformers, tmp_path / "run", axes)
    assert found["status"] == "pass", found["sentence"]
    assert {rung["id"] for rung in found["rungs"] if rung["role"] == "rung"} == {
        *("dp_replicate2", "dp_shard2", "tp2", "pp2", "cp2", "accum4", "ckpt_act")
    }
    assert all(rung["checks"]["engaged"] == "pass" for rung in found["rungs"] if rung["role"] == "rung")
    assert {"axes": {"ep": 2}, "reason": "ep needs a recipe with experts; huggingface has none"} in found["skipped"]


@pytest.mark.parametrize(("kind", "config"), [("llama", {}), ("qwen3_moe", QWEN)], ids=["llama", "qwen3_moe"])
def test_rung_zero(transformers: LocalLauncher, tmp_path: Path, kind: str, config: dict[str, Any]) -> None:
    """Every check of one device that applies; what the recipe does not say is skipped, with the reason."""
    matrix = {
        "recipe": "huggingface",
        "steps": 3,
        "options": {"model_type": kind, "config": config, "samples": 123},
        "single": {"learn": 60, "overfit": 8, "overfit_steps": 120},
    }
    found = session.run(matrix, out=tmp_path / "run", launcher=transformers).report
    assert found["sentence"] == "PASS one device is healthy (overfit, learn)"
    skipped = {f["check"]: f["message"] for f in found["findings"] if (f["rung"], f["status"]) == ("learn", "skip")}
    assert skipped == NOT_SAID
    rungs = {rung["id"]: rung["checks"] for rung in found["rungs"]}
    assert rungs["overfit"]["overfit"] == "pass"
    assert {"skip"} == {rungs["single"]["fp32_islands"]}, "nothing is narrow in float64"


def test_a_mixture_of_experts(transformers: LocalLauncher, tmp_path: Path) -> None:
    """Qwen3's: norms of each head, and experts that are whole on every rank of tp. In 16 bits a token may go to another
    expert, which carries a gradient beyond what rounding explains; where choices are recorded that is no fault."""
    found = report(
        transformers,
        tmp_path / "run",
        {"dp_shard": 2, "tp": 2, "cp": 2, "ep": 2, "precision": ["bf16"], "compile": True},
        ("tp2+bf16",),
        samples=62,
        model_type="qwen3_moe",
        config=QWEN,
    )
    assert found["status"] == "pass", found["sentence"]
    assert {rung["id"] for rung in found["rungs"] if rung["role"] == "rung"} == {"dp_shard2", "tp2", "cp2", "tp2+bf16"}
    reasons = {*(skip["reason"] for skip in found["skipped"])}
    assert "ep needs experts that take sorted tokens; those of transformers choose inside" in reasons
    assert any(reason.startswith("compile needs experts that run all at once") for reason in reasons)
    routing = {f["rung"]: f for f in found["findings"] if f["check"] == "routing" and f["status"] == "pass"}
    tokens = routing["tp2"]["message"].split()[2]
    for rung in ("dp_shard2", "tp2", "cp2"):
        assert routing[rung]["message"] == f"0 of {tokens} tokens were routed to other experts than in single"
    assert routing["tp2+bf16"]["message"].endswith("which rounding explains")
    assert not [f for f in found["findings"] if f["check"] == "routing" and "not recorded" in f["message"]]
    [unjudged] = [f for f in found["findings"] if (f["rung"], f["check"], f["status"]) == NOT_JUDGED]
    assert "tokens were routed to other experts than in bf16" in unjudged["message"]


NOT_JUDGED = ("tp2+bf16", "gradients", "skip")


def test_tokens_that_go_elsewhere_hide_no_factor(transformers: LocalLauncher, tmp_path: Path) -> None:
    axes = {"precision": ["bf16"]}
    found = report(
        *(transformers, tmp_path / "run", axes, ("tp2+bf16",), 1),
        fault="gradient_scaled",
        samples=62,
        model_type="qwen3_moe",
        config=QWEN,
    )
    [entry] = [f for f in found["findings"] if (f["rung"], f["check"], f["status"]) == SEEN]
    assert entry["tensor"] == "model.layers.1.mlp.experts.gate_up_proj"
    assert entry["scale"] == pytest.approx(1.05, abs=0.01)


SEEN = ("tp2+bf16", "gradients", "fail")


def test_tokens_of_a_mixtral_that_go_to_other_experts(transformers: LocalLauncher, tmp_path: Path) -> None:
    axes = {"tp": 2, "pp": 2}
    config = {"num_local_experts": 4, "num_experts_per_tok": 2}
    found = report(transformers, tmp_path / "right", axes, model_type="mixtral", config=config)
    assert found["status"] == "pass", found["sentence"]
    fault = "token_misrouted_under_tp"
    found = report(transformers, tmp_path / "wrong", axes, steps=1, fault=fault, model_type="mixtral", config=config)
    assert found["sentence"] == "FAIL broken: tp (alone)"
    [entry] = found["broken"]
    assert (entry["check"], entry["step"], entry["tensor"]) == ("replicas", 0, "model.layers.0")
    [routing] = [f for f in found["findings"] if (f["rung"], f["check"], f["status"]) == ("tp2", "routing", "fail")]
    assert routing["tensor"] == "model.layers.0.mlp.gate"
    assert "model.layers.0.mlp.gate sends tokens of sample" in entry["explanation"]


def test_experts_that_run_at_once_are_compiled(transformers: LocalLauncher, tmp_path: Path) -> None:
    found = report(
        transformers,
        tmp_path / "run",
        {"compile": True},
        steps=1,
        model_type="qwen3_moe",
        config={**QWEN, "num_hidden_layers": 1},
        experts="batched_mm",
    )
    assert found["status"] == "pass", found["sentence"]
    [compiled] = [rung for rung in found["rungs"] if rung["id"] == "compile"]
    assert (compiled["checks"]["engaged"], compiled["checks"]["gradients"]) == ("pass", "pass")
    [routing] = [f for f in found["findings"] if (f["rung"], f["check"]) == ("compile", "routing")]
    assert routing["message"] == "no router was recorded: inside a graph of torch.compile none can be"


def test_numbers_engines_and_axes_together(transformers: LocalLauncher, tmp_path: Path) -> None:
    """A part of the preset huggingface, which has all of them."""
    need("deepspeed")
    axes = {"fused": True, "zero": [2, 3], "dp_replicate": 2, "precision": ["bf16", "fp16"]}
    include = ("dp_shard2+tp2", "tp2+bf16", "dp_replicate2+zero2+accum4+bf16", "dp_shard2+resume_other")
    found = report(transformers, tmp_path / "run", axes, include, 4, samples=62)
    assert found["status"] == "pass", found["sentence"]
    assert set(include) <= {rung["id"] for rung in found["rungs"]}
