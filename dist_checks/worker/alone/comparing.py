"""Two implementations of one model, with the same weights and one batch: how far apart each module's output is."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

SAMPLES, LENGTH = 2, 16


def main(payload: Mapping[str, Any]) -> None:
    """In one process: ``{"reference": "module:function", "mine": "module:function", "map": {}, "folder": str}``,
    optional are ``inputs``, a function that gives the arguments of both models, and ``fault``, planted between the two.
    Writes ``answer.json``. Raises ValueError where the models cannot be compared."""
    from dist_checks.axes import Setting
    from dist_checks.rung import Role, Rung
    from dist_checks.worker.entry import plant

    torch.manual_seed(0)
    reference = _built(str(payload["reference"]))
    if payload.get("fault"):
        plant(payload["fault"], Rung(id="", role=Role.SINGLE, setting=Setting(), precision="fp32", seed=0, steps=1))
    mine = _built(str(payload["mine"]))
    names = {str(mine): str(theirs) for mine, theirs in payload.get("map", {}).items()}
    inputs = _find(str(payload["inputs"]))() if payload.get("inputs") else _tokens(reference)
    found = compare(reference, mine, inputs if isinstance(inputs, tuple) else (inputs,), names)
    folder = Path(payload["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "answer.json").write_text(json.dumps(found), encoding="utf-8")


def compare(reference: nn.Module, mine: nn.Module, inputs: tuple[Any, ...], names: Mapping[str, str]) -> dict[str, Any]:
    """``{modules: [{name, distance, norm}], gradients: [{name, distance}], unmatched}``, modules in the order in which
    they end; distances are relative. Weights are those of ``reference``; ``names`` maps parts of names of ``mine``."""
    reference, mine = reference.float().eval(), mine.float().eval()
    theirs = reference.state_dict()
    own = mine.state_dict()
    wanted = {name: _mapped(name, names) for name in own}
    missing = [name for name, other in wanted.items() if other not in theirs]
    shapes = [n for n, o in wanted.items() if o in theirs and own[n].shape != theirs[o].shape]
    if shapes:
        name = shapes[0]
        raise ValueError(
            f"{name} is {tuple(own[name].shape)} and {wanted[name]} is {tuple(theirs[wanted[name]].shape)}: "
            "weights of two shapes cannot be the same"
        )
    buffers = {name for name, _ in mine.named_buffers()}
    # Buffers are computed, not learned: a wrong one is what is looked for.
    with torch.no_grad():
        for name, value in own.items():
            if wanted[name] in theirs and name not in buffers:
                value.copy_(theirs[wanted[name]])
    seen = [_outputs(model, inputs) for model in (reference, mine)]
    rows = []
    for name, y in seen[1][0].items():
        x = seen[0][0].get(_mapped(name, names))
        if x is not None and x.shape == y.shape:
            norm = float(x.norm())
            distance = float((x - y).norm()) / norm if norm else float(y.norm())
            rows.append({"name": name, "distance": distance, "norm": norm})
    weights = dict(reference.named_parameters())
    gradients = []
    for name, p in mine.named_parameters():
        other = weights.get(_mapped(name, names))
        if other is not None and other.grad is not None and p.grad is not None and float(other.grad.norm()):
            distance = float((p.grad - other.grad).norm() / other.grad.norm())
            gradients.append({"name": name, "distance": distance})
    return {"modules": rows, "gradients": gradients, "unmatched": [n for n in missing if n not in buffers]}


def _outputs(model: nn.Module, inputs: tuple[Any, ...]) -> tuple[dict[str, Tensor], Tensor]:
    """(output of each module, in the order in which they end; that of the model); gradients of a fixed sum are left."""
    seen: dict[str, Tensor] = {}
    handles = []

    def keep(name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            x = _floating(output)
            if x is not None:
                seen.setdefault(name, x.detach().float().clone())

        return hook

    for name, module in model.named_modules():
        handles.append(module.register_forward_hook(keep(name)))
    output = model(*inputs)
    for handle in handles:
        handle.remove()
    whole = _floating(output)
    assert whole is not None, "a model without a floating output"
    weights = torch.randn(whole.shape, generator=torch.Generator().manual_seed(1))
    model.zero_grad()
    torch.autograd.backward((whole * weights).sum())
    return seen, whole


def _floating(output: Any) -> Tensor | None:
    return next((x for x in tree_leaves(output) if isinstance(x, Tensor) and x.is_floating_point()), None)


def _mapped(name: str, names: Mapping[str, str]) -> str:
    """The longest part of ``names`` that ``name`` begins with is replaced; "" is the whole model."""
    for mine in sorted(names, key=len, reverse=True):
        if name == mine or name.startswith(f"{mine}."):
            return (names[mine] + name[len(mine) :]).removeprefix(".")
    return name


def _built(where: str) -> nn.Module:
    made = _find(where)()
    if hasattr(made, "model") and not isinstance(made, nn.Module):
        made = made.model()
    if not isinstance(made, nn.Module):
        raise ValueError(f"{where} must give a torch module, not {type(made).__name__}")
    return made


def _find(where: str) -> Any:
    module, _, attribute = where.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{where!r} cannot be imported: {error}; expected 'package.module:function'") from error


def _tokens(model: nn.Module) -> Tensor:
    """Tokens that its first embedding knows."""
    sizes = [module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding)]
    if not sizes:
        raise ValueError("the model has no embedding to draw tokens for: name a function with --inputs")
    return torch.randint(0, sizes[0], (SAMPLES, LENGTH), generator=torch.Generator().manual_seed(0))
