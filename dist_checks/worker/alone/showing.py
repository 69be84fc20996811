"""What the model really receives, after collation: token by token, with its target, as a person reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from dist_checks.recipes import load
from dist_checks.recipes.base import IGNORE, Batch, Recipe
from dist_checks.worker import data

SAMPLES, TOKENS = 4, 256
"""Of one page."""


def rows(recipe: Recipe, ids: Sequence[int]) -> list[dict[str, Any]]:
    """``{id, inputs, targets, source, document}`` of each sample: inputs and targets as text, token by token, None
    where a target is ignored; continuous inputs as a few figures."""
    batch = recipe.collate(ids)
    documents = recipe.documents(batch)
    found = []
    for row, sample in enumerate(ids):
        x, y = batch.inputs[row], batch.targets[row]
        numbers = None if documents is None else documents[row, :TOKENS].tolist()
        shown = {"id": sample, "source": recipe.source(sample), "documents": numbers}
        if x.is_floating_point() or x.ndim != 1:
            shown |= {"inputs": None, "figures": _figures(x), "targets": _labels(recipe, y)}
        else:
            shown |= {"inputs": _pieces(recipe, x, recipe.pad), "targets": _labels(recipe, y)}
        found.append(shown)
    return found


def _pieces(recipe: Recipe, x: Tensor, pad: int | None) -> list[str]:
    return ["<pad>" if token == pad else recipe.decode([token]) for token in x[:TOKENS].tolist()]


def _labels(recipe: Recipe, y: Tensor) -> list[str | None]:
    if recipe.tags is not None:
        known = zip(recipe.tags, y.tolist(), strict=True)
        return [None if there == IGNORE else name if there else f"no {name}" for name, there in known]
    return [None if label == IGNORE else recipe.label(label) for label in y.reshape(-1)[:TOKENS].tolist()]


def _figures(x: Tensor) -> str:
    flat = x.double().flatten()
    return f"{tuple(x.shape)} mean {float(flat.mean()):.3g} std {float(flat.std()):.3g} " + (
        f"from {float(flat.min()):.3g} to {float(flat.max()):.3g}"
    )


def page(recipe: Recipe, batch: int, seed: int, validation: bool = False) -> dict[str, Any]:
    """Of the first samples that are read: rows, and what the ids of padding and of no target are."""
    ids = (
        list(range(recipe.samples, recipe.samples + recipe.held_out))[:SAMPLES]
        if validation
        else data.read(0, recipe.samples, batch, seed).ids[:SAMPLES]
    )
    whole: Batch = recipe.collate(ids) if ids else Batch(*(recipe.collate([0]).inputs[:0],) * 2)
    return {"rows": rows(recipe, ids) if ids else [], "shape": list(whole.inputs.shape), "pad": recipe.pad}


def main(payload: Mapping[str, Any]) -> None:
    """In one process: write the page to ``answer.json`` in ``payload["folder"]``; as for a rung, with ``seed``."""
    from dist_checks.axes import Setting
    from dist_checks.rung import Role, Rung
    from dist_checks.worker.entry import plant

    if "fault" in payload:
        plant(payload["fault"], Rung(id="", role=Role.SINGLE, setting=Setting(), precision="fp32", seed=0, steps=1))
    recipe = load(payload["recipe"], payload.get("options"))
    found = page(recipe, int(payload["train"]["batch"]), int(payload.get("seed", 0)), bool(payload.get("validation")))
    folder = Path(payload["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "answer.json").write_text(json.dumps(found), encoding="utf-8")
