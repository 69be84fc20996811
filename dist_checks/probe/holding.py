"""What a rank holds of the model and where it is to be found; in a plain loop, in the parameters themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from dist_checks.probe.extents import Part
from dist_checks.probe.header import buffers_of, group_row, parameter_table, parameters_of, scalar

Held = tuple[str, Tensor | Part]
"""Plain name of a parameter; a tensor that says itself where it lies (plain or DTensor), or a part that is located."""


class Holding:
    """On every rank: all reads are of local memory at the moment of the call. For a framework that keeps weights,
    gradients or optimizer state elsewhere than in the parameters, derive from this class."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        masters: Mapping[str, Tensor] | None = None,
    ) -> None:
        """``masters`` are what the optimizer steps, by plain name, where that is not the parameters of the model."""
        self.model = model
        self.optimizers = tuple(optimizers)
        # Once and for all: while it gathers a module, FSDP2 shows others in their place; the optimizer keeps these.
        self._parameters: dict[str, Any] = dict(masters if masters is not None else parameters_of(model))

    def table(self, tied: Mapping[str, str]) -> list[dict[str, Any]]:
        """The rows of the header's parameter table; ``tied`` names, for a parameter here, the one that it is a copy of
        and that another rank holds."""
        return parameter_table(self.model, tied)

    def groups(self) -> list[dict[str, Any]]:
        """A row for each group of each optimizer. A parameter that the model does not have is named None."""
        names = {parameter: name for name, parameter in self._parameters.items()}
        return [
            group_row(optimizer, group, [names.get(parameter) for parameter in group["params"]])
            for optimizer in self.optimizers
            for group in optimizer.param_groups
        ]

    def weights(self) -> Iterator[Held]:
        yield from self._parameters.items()

    def buffers(self) -> Iterator[Held]:
        yield from buffers_of(self.model).items()

    def gradients(self) -> Iterator[Held]:
        """Reduced, not clipped, times the loss scale."""
        for name, parameter in self._parameters.items():
            if parameter.grad is not None:
                yield name, parameter.grad

    def applied(self, optimizer: Optimizer) -> Iterator[Held]:
        """The gradients that ``optimizer`` is about to step with."""
        held = {parameter for group in optimizer.param_groups for parameter in group["params"]}
        for name, parameter in self._parameters.items():
            if parameter in held and parameter.grad is not None:
                yield name, parameter.grad

    def applied_scale(self, optimizer: Optimizer) -> float:
        """By how much :meth:`applied` is too large: a fused optimizer unscales inside its step, by the scale that
        GradScaler has left on it."""
        return float(scalar(getattr(optimizer, "grad_scale", None)) or 1.0)

    def state(self) -> Iterator[Held]:
        """Named ``<parameter>/<state>``; the tensors that have elements of their own, not the count of steps."""
        for name, parameter in self._parameters.items():
            for optimizer in self.optimizers:
                # ZeroRedundancyOptimizer has an optimizer inside, with the state of the parameters that are its rank's.
                inner = getattr(optimizer, "optim", optimizer)
                for key, value in inner.state.get(parameter, {}).items():
                    if is_state(key, value):
                        yield f"{name}/{key}", value

    def counts(self) -> Iterator[int]:
        """How many steps the optimizer has counted, of each parameter of which it counts them."""
        for optimizer in self.optimizers:
            for state in getattr(optimizer, "optim", optimizer).state.values():
                if "step" in state:
                    yield int(scalar(state["step"]))

    def evidence(self) -> dict[str, Any]:
        """What the framework says of itself; fields of the evidence event."""
        return {}


class Unread(Holding):
    """Of a model that cannot be read: samples and losses are recorded all the same, and why nothing else is."""

    def __init__(self, model: nn.Module, optimizers: Sequence[Optimizer], why: str) -> None:
        super().__init__(model, optimizers, {})
        self._why = why

    def table(self, tied: Mapping[str, str]) -> list[dict[str, Any]]:
        return []

    def buffers(self) -> Iterator[Held]:
        return iter(())

    def evidence(self) -> dict[str, Any]:
        return {"unread": self._why}


def is_state(key: str, value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and key != "step"


def holding_of(model: nn.Module, optimizers: Sequence[Optimizer]) -> Holding:
    """The holding that fits ``model``: that of a DeepSpeed engine, of FSDP1, or the plain one. Raises Unreadable."""
    if type(model).__module__.partition(".")[0] == "deepspeed" and hasattr(model, "zero_optimization_stage"):
        from dist_checks.probe.zero import engine_holding

        return engine_holding(model)
    from dist_checks.probe.fsdp1 import FlatHolding, is_flat

    return FlatHolding(model, optimizers) if is_flat(model) else Holding(model, optimizers)
