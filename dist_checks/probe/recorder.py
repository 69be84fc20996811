"""The probe that records: what belongs into the trace at each moment of a step."""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dist_checks.probe.closures import Call, when_ready
from dist_checks.probe.dependence import Dependence
from dist_checks.probe.evidence import Evidence
from dist_checks.probe.extents import Part
from dist_checks.probe.flight import is_recording
from dist_checks.probe.header import header_fields, scalar
from dist_checks.probe.holding import Held, Holding, holding_of
from dist_checks.probe.hooks import BlockHooks, MicroBatch
from dist_checks.probe.ledger import Ledger, of_worker
from dist_checks.probe.machine import memory_peak, rng_hash
from dist_checks.probe.narrowing import Narrowing
from dist_checks.probe.probe import Probe
from dist_checks.probe.record import Record
from dist_checks.probe.routing import Read, RoutingHooks
from dist_checks.probe.sample_ids import sampled
from dist_checks.probe.scribe import Scribe
from dist_checks.trace import NO_ITEM, Kind, Writer

T = TypeVar("T")


class Recorder(Probe):
    """On every rank. See :class:`Probe` for the order of calls."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        folder: Path,
        rank: int,
        header: Mapping[str, Any],
        blocks: Mapping[str, nn.Module],
        record: Record,
        tied: Mapping[str, str],
        holding: Holding | None = None,
        first: int = 0,
    ) -> None:
        given = tuple(optimizer) if isinstance(optimizer, Sequence) else (optimizer,)
        self._held = holding or holding_of(model, given)
        self._optimizers = self._held.optimizers
        self._device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        self._record = replace(record, first=first + record.first)
        self._first = self._step = first
        self._epochs = 0
        about = {"device": str(self._device), **header}
        fields = header_fields(self._held.table(tied), self._held.groups(), tuple(blocks), about)
        self._writer = Writer(folder, rank, fields)
        # Before those of the evidence, which are not to see what is done here.
        self._handles = [o.register_step_pre_hook(self._before_optimizer) for o in self._optimizers]
        self._evidence = Evidence(model, blocks, self._optimizers)
        self._dependence = Dependence(model, self._device)
        self._scribe = Scribe(self._writer, self._device, self._evidence.unrecorded)
        self._blocks = BlockHooks(blocks, self._write_samples)
        self._routing = RoutingHooks({}, self._write_routing)
        self._narrowing = Narrowing(model) if record.narrowing else None
        # Before the first step of all, that is BEFORE.
        self._scribe.tensors(first - 1, self._weights())
        self._writer.flush()
        self._own_ledger = None if of_worker(folder) or not is_recording() else Ledger(folder, rank)
        self._ledger = of_worker(folder) or self._own_ledger
        if self._ledger is not None:
            self._ledger.started(first)
        self._closed = False
        self._start_step()

    def _start_step(self) -> None:
        self._batches: list[MicroBatch] = []
        self._epoch = 0
        self._rng: str | None = None
        self._rates: dict[int, list[Any]] = {}
        self._norm: dict[str, float | None] = {"norm_used": None, "norm_printed": None, "clip": None}
        self._started = time.perf_counter()

    def routing(self, routers: Mapping[str, nn.Module], read: Read | None = None) -> None:
        self._routing = RoutingHooks(routers, self._write_routing, read)

    def _write_routing(self, name: str, choices: int, experts: Mapping[int, list[int]], start: int) -> None:
        self._writer.event("routing", step=self._step, router=name, choices=choices, start=start, experts=experts)

    def watch(self, loader: Iterable[T], ids: str | Callable[[T], Iterable[int]] | None = None) -> Iterator[T]:
        epoch, self._epochs = self._epochs, self._epochs + 1
        for batch, found in sampled(loader, ids):
            self.micro_batch(found, epoch=epoch)
            yield batch

    def micro_batch(
        self,
        ids: Iterable[int],
        tokens: tuple[int, int, int] | None = None,
        loss_scale: float = 1.0,
        epoch: int = 0,
        padding: int = 0,
        later: bool = False,
    ) -> None:
        if not self._batches:
            self._rng = rng_hash(self._device)
        whole = ids.tolist() if isinstance(ids, Tensor) else ids
        batch = MicroBatch(ids=tuple(int(i) for i in whole), tokens=tokens, loss_scale=loss_scale, padding=padding)
        self._batches.append(batch)
        self._epoch = epoch
        self._expect(None if later else batch)
        if self._narrowing is not None and self._step == self._first:
            self._narrowing.start()

    def _expect(self, batch: MicroBatch | None) -> None:
        self._blocks.expect(batch if self._record.outputs_at(self._step - self._first) else None)
        self._routing.expect(batch if self._record.routing_at(self._step - self._first) else None)

    def forward(self, number: int, stage: int = 0) -> None:
        self._expect(self._batches[number])
        self._evidence.action("F", stage, number)

    def backward(self, number: int, stage: int = 0, part: str = "B") -> None:
        # Activation checkpointing runs forward again in backward: not to be taken for the micro-batch before.
        self._expect(None)
        self._evidence.action(part, stage, number)

    def sample_gradient(self, sample_id: int, loss_scale: float = 1.0) -> None:
        self._forward_done()
        self._write_gradients(Kind.SAMPLE_GRADIENT, self._held.gradients(), loss_scale, item=sample_id)

    def term_gradient(self, term: str, loss_scale: float = 1.0) -> None:
        self._forward_done()
        named = ((f"{name}/{term}", gradient) for name, gradient in self._held.gradients())
        self._write_gradients(Kind.TERM_GRADIENT, named, loss_scale)

    def observe(self, what: str, **fields: Any) -> None:
        self._writer.event("observed", what=what, step=self._step, **fields)
        self._writer.flush()

    def gradients(self, loss_scale: float = 1.0) -> None:
        self._forward_done()
        self._write_gradients(Kind.GRADIENT, self._held.gradients(), loss_scale)
        # Now, not at the end of the step: if the optimizer or the next forward crashes, these are what explains it.
        self._writer.flush()

    def norm(self, used: float, limit: float | None, printed: float) -> None:
        self._norm = {"norm_used": float(used), "norm_printed": float(printed), "clip": limit}

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
        if loss is not None and loss_sum is None:
            # Counted in samples: all have as many targets, says the caller.
            count = sum(len(batch.ids) for batch in self._batches) or 1
            loss_sum, targets = float(loss) * count, count
            printed_loss = loss if printed_loss is None else printed_loss
        seconds = time.perf_counter() - self._started
        self._forward_done()
        if self._record.tensors_at(self._step):
            state = self._state() if self._record.state_at(self._step) else ()
            self._scribe.tensors(self._step, chain(self._weights(), state))
        last = self._batches[-1] if self._batches else None
        self._writer.event(
            "step",
            step=self._step,
            epoch=self._epoch,
            ids=[i for batch in self._batches for i in batch.ids],
            micro_batches=[list(batch.ids) for batch in self._batches],
            tokens=list(last.tokens) if last is not None and last.tokens is not None else None,
            loss_sum=None if loss_sum is None else float(loss_sum),
            targets=int(targets or 0),
            printed_loss=None if printed_loss is None else float(printed_loss),
            micro_losses=[float(loss) for loss in micro_losses],
            learning_rates=self._learning_rates(),
            loss_scale=None if loss_scale is None else float(loss_scale),
            **self._norm,
            skipped=bool(skipped),
            rng=self._rng,
            seconds=seconds,
            **self._told(),
        )
        if self._step == self._first:
            self._write_evidence()
        self._writer.flush()
        if self._ledger is not None:
            self._ledger.step()
        self._step += 1
        if not self._record.outputs_at(self._step - self._first):
            self._blocks.remove()
        if not self._record.routing_at(self._step - self._first):
            self._routing.remove()
        self._start_step()

    def _told(self) -> dict[str, Any]:
        """Further fields of the step event."""
        return {}

    def saved(self, *, epoch: int, batch: int, loss_scale: float | None = None) -> None:
        last = self._step - 1
        named: list[Iterator[tuple[Kind, str, Tensor | Part]]] = []
        if not self._record.tensors_at(last):
            named.append(self._weights())
        if not self._record.tensors_at(last) or not self._record.state_at(last):
            named.append(self._state())
        self._scribe.tensors(last, chain(*named))
        self._write_checkpoint("saved", epoch, batch, loss_scale)

    def loaded(self, *, epoch: int, batch: int, loss_scale: float | None = None) -> None:
        self._scribe.tensors(self._step - 1, self._state())
        self._write_checkpoint("loaded", epoch, batch, loss_scale)

    def _write_checkpoint(self, moment: str, epoch: int, batch: int, loss_scale: float | None) -> None:
        self._writer.event(
            moment,
            step=self._step,
            epoch=epoch,
            batch=batch,
            loss_scale=loss_scale,
            rng=rng_hash(self._device),
            optimizer_steps=sorted(set(self._held.counts())),
        )
        self._writer.flush()

    def evaluation(
        self, ids: Iterable[int], loss_sum: float | None, targets: int, printed_loss: float | None = None
    ) -> None:
        self._writer.event(
            "evaluation",
            ids=[int(i) for i in ids],
            loss_sum=None if loss_sum is None else float(loss_sum),
            targets=int(targets),
            printed_loss=None if printed_loss is None else float(printed_loss),
        )

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._step == self._first:
            self._write_evidence()
        self._detach()
        if self._own_ledger is not None:
            self._own_ledger.end()
            self._own_ledger.left()
        self._writer.close(memory_peak=memory_peak(self._device))

    def close_at_exit(self) -> None:
        """For loops that do not close their probe. Python has kept the exception that ended the program, if one did."""
        if getattr(sys, "last_value", None) is None:
            self.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        self._closed = True
        self._detach()
        self._writer.abandon()
        if self._own_ledger is not None:
            self._own_ledger.abandon()

    def _detach(self) -> None:
        """Take every hook off the user's modules and optimizers."""
        self._forward_done()
        self._blocks.remove()
        self._routing.remove()
        self._evidence.stop()
        self._dependence.stop()
        if self._narrowing is not None:
            self._narrowing.remove()
        for handle in self._handles:
            handle.remove()
        atexit.unregister(self.close_at_exit)

    def _forward_done(self) -> None:
        self._blocks.expect(None)
        self._routing.expect(None)
        if self._narrowing is not None:
            self._narrowing.stop()

    def _before_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Call | None:
        return when_ready(args, kwargs, partial(self._about_to_step, optimizer))

    def _about_to_step(self, optimizer: Optimizer) -> None:
        self._forward_done()
        # Frameworks that step one group at a time leave the others empty meanwhile.
        rates = self._rates.setdefault(id(optimizer), [])
        rates.extend(scalar(group["lr"]) for group in optimizer.param_groups if group["params"])
        if self._record.applied:
            self._write_gradients(Kind.APPLIED, self._held.applied(optimizer), self._held.applied_scale(optimizer))

    def _learning_rates(self) -> list[Any]:
        """In the order of the header, whichever optimizer stepped first."""
        return [
            rate
            for optimizer in self._optimizers
            for rate in self._rates.get(id(optimizer)) or [scalar(group["lr"]) for group in optimizer.param_groups]
        ]

    def _write_gradients(self, kind: Kind, gradients: Iterable[Held], loss_scale: float, item: int = NO_ITEM) -> None:
        if not self._record.tensors_at(self._step):
            return
        named = ((kind, name, gradient) for name, gradient in gradients)
        self._scribe.tensors(self._step, named, divide=loss_scale, item=item)

    def _weights(self) -> Iterator[tuple[Kind, str, Tensor | Part]]:
        for name, weight in self._held.weights():
            yield Kind.WEIGHT, name, weight
        for name, buffer in self._held.buffers():
            yield Kind.BUFFER, name, buffer

    def _write_samples(self, kind: Kind, name: str, x: Tensor, batch: MicroBatch) -> None:
        self._scribe.samples(self._step, kind, name, x, batch)

    def _state(self) -> Iterator[tuple[Kind, str, Tensor | Part]]:
        for name, value in self._held.state():
            yield Kind.STATE, name, value

    def _write_evidence(self) -> None:
        """After the first step: it is proof enough, and a run that is cut short later has it."""
        self._evidence.stop()
        self._dependence.stop()
        narrowed, islands = [], []
        if self._narrowing is not None:
            self._narrowing.remove()
            narrowed = self._narrowing.found
            islands = self._narrowing.islands
        env = {name: os.environ.get(name) for name in self._record.env}
        fields = {
            **self._evidence.fields(),
            **self._held.evidence(),
            **self._dependence.fields(),
            "narrowed": narrowed,
            "islands": islands,
            "env": env,
        }
        self._writer.event("evidence", **fields)
