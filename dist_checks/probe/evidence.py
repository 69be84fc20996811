"""What was seen of the axes in the first step: proof that precisions and collectives were really in use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from dist_checks.probe import compiling
from dist_checks.probe.collectives import collectives, mark
from dist_checks.probe.header import dtype_name
from dist_checks.probe.kernels import OptimizerKernels, attention

ELSE = (nn.modules.conv._ConvNd, nn.RNNBase)
"""What multiplies in a model without a linear layer."""


class Evidence:
    """On every rank: watches from when it is made to :meth:`fields`, which are those of the evidence event."""

    def __init__(self, model: nn.Module, blocks: Mapping[str, nn.Module], optimizers: Sequence[Optimizer]) -> None:
        self._dtypes: set[str] = set()
        self._runs = {"forward": 0, "backward": 0}
        self._attention: set[str] | None = None
        self._unrecorded: dict[tuple[str, str], str] = {}
        self._actions: list[tuple[str, int, int]] = []
        compiled = compiling.inside_compiled(model)
        products = nn.Linear if any(isinstance(module, nn.Linear) for module in model.modules()) else ELSE
        self._handles: list[RemovableHandle] = [
            module.register_forward_hook(self._saw_product)
            for module in model.modules()
            if isinstance(module, products) and module not in compiled
        ]
        self._handles += [
            module.register_forward_hook(self._saw_graph)
            for module in model.modules()
            if compiling.is_compiled(module) and module not in compiled
        ]
        self._handles += [block.register_forward_pre_hook(self._saw_block) for block in blocks.values()]
        self._handles += [block.register_forward_hook(self._saw_output) for block in blocks.values()]
        self._optimizer = OptimizerKernels(optimizers)
        self._compiled = compiling.counts()
        self._since = mark()
        self._watching = True

    def _saw_product(self, module: nn.Module, args: Any, output: object) -> None:
        output = output[0] if isinstance(output, tuple) else output
        if isinstance(output, Tensor):
            self._dtypes.add(dtype_name(output.dtype))

    def _saw_graph(self, module: nn.Module, args: Any, output: object) -> None:
        """What a graph gives in 16 bits it has computed so; in 32 bits it may have anything inside."""
        leaves = (leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.is_floating_point())
        self._dtypes.update(dtype_name(leaf.dtype) for leaf in leaves if leaf.dtype.itemsize < 4)

    def _saw_block(self, module: nn.Module, args: Any) -> None:
        # Before, not after: a recomputation ends as soon as it has what backward needs, in the middle of a block.
        self._runs["forward" if torch._C._current_graph_task_id() == -1 else "backward"] += 1

    def action(self, what: str, stage: int, number: int) -> None:
        """In a pipeline: F, B, I or W of micro-batch ``number`` in ``stage`` begins."""
        if self._watching:
            self._actions.append((what, stage, number))

    def _saw_output(self, module: nn.Module, args: Any, output: object) -> None:
        if self._attention is None:  # of the first block: the others are like it
            self._attention = attention(output)

    def unrecorded(self, kind: str, name: str, reason: str) -> None:
        """A tensor that the probe could not read: said once, so that its absence is not taken for a fault."""
        self._unrecorded.setdefault((kind, name), reason)

    def stop(self) -> None:
        self._optimizer.stop()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._watching = False

    def fields(self) -> dict[str, Any]:
        return {
            "matmul_dtypes": sorted(self._dtypes),
            "block_runs": dict(self._runs),
            "attention": sorted(self._attention or ()),
            "optimizer_kernels": sorted(self._optimizer.names) if self._optimizer.steps else None,
            "compiled": compiling.since(self._compiled),
            "collectives": collectives(self._since),
            **({"actions": self._actions} if self._actions else {}),
            "unrecorded": [
                {"kind": kind, "name": name, "reason": reason} for (kind, name), reason in self._unrecorded.items()
            ],
        }
