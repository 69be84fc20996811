"""Was each axis of the rung really on? A rung that ran as a single passes every comparison."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator

import numpy as np

from dist_checks import pipeline
from dist_checks.axes import ZERO_STAGES, Axis
from dist_checks.judging.logical import Records
from dist_checks.judging.orders import Action, order
from dist_checks.judging.reading import plain_dtype, rank_list
from dist_checks.judging.tolerance import DTYPE
from dist_checks.judging.verdict import Finding
from dist_checks.judging.view import RungView
from dist_checks.trace import Kind

Proof = tuple[bool | None, str]
"""True with what was seen, False with what was seen instead, None with what was not."""

SUMS = ("all_reduce", "allreduce", "broadcast")
"""What data parallelism alone does, too. Where an axis spans the world, its group is that of all ranks."""


def check(view: RungView) -> Iterator[Finding]:
    """Proof from the trace, for each axis that is on and for the numbers that are computed with."""
    writer = view.writer("engaged")
    if not view.trace.ranks or not view.trace.steps:
        yield writer.unseen(f"no step was recorded by all ranks: {view.trace.cut}")
        return
    proofs = {axis.value: _PROOFS[axis](view, axis) for axis in view.rung.setting if axis is not Axis.PRECISION}
    proofs[Axis.PRECISION.value] = _precision(view)
    for name, (seen, words) in proofs.items():
        if seen is False and view.trace.cut:
            yield writer.unseen(f"whether {name} is on was not seen: {view.trace.cut}")
        elif seen is False:
            yield writer.failed(f"{name} is not on: {words}", observed=0, allowed=1)
        elif seen is None and name not in view.rung.setting and view.own_loop:
            yield writer.skipped(f"{name} is off, and {words}{_in_a_graph(view)}")
        elif seen is None:
            yield writer.unseen(f"whether {name} is on was not seen: {words}")
    told = [f"{name} ({words})" for name, (seen, words) in proofs.items() if seen]
    if told:
        yield writer.passed(f"seen to be on: {', '.join(told)}", observed=1, allowed=1)


def _replicate(view: RungView, axis: Axis) -> Proof:
    """Replicas that talk to each other; what they reduce is for other checks to say. Where collectives were not
    recorded, replicas that read different samples have to do."""
    counted = _among(view, axis)
    if counted:
        return True, f"{counted} collectives"
    if all(rank.evidence.get("collectives") is not None for rank in view.trace.ranks):
        return False, "no collective among its replicas was counted in the first step"
    step = view.trace.steps[0]
    for group in view.layout.groups(axis):
        ids = [
            tuple(view.trace.by_rank[rank].steps[step].get("ids") or ()) for rank in group if rank in view.trace.by_rank
        ]
        if len(set(ids)) > 1:
            return True, f"{len(set(ids))} replicas with samples of their own"
    if not any(rank.steps[step].get("ids") for rank in view.trace.ranks):
        return None, "neither collectives nor sample ids were recorded"
    return False, "all replicas read the same samples, and no collective was counted"


def _among(view: RungView, axis: Axis) -> int:
    """Operations in groups that hold all ranks of a group of the axis: its own, and those that span other axes too."""
    groups = [set(group) for group in view.layout.groups(axis)]
    total = 0
    for rank in view.trace.ranks:
        for name, operations in (rank.evidence.get("collectives") or {}).items():
            ranks = {int(number) for number in name.removeprefix("ranks ").split(",") if number.isdecimal()}
            if axis.value in name or any(group <= ranks for group in groups):
                total += sum(int(count) for count in operations.values())
    return total


def _cut(view: RungView, axis: Axis) -> Proof:
    """Some parameter is cut into different parts along the axis."""
    weights = view.own.records(Kind.WEIGHT)
    if not len(weights):
        return None, "no weights were recorded"
    mine = np.isin(weights.rank, view.layout.group(0, axis)) & (weights.step == weights.step.min())
    held: dict[int, set[object]] = {}
    holders: dict[int, set[int]] = {}
    rows = np.unique(np.stack([weights.tensor[mine], weights.part[mine], weights.rank[mine]], axis=1), axis=0)
    for tensor, part, rank in rows.tolist():
        held.setdefault(tensor, set()).add(weights.parts[tensor][part].extent.region)
        holders.setdefault(tensor, set()).add(rank)
    # FSDP1 cuts what it has laid end to end: of many parameters a rank has all or nothing.
    ranks = len(np.unique(weights.rank[mine]))
    cut = sum(len(regions) > 1 or len(holders[tensor]) < ranks for tensor, regions in held.items())
    if not cut:
        return False, f"none of {len(held)} parameters is smaller on a rank than it is in full"
    return True, f"{cut} of {len(held)} parameters are cut"


def _experts(view: RungView, axis: Axis) -> Proof:
    """Parameters that are cut along the axis, and tokens that travel along it. Only an all-to-all tells: everything
    else that is reduced over these ranks would be there without the axis too."""
    seen, words = _cut(view, axis)
    if seen is not True:
        return seen, words
    if not any(rank.evidence.get("collectives") for rank in view.trace.ranks):
        return None, "collectives were not recorded"
    count = _collectives(view, axis, "all_to_all", "alltoall", "all_to_all_single")
    if not count:
        return False, f"{words}, and no all-to-all was counted"
    return True, f"{words}, {count} all-to-alls"


def _sequence(view: RungView, axis: Axis) -> Proof:
    """Block outputs that are a part of the sequence, or gradients that are partial sums over tp."""
    for kind in (Kind.OUTPUT, Kind.GRADIENT):
        found = view.own.records(kind)
        if any(Axis.TP.value in part.extent.partial for parts in found.parts for part in parts):
            return True, f"{kind.value}s are partial sums over tp"
    tokens = [rank.steps[view.trace.steps[0]].get("tokens") for rank in view.trace.ranks]
    outputs = view.own.records(Kind.OUTPUT)
    if not len(outputs) and any(span and span[1] - span[0] < span[2] for span in tokens):
        return True, "ranks see parts of the sequence"
    if not len(outputs):
        return None, "no block outputs were recorded"
    # Along tp: under cp what the ranks of tp hold is a part of the sequence in any case.
    copies = _copies(view, outputs, Axis.TP)
    if copies:
        return False, f"{copies} of {len(outputs)} block outputs are those of another rank of tp"
    return True, "block outputs are parts of the sequence"


def _context(view: RungView, axis: Axis) -> Proof:
    """The ranks of each group hold different parts of the same block outputs, and exchange more than sums."""
    outputs = view.own.records(Kind.OUTPUT)
    if not len(outputs):
        return None, "no block outputs were recorded"
    copies = _copies(view, outputs, axis)
    if copies:
        return False, f"{copies} of {len(outputs)} block outputs are of the same tokens as those of another rank"
    exchanged = _collectives(view, axis, ignoring=SUMS)
    if not exchanged and any(rank.evidence.get("collectives") is not None for rank in view.trace.ranks):
        return False, "each rank holds its part of the sequence, and nothing was exchanged"
    counted = f", {exchanged} exchanges" if exchanged else ""
    return True, f"each rank holds its part of the sequence{counted}"


def _copies(view: RungView, found: Records, axis: Axis) -> int:
    """How many of the records are of a part of a tensor that another rank along the axis holds, too."""
    group = np.zeros(view.layout.world_size, np.int64)
    for index, ranks in enumerate(view.layout.groups(axis)):
        group[list(ranks)] = index
    held = np.stack([group[found.rank], found.full, found.part])
    return int(held.shape[1] - np.unique(held, axis=1).shape[1])


def _stages(view: RungView, axis: Axis) -> Proof:
    """Each rank of a pipeline holds other parameters, and none holds them all; some may be tied over stages."""
    weights = view.own.records(Kind.WEIGHT)
    if not len(weights):
        return None, "no weights were recorded"
    group = view.layout.group(0, axis)
    held = {rank: set(weights.tensor[weights.rank == rank].tolist()) for rank in group if rank in view.trace.by_rank}
    whole = [rank for rank, tensors in held.items() if len(tensors) == len(weights.names)]
    if whole:
        return False, f"{rank_list(whole)} of {len(held)} ranks hold all {len(weights.names)} parameters"
    for one, other in itertools.combinations(held, 2):
        if held[one] == held[other]:
            return False, f"ranks {one} and {other} hold the same {len(held[one])} parameters"
    spread = ", ".join(str(len(tensors)) for tensors in held.values())
    return True, f"{len(weights.names)} parameters over {len(held)} ranks: {spread}"


def _schedule(view: RungView, axis: Axis) -> Proof:
    """By the order in which stages worked in the first pass of the first step."""
    many = pipeline.micro_batches(view.rung.setting)
    done = {
        rank.rank: [Action(*action) for action in rank.evidence.get("actions") or () if action[2] < many]
        for rank in view.trace.ranks
    }
    if silent := [rank for rank, actions in done.items() if not actions]:
        return None, f"what {rank_list(silent)} did was not recorded"
    found = {rank: order(actions) for rank, actions in done.items()}
    # The first ranks of a pipeline have so much to do before backward reaches them that they may not mix the two.
    telling = {rank: name for rank, name in found.items() if "gpipe" not in name} or found
    rank = max(telling)
    # As torch writes them: 1F0 is the forward pass of micro-batch 0 through stage 1.
    words = " ".join(f"{action.stage}{action.what}{action.number}" for action in done[rank][:8])
    wanted = view.rung.setting[axis]
    return set(telling.values()) == {wanted}, f"rank {rank} worked in the order of {found[rank]}: {words} ..."


def _zero(view: RungView, axis: Axis) -> Proof:
    """The stage that the engine reports, and what must be partitioned in it: optimizer state from the first stage on,
    gradients from the second, parameters in the third. Of torch's optimizer: state that is not on every rank."""
    wanted = view.rung.setting[axis]
    if wanted not in ZERO_STAGES:
        return _on_one_rank_each(view, Kind.STATE)
    reported = {rank.rank: rank.evidence.get("zero_stage") for rank in view.trace.ranks}
    if any(stage is None for stage in reported.values()):
        return None, "the engine's stage was not recorded"
    other = next((rank for rank, stage in reported.items() if stage != wanted), None)
    if other is not None:
        return False, f"the engine of rank {other} reports stage {reported[other]}"
    told = []
    for kind in (Kind.STATE, Kind.GRADIENT, Kind.WEIGHT)[: int(wanted)]:
        seen, words = _on_one_rank_each(view, kind)
        if not seen:
            return seen, words
        told.append(words)
    return True, f"stage {wanted}: {', '.join(told)}"


def _on_one_rank_each(view: RungView, kind: Kind) -> Proof:
    """No part of any tensor is on two ranks, and not all of them on one."""
    noun = {Kind.STATE: "optimizer state"}.get(kind, kind.value)
    found = view.own.records(kind)
    if not len(found):
        return None, f"no {noun} was recorded"
    holders: dict[tuple[int, int], set[int]] = {}
    for tensor, part, rank in zip(found.tensor.tolist(), found.part.tolist(), found.rank.tolist(), strict=True):
        holders.setdefault((tensor, part), set()).add(rank)
    several = {tensor: ranks for (tensor, _), ranks in holders.items() if len(ranks) > 1}
    if several:
        tensor, ranks = next(iter(several.items()))
        return False, (
            f"{noun} of {len(several)} of {len(found.names)} tensors is held alike by several ranks, that of "
            f"{found.names[tensor]} by {len(ranks)}"
        )
    owners = {rank for ranks in holders.values() for rank in ranks}
    if len(owners) < 2:
        return False, f"rank {next(iter(owners))} holds every {noun}"
    return True, f"each {noun} on one of {len(owners)} ranks"


def _accum(view: RungView, axis: Axis) -> Proof:
    # A pipeline cuts each of them once more.
    wanted = view.rung.setting.degree(axis) * pipeline.micro_batches(view.rung.setting)
    for rank in view.trace.ranks:
        for step in view.trace.steps:
            count = len(rank.steps[step].get("micro_batches") or ())
            if not count:
                return None, "micro-batches were not recorded"
            if count != wanted and not (view.own_loop and Axis.PP in view.rung.setting):
                return False, f"rank {rank.rank} ran {count} micro-batches at step {step}, {wanted} were planned"
    return True, f"{wanted} micro-batches a step"


def _resumed(view: RungView, axis: Axis) -> Proof:
    """Other processes than those before, which have loaded something and do not start with step 0. (Where nothing is
    found to be loaded, a run that starts anew computes all the right numbers, and nobody needs its checkpoints.)"""
    if view.before is None:
        if not any(rank.saved for rank in view.trace.ranks):
            return False, "nothing was saved"
        return True, f"saved before step {view.stop}"
    first = {rank.rank: min(rank.steps) for rank in view.trace.ranks if rank.steps}
    early = next((rank for rank, step in first.items() if step != view.start), None)
    if early is not None:
        return False, f"rank {early} starts with step {first[early]}, not with step {view.start}"
    if not all(rank.loaded for rank in view.trace.ranks):
        return False, "nothing was loaded"
    old = {(rank.header.get("host"), rank.header.get("pid")): rank.rank for rank in view.before.trace.ranks}
    for rank in view.trace.ranks:
        if (rank.header.get("host"), rank.header.get("pid")) in old:
            return False, f"rank {rank.rank} is a process that has run before step {view.start}"
    if view.rung.setting[axis] == "other" and view.rung.setting == view.before.rung.setting:
        return False, f"the layout before step {view.start} was the same"
    return True, f"new processes go on with step {view.start}"


def _recomputed(view: RungView, axis: Axis) -> Proof:
    """Blocks that ran while a backward did, on every rank."""
    for rank in view.trace.ranks:
        runs = rank.evidence.get("block_runs") or {}
        if not runs.get("forward"):
            return None, f"no run of a block was recorded on rank {rank.rank}"
        if not runs.get("backward"):
            return False, f"rank {rank.rank} ran {runs['forward']} blocks in forward and none again in backward"
    return True, f"{runs['backward']} of {runs['forward']} blocks ran again in backward"


def _compiled(view: RungView, axis: Axis) -> Proof:
    """Every frame that was to be compiled became a graph. (A backend that fails is left for eager code where
    ``suppress_errors`` is set, and so is everything where dynamo is disabled.)"""
    graphs, seconds = 0, 0.0
    for rank in view.trace.ranks:
        counts = rank.evidence.get("compiled")
        if counts is None:
            return None, f"torch's counters were not recorded on rank {rank.rank}"
        if not counts["graphs"] or not counts["ok"]:
            return False, f"rank {rank.rank} ran eager code: {counts['ok']} of {counts['frames']} frames were compiled"
        if counts["ok"] < counts["frames"] or counts["breaks"]:
            return False, (
                f"rank {rank.rank} fell back to eager code: {counts['ok']} of {counts['frames']} frames were "
                f"compiled, with {counts['breaks']} graph breaks"
            )
        graphs, seconds = counts["graphs"], max(seconds, counts["seconds"])
    plural = "s" * (graphs != 1)
    return True, f"{graphs} graph{plural} compiled in {seconds:.1f} s, nothing left to eager code"


def _fused(view: RungView, axis: Axis) -> Proof:
    """The kernel of attention in the graph of the first block, and what the optimizer called in its first step."""
    told: list[str] = []
    for rank in view.trace.ranks:
        attention, optimizer = rank.evidence.get("attention") or (), rank.evidence.get("optimizer_kernels")
        kernels = [name for name in attention if name.startswith("ScaledDotProduct")]
        # No accelerator has a fused kernel for float64.
        excused = view.rung.exact and not str(rank.header.get("device", "cpu")).startswith("cpu")
        if attention and not kernels and not excused:
            return False, f"attention on rank {rank.rank} is computed step by step"
        if optimizer is not None and "fused" not in optimizer:
            return False, f"the optimizer of rank {rank.rank} updates parameters one operation after the other"
        told = [*kernels, *(["a fused optimizer"] if optimizer else [])]
    if not told:
        return None, "neither attention nor a step of the optimizer was recorded"
    return True, " and ".join(told)


def _custom(view: RungView, axis: Axis) -> Proof:
    """Each rank has the variables in its environment, and was given the options and settings."""
    if not view.custom:
        return None, f"the plan does not say what {view.rung.setting[axis]} sets"
    for rank in view.trace.ranks:
        seen = {"env": rank.evidence.get("env") or {}}
        seen |= {what: rank.header.get(what) or {} for what in ("options", "train")}
        for what, values in seen.items():
            for name, wanted in view.custom.get(what, {}).items():
                if values.get(name) != (wanted or None if name == "clip" else wanted):
                    return False, f"{what}.{name} is {values.get(name)!r} on rank {rank.rank}, not {wanted!r}"
    told = [f"{what}.{name}" for what in ("env", "options", "train") for name in view.custom.get(what, {})]
    return True, f"{', '.join(told)} as set"


def _precision(view: RungView) -> Proof:
    wanted = DTYPE[view.rung.precision]
    seen = {plain_dtype(dtype) for rank in view.trace.ranks for dtype in rank.evidence.get("matmul_dtypes") or ()}
    if not seen:
        return None, "no matrix product was seen"
    if wanted not in seen:
        return False, f"matrix products are in {', '.join(sorted(seen))}, not in {wanted}"
    return True, f"matrix products in {wanted}"


def _in_a_graph(view: RungView) -> str:
    graphs = all((rank.evidence.get("compiled") or {}).get("graphs") for rank in view.trace.ranks)
    return ": inside a graph of torch.compile nothing is looked at" if graphs else ""


def _collectives(view: RungView, axis: Axis, *wanted: str, ignoring: Collection[str] = ()) -> int:
    """How many operations, any or those ``wanted``, the flight recorder has counted in groups of the axis."""
    groups = {"ranks " + ",".join(map(str, group)) for group in view.layout.groups(axis)}
    total = 0
    for rank in view.trace.ranks:
        for name, operations in (rank.evidence.get("collectives") or {}).items():
            if name == axis.value or name in groups:
                total += sum(
                    int(count)
                    for operation, count in operations.items()
                    if operation not in ignoring and (not wanted or operation in wanted)
                )
    return total


_PROOFS = {
    Axis.PP: _stages,
    Axis.SCHEDULE: _schedule,
    Axis.DP_REPLICATE: _replicate,
    Axis.DP_SHARD: _cut,
    Axis.CP: _context,
    Axis.EP: _experts,
    Axis.TP: _cut,
    Axis.SP: _sequence,
    Axis.ZERO: _zero,
    Axis.ACCUM: _accum,
    Axis.CKPT_ACT: _recomputed,
    Axis.RESUME: _resumed,
    Axis.COMPILE: _compiled,
    Axis.FUSED: _fused,
    Axis.CUSTOM: _custom,
}
