"""What a user puts into a training loop; on its own it does nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from dist_checks.probe.holding import Holding
    from dist_checks.probe.placed import Sharded
    from dist_checks.probe.record import Record
    from dist_checks.probe.routing import Read

T = TypeVar("T")

FOLDER = "DIST_CHECKS_TRACE"
"""Environment variable: the folder that the ranks of a run write their traces to."""


class Probe:
    """Records what a rank computes. This class is the inert one: each method returns at once.

    On every rank, in this order, the methods in brackets where the loop has something to say::

        probe = Probe.attach(model, optimizer)
        for each step:
            for each micro-batch:
                [probe.micro_batch(ids)]       # before its forward; or probe.watch(loader) around the loop
            [probe.gradients()]                # after reduction, before clipping
            [probe.norm(...)]
            probe.step(loss_sum=..., targets=...)  # after optimizer.step()
        [probe.close()]

    What a loop of the user's own leaves unsaid is seen by hooks: see :mod:`dist_checks.probe.own`.

    A probe never communicates, and changes no number: weights have the same bits with and without it.
    """

    @staticmethod
    def attach(
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        folder: Path | None = None,
        rank: int | None = None,
        header: Mapping[str, Any] | None = None,
        blocks: Mapping[str, nn.Module] | None = None,
        record: Record | None = None,
        tied: Mapping[str, str] | None = None,
        holding: Holding | None = None,
        first: int = 0,
        extents: Mapping[str, Sharded] | None = None,
    ) -> Probe:
        """A probe that writes to ``folder``, else to $DIST_CHECKS_TRACE; an inert one where neither is given.

        To be called when the model is wrapped, sharded and initialized, and the optimizer made of its parameters.
        ``rank`` and ``header["world_size"]`` default to torchrun's RANK and WORLD_SIZE. ``blocks`` are the modules,
        in forward order, whose outputs are recorded; ``header`` may hold ``rung, world_size, device, coordinates``.
        ``tied``, in a pipeline: of parameters here that are copies, the name of the one that an earlier stage holds.
        ``model`` may be a DeepSpeed engine. ``holding`` says where weights, gradients and state are, for a framework
        that keeps them elsewhere than in the parameters. ``first`` is the step that comes next, in a run that goes on
        from a checkpoint, which has been loaded. ``extents`` says, by patterns of
        parameter names such as ``*.wq.weight``, of which plain tensors a rank holds a part, where nothing else tells:
        not DTensor, not Megatron's attributes.
        """
        if folder is None:
            if not os.environ.get(FOLDER):
                return Probe()
            from dist_checks.probe.own import attach

            return attach(
                model,
                optimizer,
                rank=rank,
                header=header,
                blocks=blocks,
                record=record,
                tied=tied,
                holding=holding,
                extents=extents,
            )
        from dist_checks.probe.record import Record
        from dist_checks.probe.recorder import Recorder

        return Recorder(
            model,
            optimizer,
            folder=folder,
            rank=int(os.environ.get("RANK", "0")) if rank is None else rank,
            header={"rung": folder.name, "world_size": int(os.environ.get("WORLD_SIZE", "1")), **(header or {})},
            blocks=blocks or {},
            record=record or Record(),
            tied=tied or {},
            holding=holding,
            first=first,
        )

    def routing(self, routers: Mapping[str, nn.Module], read: Read | None = None) -> None:
        """After attach: the modules that choose the experts which each token goes to, by name, in forward order.

        Their output has the choices as a tensor of whole numbers, (samples, length, choices) or a row for each token of
        one sample after the other, -1 where there is no token; or ``read`` makes something of it that has.
        """

    def watch(self, loader: Iterable[T], ids: str | Callable[[T], Iterable[int]] | None = None) -> Iterable[T]:
        """``loader``, with :meth:`micro_batch` called for each of its batches; each call is an epoch.

        ``ids`` is the key under which a batch has its sample ids, or a function of the batch; without it they are those
        that the loader's sampler gave, or a hash of each sample where there is no sampler.
        """
        return loader

    def micro_batch(
        self,
        ids: Iterable[int],
        tokens: tuple[int, int, int] | None = None,
        loss_scale: float = 1.0,
        epoch: int = 0,
        padding: int = 0,
        later: bool = False,
    ) -> None:
        """Before a forward pass: its sample ids, and (start, stop, total) of the tokens that the blocks here see.

        ``padding`` rows behind the samples are none. ``later``: :meth:`forward` says when its forward pass comes, as
        the loop of a pipeline cannot.
        """

    def forward(self, number: int, stage: int = 0) -> None:
        """In a pipeline: the next forward pass is that of micro-batch ``number`` of this step, through ``stage``."""

    def backward(self, number: int, stage: int = 0, part: str = "B") -> None:
        """In a pipeline: what follows is no forward pass, but backward of micro-batch ``number`` through ``stage``.

        ``part`` is I where it gives gradients of inputs only, W where it gives those of weights only.
        """

    def sample_gradient(self, sample_id: int, loss_scale: float = 1.0) -> None:
        """``p.grad`` now holds the gradient of one sample alone. Singles only, before the first step."""

    def term_gradient(self, term: str, loss_scale: float = 1.0) -> None:
        """``p.grad`` now holds the gradient of one term of the loss alone. Singles only, before the first step."""

    def observe(self, what: str, **fields: Any) -> None:
        """Something that was seen of the recipe on one device: an ``observed`` event."""

    def gradients(self, loss_scale: float = 1.0) -> None:
        """``p.grad`` now holds the reduced gradient, times ``loss_scale``, not clipped yet."""

    def norm(self, used: float, limit: float | None, printed: float) -> None:
        """The gradient norm that decided about clipping, the limit (None: no clipping), and what the user was told."""

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
        """The optimizer has stepped, unless the loss scaler ``skipped`` it. Sums are of this rank's samples;
        ``micro_losses`` are per target, of each forward pass alone, where the loop knows them.

        ``loss``, instead of a sum with its number of targets, is the mean over this rank's samples: enough where each
        sample has as many targets. Neither on a rank that has no loss, as in a pipeline.
        """

    def saved(self, *, epoch: int, batch: int, loss_scale: float | None = None) -> None:
        """Between two steps: all that the run needs to go on is saved now. ``batch`` of ``epoch`` is read next."""

    def loaded(self, *, epoch: int, batch: int, loss_scale: float | None = None) -> None:
        """After attach, in a process that goes on from there."""

    def evaluation(
        self, ids: Iterable[int], loss_sum: float | None, targets: int, printed_loss: float | None = None
    ) -> None:
        """After the last step: these samples were evaluated on this rank, and are counted in what is printed."""

    def close(self) -> None:
        """The run has come to its end. Without it the trace says that the rank was cut short."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
