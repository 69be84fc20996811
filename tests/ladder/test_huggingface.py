"""Models of transformers, made from a config, on the ladder: every axis that they have a seam for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from parts import need

from dist_checks import session
from dist_checks.launching import PRELOAD, PRELOAD_TRANSFORMERS
from launch.local import LocalLauncher


@pytest.fixture(scope="module")
def transformers() -> Iterator[LocalLauncher]:
    need("transformers")
    with LocalLauncher(preload=(*PRELOAD, PRELOAD_TRANSFORMERS)) as launcher:
        yield launcher


def report(launcher: LocalLauncher, folder: Path, axes: dict[str, Any], **options: Any) -> dict[str, Any]:
    matrix = {
        "recipe": "huggingface",
        "steps": 2,
        "options": options,
        "axes": axes,
        "combine": {"mode": "singles"},
        "launch": {"cold_twin": False, "deadline": 200.0},
    }
    return session.run(matrix, out=folder, launcher=launcher).report


def test_a_llama(transformers: LocalLauncher, tmp_path: Path) -> None:
    axes = {"dp_replicate": 2, "dp_shard": 2, "tp": 2, "pp": 2, "cp": 2, "accum": 4, "ckpt_act": True, "ep": 2}
    found = report(transformers, tmp_path / "run", axes)
    assert found["status"] == "pass", found["sentence"]
    assert {rung["id"] for rung in found["rungs"] if rung["role"] == "rung"} == {
        *("dp_replicate2", "dp_shard2", "tp2", "pp2", "cp2", "accum4", "ckpt_act")
    }
    assert all(rung["checks"]["engaged"] == "pass" for rung in found["rungs"] if rung["role"] == "rung")
    assert {"axes": {"ep": 2}, "reason": "ep needs a recipe with experts; huggingface has none"} in found["skipped"]


def test_a_mixture_of_experts(transformers: LocalLauncher, tmp_path: Path) -> None:
    """Qwen3's: norms of each head, and experts that are whole on every rank of tp."""
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8}
    found = report(
        transformers,
        tmp_path / "run",
        {"dp_shard": 2, "tp": 2, "ep": 2},
        model_type="qwen3_moe",
        config=experts,
    )
    assert found["status"] == "pass", found["sentence"]
    assert {rung["id"] for rung in found["rungs"] if rung["role"] == "rung"} == {"dp_shard2", "tp2"}
    (reason,) = [skip["reason"] for skip in found["skipped"] if skip["axes"] == {"ep": 2}]
    assert reason == "ep needs experts that take sorted tokens; those of transformers choose inside"
