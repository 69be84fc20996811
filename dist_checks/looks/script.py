"""Rung zero in a script of the user's own: what its loss and its model tell, heard and asked on one device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from dist_checks.looks import statistics
from dist_checks.looks.activations import activations
from dist_checks.looks.called import Call, Outputs, names_of
from dist_checks.looks.causal import causal
from dist_checks.looks.cross_entropy import Ear, Heard
from dist_checks.looks.held import drop_nothing, hold_loaders, without_decay
from dist_checks.looks.samples import Samples
from dist_checks.looks.tally import Tally
from dist_checks.recipes.base import IGNORE, Batch
from dist_checks.rung import Role

OFFSETS = (0, 1, 2, 3)
"""Places from a token to its target."""
NEXT, SURE = 1, 0.9
"""A target is the token so many places on, for so large a share of all."""

Observe = Callable[..., None]
"""``observe(what, **fields)``."""


class Script:
    """Told of forward passes and steps. In a single it hears the first step; in the rung that learns all of them, and
    asks the model after the first; in the one that memorises it holds the batch."""

    def __init__(
        self,
        role: Role,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        observe: Observe,
        steps: int = 0,
        tokens: Mapping[str, int | None] | None = None,
    ) -> None:
        """``steps`` that it is to train; ``tokens`` that are padding, or begin and end a text, where that is known."""
        self.role, self._model, self._observe = role, model, observe
        self._half = steps // 2
        self._ear = Ear(self._heard, self._first_targets if role is Role.OVERFIT else None)
        if role is Role.OVERFIT:  # for the rest of the process
            hold_loaders()
            drop_nothing()
            without_decay(optimizers)
        self._names = names_of(model)
        self._first: Call | None = None
        self._now: Call | None = None
        self._ids: Sequence[int] = ()
        self._inside = self._loss_inside = self._busy = False
        self._steps = 0
        self._classes = 0
        self._start: list[Heard] = []
        self._batch: Batch | None = None
        self._sum, self._count = 0.0, 0
        self._evaluated: deque[tuple[float, int]] = deque()
        self._samples, self._tally = Samples(**(tokens or {})), Tally()
        self._targets: list[Tensor] = []
        self._calls = self._others = 0

    @property
    def holds(self) -> bool:
        """Whether the same batch is read in every step."""
        return self.role is Role.OVERFIT

    # Forward passes

    def called(self, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """Before a forward pass of training: what it is called with instead, None for what it is."""
        if self._busy or not self._listens:
            return None
        self._inside, self._calls = True, 0
        self._tell_evaluated()
        if self._first is None:
            self._first = Call(args, kwargs, self._names).copy()
        elif self.holds and (self._loss_inside or self._targets):
            # Whatever the loop has read: the loss is of what the model is called with, and its targets are held.
            self._now = self._first
            call = self._first.copy()
            return call.args, dict(call.kwargs)
        self._now = Call(args, kwargs, self._names)
        return None

    def read(self, ids: Sequence[int]) -> None:
        """The samples of this forward pass, where they are known by what was drawn."""
        self._ids = ids

    def returned(self, output: object) -> None:
        """After it."""
        self._inside = False
        if not self._steps and any(isinstance(leaf, Tensor) and leaf.ndim == 0 for leaf in tree_leaves(output)):
            self._loss_inside = True

    @property
    def _listens(self) -> bool:
        return not self._steps or self.role is not Role.SINGLE

    # The loss

    def _first_targets(self, targets: Tensor) -> Tensor:
        """Those of the same call after the first forward pass, where the loop reads others."""
        if self._busy or not torch.is_grad_enabled():
            return targets
        at, self._calls = self._calls, self._calls + 1
        if at >= len(self._targets):
            self._targets.append(targets.detach().clone())
        fits = self._targets[at].shape == targets.shape
        self._others += not fits
        return self._targets[at] if fits else targets

    def _heard(self, heard: Heard) -> None:
        if self._busy or not self._listens or not heard.count:
            return
        if not torch.is_grad_enabled():
            self._evaluated.append((heard.mean * heard.count, heard.count))
            return
        self._classes = self._classes or heard.classes
        if heard.classes != self._classes:
            return  # of another head
        self._sum, self._count = self._sum + heard.mean * heard.count, self._count + heard.count
        self._loss_inside = self._loss_inside or self._inside
        batch = None if self._now is None else self._now.batch(heard)
        if not self._steps:
            self._start.append(heard)
        self._batch = self._batch or batch
        if self.role is Role.LEARN and batch is not None:
            self._samples.add(self._ids, batch)
            if self._steps >= self._half:
                self._tally.add(heard, self._ids)

    def _tell_evaluated(self) -> None:
        """What was heard without a gradient since the step before: a validation, as far as one can tell."""
        if self._evaluated and self.role is Role.LEARN:
            total, count = (sum(each) for each in zip(*self._evaluated, strict=True))
            self._observe("validation", loss_sum=total, targets=count, heard=True)
        self._evaluated.clear()

    # Steps

    def told(self) -> dict[str, Any]:
        """Of this step, for its event: the cross-entropy of all its forward passes."""
        fields = {"cross_entropy": [self._sum, self._count]} if self._count and self._listens else {}
        self._sum, self._count = 0.0, 0
        return fields

    def stepped(self) -> None:
        """After each step."""
        first, self._steps = not self._steps, self._steps + 1
        if first:
            self._tell_start()
            if self.role is Role.LEARN:
                self._ask()
        if self.role is Role.SINGLE:
            self.stop()

    def _tell_start(self) -> None:
        """Of the first step: what is learned, by what the loss was called with."""
        if not self._start:
            self._observe("heard", missing=True)
            return
        counted = sum(each.count for each in self._start)
        offsets = {} if self._batch is None else _offsets(self._batch)
        self._samples.next_token = offsets.get(str(NEXT), 0.0) >= SURE
        self._observe(
            "heard",
            classes=self._classes,
            loss_sum=sum(each.mean * each.count for each in self._start),
            targets=counted,
            rows=len(self._start[0].logits),
            weighted=any(each.weighted for each in self._start),
            offsets=offsets,
            **(_padded(self._first, self._batch) if self._samples.next_token else {}),
        )
        if self.holds and self._batch is not None:
            self._observe("batch", ids=[], targets=self._batch.count, floor=self._floor(self._batch))
        self._start.clear()  # logits may be large

    def _floor(self, batch: Batch) -> float:
        mask = None if self._first is None else self._first.mask
        return statistics.floor(batch, causal=self._samples.next_token, real=mask) + self._start[0].floor

    def _ask(self) -> None:
        """The model, on the first batch; random numbers are drawn again afterwards."""
        call, batch = self._first, self._batch
        device = next((p.device for p in self._model.parameters()), torch.device("cpu"))
        devices = [] if device.type == "cpu" else [device]
        self._busy = True
        try:
            for what, look in (("causal", _causal), ("activations", _activations)):
                try:
                    with torch.random.fork_rng(devices, device_type=device.type if devices else "cuda"):
                        found = None if call is None else look(self._model, call, batch)
                except Exception as error:  # a model that cannot be called so is no reason to end the user's run
                    found = {"missing": True, "why": f"{type(error).__name__}: {error}"}
                self._observe(what, **(found if found is not None else {"missing": True}))
        finally:
            self._busy = False

    def close(self, *, by_content: bool) -> None:
        """At the end of the run. ``by_content``: samples are known by what they are only."""
        self.stop()
        self._tell_evaluated()
        if self.role is Role.LEARN and (ids := self._samples.ids):
            # One at a time: they may be of different lengths.
            self._observe("split", **statistics.split(self._samples, "train", ids, chunk=1), by_content=by_content)
            self._observe("classes", **({"missing": True} if self._samples.next_token else self._tally.fields()))
        if self.holds:
            self._observe("held", others=self._others)

    def stop(self) -> None:
        self._ear.stop()


def _offsets(batch: Batch) -> dict[str, float]:
    """Of targets that are tokens of the same sample: the share that is the token so many places on."""
    inputs, targets = batch.inputs, batch.targets
    out: dict[str, float] = {}
    if targets.shape != inputs.shape or inputs.is_floating_point():
        return out
    for offset in OFFSETS:
        ahead, here = inputs[:, offset:], targets[:, : inputs.shape[1] - offset]
        there = here != IGNORE
        out[str(offset)] = float((ahead == here)[there].double().mean()) if bool(there.any()) else 0.0
    return out


def _padded(call: Call | None, batch: Batch | None) -> dict[str, int]:
    """How many targets that count are tokens which the attention mask leaves out, and of how many samples. Nothing
    where there is no mask."""
    if call is None or batch is None or (mask := call.mask) is None:
        return {}
    own = mask[:, NEXT : NEXT + batch.targets.shape[1]]
    counted = batch.targets[:, : own.shape[1]] != IGNORE
    return {"padded": int((counted & (own == 0)).sum()), "samples": len(mask)}


def _causal(model: nn.Module, call: Call, batch: Batch | None) -> dict[str, Any] | None:
    inputs = call.inputs
    if inputs is None or inputs.ndim != 2 or inputs.is_floating_point():
        return None
    tokens = torch.ones_like(inputs, dtype=torch.bool) if call.mask is None else call.mask.bool()
    if batch is None or batch.targets.shape != batch.inputs.shape:
        batch = Batch(inputs, torch.where(tokens, inputs, IGNORE))
    length = batch.inputs.shape[1]
    return causal(Outputs(model, call, length), None, batch, tokens[:, :length])


def _activations(model: nn.Module, call: Call, batch: Batch | None) -> dict[str, Any] | None:
    return activations(model, lambda: model(*call.args, **call.kwargs))
