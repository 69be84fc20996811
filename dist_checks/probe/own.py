"""The probe in a loop of the user's own: what the loop leaves unsaid is seen by hooks.

Sample ids: those of ``probe.watch``, else a hash of what the model is called with. Gradients: at ``probe.gradients``,
else where ``clip_grad_norm_`` computes their norm, else as the optimizer gets them. Blocks: the longest list of modules
of one class. A step that no optimizer has taken was skipped by the loss scaler.
"""

from __future__ import annotations

import atexit
import json
import os
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dist_checks.axes import Axis, Layout, Setting
from dist_checks.looks.held import held, hold_loaders
from dist_checks.looks.script import Script
from dist_checks.probe import compiling
from dist_checks.probe import record as records
from dist_checks.probe.block_list import blocks_of
from dist_checks.probe.clipping import Clipping, whole
from dist_checks.probe.engine import Engine
from dist_checks.probe.extents import Unreadable
from dist_checks.probe.holding import Holding, Unread, holding_of
from dist_checks.probe.placed import PlacedHolding, Sharded, declared
from dist_checks.probe.probe import FOLDER, Probe
from dist_checks.probe.record import Record
from dist_checks.probe.recorder import Recorder
from dist_checks.probe.sample_ids import overheard, sampled, sampler_of
from dist_checks.rung import Role

T = TypeVar("T")

RUNG = "DIST_CHECKS_RUNG"
"""Environment variable: what the harness says of the rung, as JSON."""

EVERY = "DIST_CHECKS_EVERY"
"""Environment variable, in production: steps from one recorded step to the next. All others cost next to nothing."""

READ = 5
"""In production: of so many first steps it is written down which samples were read, recorded or not."""

SAID, CLIPPED, STEPPED = "probe.gradients()", "clip_grad_norm_", "optimizer.step()"
"""The moments at which gradients are seen."""

RECORDS = {Role.LEARN: records.LEARN, Role.OVERFIT: records.OVERFIT}
ALONE = (Role.SINGLE, *RECORDS)
NARROWING = ("fp64", "bf16", "fp16")
"""Precisions in which it counts what a single computes in fewer bits."""
"""Of rung zero; of what is compared, the usual one."""

SPLIT = (Axis.PP, Axis.CP, Axis.TP, Axis.SP)
"""Axes under which the output of a block may be of some of a sample's tokens only, or be run for another stage."""


def attach(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    *,
    rank: int | None = None,
    header: Mapping[str, Any] | None = None,
    blocks: Mapping[str, nn.Module] | None = None,
    record: Record | None = None,
    tied: Mapping[str, str] | None = None,
    holding: Holding | None = None,
    extents: Mapping[str, Sharded] | None = None,
) -> Probe:
    """On every rank: a probe that writes to $DIST_CHECKS_TRACE until the program ends. See :meth:`Probe.attach`."""
    global _attached
    if _attached is not None:
        warnings.warn("Probe.attach was called again: the first model is recorded, this one is not", stacklevel=3)
        return Probe()
    place = Path(os.environ[FOLDER])
    told = told_of_rung()
    rung = told.get("rung") or {}
    setting = Setting(rung.get("setting"))
    role = role_of_rung()
    rank = int(os.environ.get("RANK", "0")) if rank is None else rank
    layout = Layout(setting)
    about = {
        "rung": rung.get("id", place.name),
        "world_size": int(os.environ.get("WORLD_SIZE", "1")),
        "options": told.get("options") or {},
        "coordinates": {axis.value: at for axis, at in layout.coordinates(rank).items()} if rung else {},
        **(header or {}),
    }
    # DeepSpeed's own is no torch Optimizer; its engine has it anyway.
    given = tuple(optimizer) if isinstance(optimizer, list | tuple) else (optimizer,)
    given = tuple(_within(each) for each in given)
    tp = layout.coordinates(rank)[Axis.TP], setting.degree(Axis.TP)
    if holding is None and (extents or declared(model, tp)):
        holding = PlacedHolding(model, given, extents or {}, tp)
    if blocks is None:
        blocks = {} if set(SPLIT) & set(setting) else blocks_of(model)
    every = int(os.environ.get(EVERY, "0"))
    if every:
        from dist_checks.probe.groups import cut_groups, data_groups, mesh_coordinates

        about["data_groups"], about["cut_groups"] = data_groups(model), cut_groups(model)
        about["coordinates"] = about["coordinates"] or mesh_coordinates(model)
        record = Record(every=every, first=1, state_every=0, outputs_steps=0, routing_steps=0, applied=False)
    if record is None:
        compiled = Axis.COMPILE in setting or any(map(compiling.is_compiled, model.modules()))
        narrowing = role is Role.SINGLE and rung.get("precision") in NARROWING and not compiled
        record = replace(RECORDS.get(role, Record()), narrowing=narrowing, env=tuple(told.get("env") or ()))
    try:
        holding = holding or holding_of(model, given)
    except Unreadable as why:
        if every:
            warnings.warn(f"dist_checks records nothing of this job: {why}", stacklevel=3)  # which goes on without
            return Probe()
        if not rung or role is Role.SINGLE:
            raise  # the harness says it as a matter of usage
        holding = Unread(model, given, str(why))
    _attached = OwnLoop(
        model,
        given,
        folder=place,
        rank=rank,
        header=about,
        blocks=blocks,
        record=record,
        tied=tied or {},
        holding=holding,
        hashes=not {Axis.PP, Axis.CP} & set(setting),
        sparse=bool(every),
        role=role,
        steps=int(rung.get("steps", 0)),
        tokens=told.get("tokens"),
    )
    atexit.register(_attached.close_at_exit)
    return _attached


def told_of_rung() -> dict[str, Any]:
    """What the harness says; empty where a script was started by hand."""
    found: dict[str, Any] = json.loads(os.environ.get(RUNG, "{}"))
    return found


def role_of_rung() -> Role:
    return Role((told_of_rung().get("rung") or {}).get("role", Role.RUNG))


def before_loaders() -> None:
    """For what is asked before a framework opens its loaders, which is before a probe is attached."""
    if os.environ.get(FOLDER) and role_of_rung() is Role.OVERFIT:
        hold_loaders()


def _within(optimizer: Any) -> Any:
    """The optimizer that accelerate has wrapped."""
    return optimizer.optimizer if type(optimizer).__module__.startswith("accelerate.") else optimizer


_attached: OwnLoop | None = None


def finish() -> None:
    """The script has come to its end."""
    if _attached is not None:
        _attached.close()


class OwnLoop(Recorder):
    """On every rank, in a loop that is not ours."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Sequence[Optimizer],
        *,
        hashes: bool,
        sparse: bool = False,
        role: Role = Role.RUNG,
        steps: int = 0,
        tokens: Mapping[str, int | None] | None = None,
        **rest: Any,
    ) -> None:
        self._hashes = hashes
        self._sparse = sparse
        self._pending: deque[tuple[tuple[int, ...], int]] = deque()
        self._drawn: deque[tuple[Sequence[int], int]] = deque()
        self._source = ""
        self._announced = False
        self._losses: list[tuple[float | None, int]] = []
        self.after_engine: Callable[[], None] | None = None
        self._loss_from: str | None = None
        self._model = model  # to the end: a script that frees DDP may hang, see tests/upstream/test_freed_group.py
        super().__init__(model, optimizer, **rest)
        alone = role in ALONE
        self._script = Script(role, model, self._optimizers, self.observe, steps, tokens) if alone else None
        self._kept: list[Any] = []
        self._handles.append(model.register_forward_pre_hook(self._before_forward, with_kwargs=True))
        if self._script is not None:
            self._handles.append(model.register_forward_hook(lambda module, args, out: self._after_forward(out)))
        self._clipping = Clipping(model, self._at_clipping, self._clipped)
        self._engine = Engine(model, self._at_engine_step, self._after_engine_step)

    def _start_step(self) -> None:
        super()._start_step()
        self._moment = ""
        self._stepped = False
        self._read: list[int] = []

    @property
    def _holds(self) -> bool:
        """In the rung that memorises: whatever the loop reads, it is the first batch."""
        return self._script is not None and self._script.holds

    @property
    def _passed_over(self) -> bool:
        """In production: nothing is to be recorded of this step."""
        return self._sparse and not self._record.tensors_at(self._step)

    # Samples

    def watch(self, loader: Iterable[T], ids: str | Callable[[T], Iterable[int]] | None = None) -> Iterator[T]:
        epoch, self._epochs = self._epochs, self._epochs + 1
        if self._holds:
            yield from held(loader, self._kept)
            return
        self._source = "given" if ids is not None else "sampler" if sampler_of(loader) is not None else "inputs"
        self._hashes = False
        for batch, found in sampled(loader, ids):
            # A loop may fetch its next batch before the step is over: this one is read when the model is called.
            self._pending.append((tuple(int(i) for i in found), epoch))
            yield batch

    def overhear(self, loader: object) -> None:
        """Where a framework reads ``loader``: the ids of a batch are those that its sampler drew, in their order."""
        if not self._holds:
            self._drawn = overheard(loader)

    def micro_batch(self, ids: Iterable[int], *args: Any, **kwargs: Any) -> None:
        if self._holds:
            return
        self._source, self._hashes = self._source or "given", False
        super().micro_batch(ids, *args, **kwargs)

    def next_batch(self, batch: object) -> None:
        """Where a framework says which batch it trains with next, and calls the model as it likes."""
        if not self._announced:
            # Whole, also where a stage of a pipeline or a part of the tokens is all that the model here sees.
            self._announced, self._hashes = True, not self._source
        self._see_batch(batch)

    def _before_forward(self, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        if not module.training or not torch.is_grad_enabled():
            return None
        instead = self._script.called(args, kwargs) if self._script is not None else None
        if not self._announced:
            self._see_batch([args, kwargs] if instead is None else list(instead))
        return instead

    def _after_forward(self, output: object) -> None:
        if self._script is not None:
            self._script.returned(output)

    def _see_batch(self, inputs: object) -> None:
        if self._pending:
            self._take(*self._pending.popleft())
        elif self._drawn:
            self._source, self._hashes = "sampler", False
            self._take(*self._drawn.popleft())
        elif self._hashes and not (self._passed_over and self._step >= READ):
            from dist_checks.probe.sample_ids import hashed

            if found := hashed(inputs):
                self._source = "inputs"
                self._take(found, 0)

    def _take(self, ids: Sequence[int], epoch: int) -> None:
        """A micro-batch of these samples comes next."""
        if self._passed_over:
            self._read.extend(ids)
        else:
            super().micro_batch(ids, epoch=epoch)
            if self._script is not None:
                self._script.read(ids)

    # Gradients

    def gradients(self, loss_scale: float = 1.0) -> None:
        self._see_gradients(SAID, loss_scale)

    def _see_gradients(self, moment: str, loss_scale: float = 1.0) -> None:
        if not self._moment and not self._passed_over:
            self._moment = moment
            super().gradients(loss_scale)

    def _at_clipping(self) -> None:
        self._see_gradients(CLIPPED)

    def _clipped(self, norm: Tensor, limit: float) -> None:
        if not self._passed_over and (value := whole(norm)) is not None:
            self._norm = {"norm_used": value, "norm_printed": None, "clip": limit}

    def _after_engine_step(self, norm: float | None, limit: float) -> None:
        if norm is not None and self._moment:
            self._norm = {"norm_used": norm, "norm_printed": norm, "clip": limit or None}
        if self.after_engine is not None:
            self.after_engine()

    def _at_engine_step(self) -> None:
        self._see_gradients("engine.step()")

    def _about_to_step(self, optimizer: Optimizer) -> None:
        self._stepped = True
        if self._passed_over:
            return
        self._see_gradients(STEPPED, self._held.applied_scale(optimizer))
        super()._about_to_step(optimizer)

    # Steps

    def step(
        self,
        loss_sum: float | None = None,
        targets: int | None = None,
        printed_loss: float | None = None,
        loss_scale: float | None = None,
        skipped: bool | None = None,
        micro_losses: Iterable[float] = (),
        *,
        loss: float | None = None,
    ) -> None:
        while self._pending and not self._batches:  # the model that is called is not the one that was given
            self._take(*self._pending.popleft())
        if loss_sum is not None or loss is not None:
            self._losses.append((loss_sum, targets or 0) if loss_sum is not None else (loss, 0))
        if not self._engine.at_boundary():  # DeepSpeed's loops come by here after each micro-batch
            return
        if len(self._losses) > 1:
            total = sum(float(value or 0.0) for value, _ in self._losses)
            if loss_sum is not None:
                loss_sum, targets = total, sum(count for _, count in self._losses)
            else:
                loss = total / len(self._losses)
        self._losses.clear()
        if self._pass_over():
            return
        skipped = not self._stepped if skipped is None else skipped
        super().step(loss_sum, targets, printed_loss, loss_scale, skipped, micro_losses, loss=loss)
        if self._script is not None:
            self._script.stepped()

    def _pass_over(self) -> bool:
        if passed := self._passed_over:
            if self._read and self._step < READ:
                self._writer.event("read", step=self._step, ids=self._read, ids_from=self._source)
                self._writer.flush()
            self._step += 1
            self._start_step()
        return passed

    def step_seen(self, loss: float | None) -> None:
        """Of a script that says nothing: its optimizer has stepped, and backward was called on ``loss`` in all."""
        self._loss_from = "backward"
        if self._pass_over():
            return
        super().step(loss, 1, skipped=False)
        if self._script is not None:
            self._script.stepped()

    def _told(self) -> dict[str, Any]:
        told = {"ids_from": self._source, "gradients_at": self._moment, "loss_from": self._loss_from}
        heard = self._script.told() if self._script is not None else {}
        return {key: value for key, value in told.items() if value} | heard

    def close(self) -> None:
        if self._script is not None and not self._closed:
            self._script.close(by_content=self._source == "inputs")
        super().close()

    def _detach(self) -> None:
        super()._detach()
        if self._script is not None:
            self._script.stop()
        self._clipping.stop()
        self._engine.stop()
