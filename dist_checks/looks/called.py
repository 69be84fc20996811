"""What a script calls its model with: which tensor the inputs are, and the same call again with others."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from dist_checks.looks.cross_entropy import Ear, Heard
from dist_checks.looks.held import copied
from dist_checks.recipes.base import IGNORE, Batch

NAMES = ("input_ids", "inputs", "tokens", "idx", "x", "pixel_values", "input")
"""What inputs are called, where a call names its tensors."""
MASK = "attention_mask"


@dataclass(frozen=True)
class Call:
    """The arguments of one forward pass, as they were."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    names: tuple[str, ...] = ()
    """What the first of ``args`` are called in the model's forward."""

    def copy(self) -> Call:
        return Call(copied(self.args), copied(dict(self.kwargs)), self.names)

    @property
    def _named(self) -> list[tuple[str, Tensor]]:
        names = (*self.names, *[""] * len(self.args))
        return [*_named("", [{name: x} for name, x in zip(names, self.args, strict=False)]), *_named("", self.kwargs)]

    @property
    def inputs(self) -> Tensor | None:
        """By its name, else the first tensor of tokens, else the first one with a row for each sample."""
        named = self._named
        by_name = dict(reversed(named))  # the first of each
        for name in NAMES:
            if name in by_name:
                return by_name[name]
        tokens = [x for name, x in named if x.ndim == 2 and not x.is_floating_point() and name != MASK]
        return next(iter(tokens or [x for _, x in named if x.ndim > 1]), None)

    @property
    def mask(self) -> Tensor | None:
        """Where there are tokens, not padding."""
        found = dict(self._named).get(MASK)
        inputs = self.inputs
        return found if found is not None and inputs is not None and found.shape == inputs.shape else None

    def instead(self, inputs: Tensor) -> Call:
        """With other inputs, and all else as it was."""
        old = self.inputs

        def put(x: Any) -> Any:
            return inputs if x is old else x.clone() if isinstance(x, Tensor) else x

        return Call(tree_map(put, self.args), tree_map(put, dict(self.kwargs)), self.names)

    def batch(self, heard: Heard) -> Batch | None:
        """The inputs with the targets of a cross-entropy of this call: one for each token, but perhaps for the last
        ones, or one for each sample. None where they do not fit."""
        inputs = self.inputs
        if inputs is None or not inputs.ndim or not len(inputs) or len(heard.targets) % len(inputs):
            return None
        targets = torch.where(heard.targets == heard.ignored, IGNORE, heard.targets).reshape(len(inputs), -1)
        length = targets.shape[1]
        if inputs.ndim == 2 and not inputs.is_floating_point() and 1 < length <= inputs.shape[1]:
            return Batch(inputs[:, :length], targets)
        return Batch(inputs, targets[:, 0]) if length == 1 else None


def names_of(model: nn.Module) -> tuple[str, ...]:
    """Of what its forward takes by place; none where it takes whatever it is given, as wrappers do."""
    try:
        given = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(each.name for each in given if each.kind is each.POSITIONAL_OR_KEYWORD)


def _named(name: str, value: object) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _named(str(key), item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _named("", item)


class Outputs(nn.Module):
    """The model as a function of the inputs of a call: its logits (samples, tokens, classes), as its loss gets them
    where it computes one itself, else as it returns them."""

    def __init__(self, model: nn.Module, call: Call, length: int) -> None:
        super().__init__()
        self.model, self._call, self._length = model, call, length

    def forward(self, inputs: Tensor) -> Tensor | None:
        whole = self._call.inputs
        assert whole is not None
        if inputs.shape[1] < whole.shape[1]:
            inputs = torch.cat((inputs, whole[:, inputs.shape[1] :]), dim=1)
        heard: list[Heard] = []
        ear = Ear(heard.append)
        call = self._call.instead(inputs)
        try:
            output = self.model(*call.args, **call.kwargs)
        finally:
            ear.stop()
        samples, length = len(inputs), self._length
        for each in heard:
            if len(each.logits) == samples * length:
                return each.logits.reshape(samples, length, -1)
        for leaf in tree_leaves(output):
            if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.ndim == 3 and len(leaf) == samples:
                return leaf[:, :length]
        return None
