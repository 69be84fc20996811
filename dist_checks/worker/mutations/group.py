"""A process group around the real one, so that DDP's and FSDP's own collectives are reached: all of them go through it.

DDP's reducer and functional collectives call a process group from C++; torch lets a Python class take its place.
"""

# torch looks these methods up by name; its own signatures have an overload for every way of calling them.
# mypy: disable-error-code="override, assignment, call-arg, attr-defined"

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions, _create_work_from_future

BACKEND = "around_gloo"

Change = Callable[["Call"], Any]
"""Does the collective in its own way; returns the work that the caller waits for."""


class Call:
    """One collective of this rank, and how it is really done."""

    def __init__(
        self,
        group: Around,
        kind: str,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        real: Callable[[Any, Sequence[Tensor], Sequence[Tensor]], Any],
        reduces: str = "",
    ) -> None:
        self.group, self.kind, self.inputs, self.outputs = group, kind, list(inputs), list(outputs)
        self.reduces = reduces
        """``sum`` or ``avg``, of a collective that reduces."""
        self._real = real

    def run(self, through: Any = None) -> Any:
        """The collective as it is, by default through the group that it is of; waits until it is done.

        What is returned has nothing left to do: gloo's own work would write its result a second time when it is waited
        for again, over what was changed since.
        """
        self._real(through or self.group.inner, self.inputs, self.outputs).wait()
        done: torch.futures.Future[list[Tensor]] = torch.futures.Future()
        done.set_result(self.outputs)
        return _create_work_from_future(done)


class Around(dist.ProcessGroup):
    """Hands every collective on to gloo; one whose kind is to be changed goes through ``change`` instead."""

    def __init__(self, inner: Any, rank: int, size: int, ranks: tuple[int, ...]) -> None:
        super().__init__(rank, size)
        self.inner, self.ranks = inner, ranks
        # What it is called is handed on to gloo, so that the flight recorder knows of which group a collective is.
        self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, inner)
        self.index, self.members = rank, size
        self.changes: dict[str, Change] = {}

    def _do(self, call: Call) -> Any:
        change = self.changes.get(call.kind)
        return change(call) if change else call._real(self.inner, call.inputs, call.outputs)

    # What torch calls, by the names that it looks up

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        opts = opts or dist.AllreduceOptions()
        call = Call(self, "all_reduce", tensors, tensors, lambda g, i, o: g.allreduce(o, opts), _reduction(opts))
        return self._do(call)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        plain = dist.AllreduceOptions()
        plain.reduceOp = opts.reduceOp
        works = [self.allreduce([tensor], plain) for tensor in tensors]
        for work in works[:-1]:
            work.wait()
        return works[-1]

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        opts = opts or dist.BroadcastOptions()
        return self._do(Call(self, "broadcast", tensors, tensors, lambda g, i, o: g.broadcast(o, opts)))

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        opts = opts or AllgatherOptions()
        return self._do(
            Call(self, "all_gather", inputs, outputs[0], lambda g, i, o: g.allgather([list(o)], list(i), opts))
        )

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Any:
        opts = opts or AllgatherOptions()
        return self._do(
            Call(
                self,
                "all_gather",
                [input],
                list(output.view(-1).chunk(self.members)),
                lambda g, i, o: g._allgather_base(output, i[0], opts),
            )
        )

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        works = [self.all_gather_single(o, i) for o, i in zip(outputs, inputs, strict=True)]
        return works[-1]

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        opts = opts or dist.ReduceScatterOptions()
        return self._do(
            Call(
                self,
                "reduce_scatter",
                inputs[0],
                outputs,
                lambda g, i, o: g.reduce_scatter(list(o), [list(i)], opts),
                _reduction(opts),
            )
        )

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Any:
        opts = opts or dist.ReduceScatterOptions()
        return self._do(
            Call(
                self,
                "reduce_scatter",
                list(input.view(-1).chunk(self.members)),
                [output],
                lambda g, i, o: g._reduce_scatter_base(o[0], input, opts),
                _reduction(opts),
            )
        )

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        works = [self.reduce_scatter_single(o, i, opts) for o, i in zip(outputs, inputs, strict=True)]
        return works[-1]

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def all_to_all_single(
        self, output: Tensor, input: Tensor, output_sizes: Any, input_sizes: Any, opts: Any = None
    ) -> Any:
        opts = opts or dist.AllToAllOptions()
        return self._do(
            Call(
                self,
                "all_to_all",
                [input],
                [output],
                lambda g, i, o: g.alltoall_base(o[0], i[0], list(output_sizes or ()), list(input_sizes or ()), opts),
            )
        )

    alltoall_base = all_to_all_single

    def send(self, tensors: Any, to: int, tag: int) -> Any:
        return self.inner.send(tensors, to, tag)

    def recv(self, tensors: Any, source: int, tag: int) -> Any:
        return self._do(Call(self, "recv", tensors, tensors, lambda g, i, o: g.recv(list(o), source, tag)))

    def recv_anysource(self, tensors: Any, tag: int) -> Any:
        return self.inner.recv_anysource(tensors, tag)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return self.inner.scatter(outputs, inputs, opts or dist.ScatterOptions())

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return self.inner.gather(outputs, inputs, opts or dist.GatherOptions())

    def barrier(self, opts: Any = None) -> Any:
        return self.inner.barrier(opts or dist.BarrierOptions())

    def size(self) -> int:
        return self.members

    def getBackendName(self) -> str:
        return BACKEND

    @property
    def group_name(self) -> str:
        return str(dist.distributed_c10d._world.pg_names[self])

    pg_name = group_name


def _reduction(opts: Any) -> str:
    op = opts.reduceOp
    for name, kind in (("sum", dist.ReduceOp.SUM), ("avg", dist.ReduceOp.AVG)):
        if op == kind:
            return name
    return "other"


def install(changed: Callable[[Around], None]) -> None:
    """On every rank, before the first process group: each group is one around gloo, given to ``changed`` first."""

    def make(options: Any, given: Any) -> Around:
        inner = dist.ProcessGroupGloo(options.store, options.group_rank, options.group_size, options.timeout)
        # Of the group of all ranks torch lists none.
        ranks = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
        group = Around(inner, options.group_rank, options.group_size, ranks)
        changed(group)
        return group

    dist.Backend.register_backend(BACKEND, make, extended_api=True, devices=["cpu"])
    right = dist.init_process_group

    def init_process_group(*args: Any, **kwargs: Any) -> None:
        right(*args, **(kwargs | {"backend": BACKEND}))

    dist.init_process_group = init_process_group
