"""What a recipe is: a model, its samples, and a loss that adds up over samples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from dist_checks.recipes.offers import Offers
from dist_checks.recipes.settings import TrainSettings, build_optimizer

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.parallel import ParallelStyle

IGNORE = -100
"""The target of a position that has none."""

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Causal attention: queries, keys and values, each (samples, heads, tokens of this rank, size of a head), to what each
of the queries has found, of the same shape."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Some samples, stacked."""

    inputs: Tensor
    """A row for each sample; int64 of shape (samples, length) where they are tokens."""
    targets: Tensor
    """A row for each sample, or a number; of tokens, of the shape of inputs. IGNORE where there is no target."""
    tokens: tuple[int, int, int] | None = None
    """(start, stop, total): which tokens of each sample these are; None for all of them."""

    @property
    def count(self) -> int:
        """Number of targets."""
        return int(self.counts.sum())

    @property
    def counts(self) -> Tensor:
        """Number of targets of each sample, (samples,)."""
        return (self.targets != IGNORE).flatten(1).sum(1) if self.targets.dim() > 1 else (self.targets != IGNORE).long()

    def to(self, device: torch.device) -> Batch:
        return Batch(self.inputs.to(device), self.targets.to(device), self.tokens)

    def part(self, parts: int, index: int) -> Batch:
        """Part ``index`` of the sequence of each sample, which is cut into ``parts`` of equal length."""
        total = self.inputs.shape[1]
        size = total // parts
        cut = slice(index * size, (index + 1) * size)
        return Batch(self.inputs[:, cut], self.targets[:, cut], (cut.start, cut.stop, total))


def local(parameter: Tensor) -> Tensor:
    """What this rank holds of ``parameter``, as a plain tensor that gradients flow through."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


class Recipe(Offers, ABC):
    """What is trained. Derive from this class; the constructor takes the matrix's ``[options]`` as keywords.

    A recipe must be additive: its loss over a batch is the sum over targets divided by their number. Otherwise one
    data rank and two rightly compute different things, and nothing can be said about the axis. A further term of the
    loss has to be a sum over samples, each weighed by its number of targets or by 1, of something that depends on that
    sample alone.
    """

    name: str
    classes: int
    """Number of classes that the loss chooses from: an untrained model starts near ln(classes)."""
    samples: int
    """Number of samples of an epoch; their ids are 0 to samples - 1."""
    held_out: int = 0
    """Samples that are evaluated after the last step and never trained on, with the ids that follow."""
    dropout: float = 0.0
    masks_alike: tuple[str, ...] = ()
    """Axes of several ranks under which dropout masks the elements that it masks on one device, so that they can be
    compared: the ranks draw the same numbers, each for whole tensors."""

    @abstractmethod
    def model(self) -> nn.Module:
        """A new model on the CPU in float32, initialised from torch's global random state."""

    @abstractmethod
    def collate(self, ids: Sequence[int]) -> Batch:
        """The samples with these ids, in this order, on the CPU."""

    @abstractmethod
    def loss(self, output: Any, batch: Batch) -> tuple[Tensor, int]:
        """(sum over targets as a scalar tensor, number of targets). ``output`` is that of the model: logits, under
        tensor parallelism a DTensor sharded over the classes, and whatever else the model returns with them."""

    def terms(self, output: Any, batch: Batch) -> dict[str, Tensor]:
        """What :meth:`loss` adds to the loss of the targets, by name, as it adds it: ``{"balance": ...}``. One device
        records the gradient of each alone, so that one with a wrong weight is known by it."""
        return {}

    def optimizer(self, model: nn.Module, train: TrainSettings) -> torch.optim.Optimizer:
        """For the model as it is after every axis has been applied."""
        return build_optimizer(model.parameters(), train)

    def blocks(self, model: nn.Module) -> dict[str, nn.Module]:
        """The repeated parts of what :meth:`model` or :meth:`stage` made, by name, in forward order. Their outputs are
        (samples, length, width) and are recorded; dp_shard shards them one by one."""
        return {}

    def experts(self, model: nn.Module) -> dict[str, nn.Module]:
        """The modules of the model as :meth:`model` made it whose parameters are all stacked by expert along dim 0, by
        name; none where there are no experts, and then ep is refused.

        Each is called with (tokens in the order of their experts, (n, width); number of tokens of each expert,
        (experts,) int64) and gives as many tokens back. It takes its parameters with :func:`local`: under ep they are
        DTensors, of which a rank holds some experts, and the module is called with the tokens of these only.
        """
        return {}

    def routers(self, model: nn.Module) -> dict[str, nn.Module]:
        """The modules that choose the experts of each token, by name, in forward order; they are recorded."""
        return {}

    def chosen(self, output: Any, ids: Sequence[int], tokens: tuple[int, int, int] | None) -> Any:
        """What holds, as its only tensor of whole numbers, the choices of a router that gave ``output`` for the samples
        ``ids``: (samples, length, number of choices), or a row for each token of one sample after the other, -1 where
        there is no token. ``tokens`` is (start, stop, total), those of each sample that blocks see here; None for all.
        """
        return output

    def tensor_parallel_plan(self, *, sequence_parallel: bool) -> Mapping[str, ParallelStyle] | None:
        """What :func:`torch.distributed.tensor.parallel.parallelize_module` takes; None: the recipe has no such plan.

        With ``sequence_parallel`` the output of a block is the part of the sequence that belongs to the rank.
        """
        return None

    def split_sequence(self, model: nn.Module, start: int, attend: Attend) -> None:
        """Have the model, as :meth:`model` made it, work on a part of the sequence: its inputs and outputs are then
        the tokens from ``start`` on, as many as there are. Position embeddings have to begin there, and attention has
        to be ``attend``, which sees the tokens of the other parts. A recipe without this method has no cp axis."""
        raise ValueError(f"recipe {self.name} has no split_sequence")

    own_axes: frozenset[str] = frozenset()
    """The axes that :meth:`apply` applies."""

    def apply(self, axis: str, model: nn.Module, mesh: DeviceMesh | None) -> nn.Module:
        """On every rank, in the place of the harness: the model with one of :attr:`own_axes` applied, changed in place
        or wrapped. ``mesh`` is that of the axis; None where it takes no ranks. Called where the axis is on."""
        raise NotImplementedError(f"recipe {self.name} does not apply {axis}")

    def lacking(self) -> dict[str, str]:
        """The axes that the recipe has no seam for, each with what it needs: the plan refuses them by these words."""
        out = {}
        if self.tensor_parallel_plan(sequence_parallel=False) is None:
            out["tp"] = f"needs a recipe with a tensor_parallel_plan; {self.name} has none"
        if type(self).split_sequence is Recipe.split_sequence:
            out["cp"] = f"needs a recipe with split_sequence; {self.name} has none"
        if type(self).experts is Recipe.experts:
            out["ep"] = f"needs a recipe with experts; {self.name} has none"
        if self.most_stages == 1:
            out["pp"] = f"needs a recipe that can be cut into stages; {self.name} cannot"
        return {axis: reason for axis, reason in out.items() if axis not in self.own_axes}

    def divisors(self) -> dict[str, dict[str, int]]:
        """``{"tp": {"heads": 4}, "sp": {"sequence length": 32}}``: what the degree must divide, under tp, sp, cp and
        ep. The plan refuses other degrees by these names."""
        return {}

    @property
    def most_stages(self) -> int:
        """Into how many stages of a pipeline the model can be cut; 1: it cannot be cut."""
        return 1

    def stage(self, model: nn.Module, index: int, count: int) -> nn.Module:
        """Stage ``index`` of ``count`` of the model as :meth:`model` made it; tensor parallelism may have been applied.

        A new module that shares the parts of ``model`` that it needs, under the names that they have there. The first
        stage takes the inputs of a batch, the others what the one before returns; the last returns what ``model``
        does. ``count`` is at most :attr:`most_stages`. Called once for each stage of a rank; :meth:`blocks` must know
        the blocks of a stage as well.
        """
        raise NotImplementedError(f"recipe {self.name} cannot be cut into stages")

    def decode(self, tokens: Sequence[int]) -> str:
        """One sample's inputs or targets, IGNORE left out, as a person would read them."""
        return " ".join(str(token) for token in tokens if token != IGNORE)

    def label(self, number: int) -> str:
        """What a class, or the tag of a token, is called."""
        return self.decode([number])
