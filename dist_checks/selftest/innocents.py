"""The innocent cases: what users took for a mistake of their parallelism and was none. Nothing may be found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dist_checks.selftest import ladder as running
from dist_checks.selftest.catalogue import SMALL
from dist_checks.selftest.sharing import SharingLauncher

PREFIX = "mutant:innocent:"

NARROW = ("fp32", "bf16", "fp16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Innocent:
    """One case, and the ladders in which it must stay quiet."""

    id: str
    title: str
    source: str
    ladders: tuple[Mapping[str, Any], ...]
    planted: str = ""
    """What ranks do (``worker/mutations/innocents.py``); empty where they do nothing that the worker does not do."""

    @property
    def fault(self) -> str | None:
        return PREFIX + self.planted if self.planted else None

    def matrices(self) -> list[dict[str, Any]]:
        return [matrix(ladder) for ladder in self.ladders]


def matrix(ladder: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": "innocents",
        "steps": 4,
        "launch": {"cold_twin": False, "deadline": 120.0},
        "blame": {"budget": 0},
        **ladder,
        "options": {**SMALL, **ladder.get("options", {})},
    }


def on(first: str, *others: str, precisions: tuple[str, ...] = NARROW, **more: Any) -> dict[str, Any]:
    """A ladder of these rungs in float64, the first of them in ``precisions`` as well."""
    include = [first, *others, *(f"{first}+{precision}" for precision in precisions)]
    return {"axes": {}, "combine": {"mode": "singles", "include": include}, **more}


INNOCENTS: tuple[Innocent, ...] = (
    Innocent(
        id="I01",
        title="the same seed, and sums in another order each time",
        source="Dao-AILab/flash-attention#384",
        planted="unordered_sums",
        ladders=(on("dp_replicate3", "dp_shard3"),),
    ),
    Innocent(
        id="I02",
        title="micro-batches in reverse, another order of accumulation",
        source="pytorch/torchtitan PR#4312",
        planted="reversed_micro_batches",
        ladders=(on("accum5", "dp_replicate3+accum5", "pp2+accum2", steps=8),),
    ),
    Innocent(
        id="I03",
        title="a tensor-parallel MLP in 16 bits is not that of one device, bit for bit",
        source="pytorch/pytorch#144359",
        ladders=(on("tp4", "tp2+sp"), on("tp2", train={"optimizer": "sgd", "learning_rate": 0.1})),
    ),
    Innocent(
        id="I04",
        title="16 bits under tp, ep, pp and cp: losses 0.3 % apart after 50 steps",
        source="ISEEKYAN/Megatron-LM PR#154",
        ladders=(
            {
                **on("tp2", precisions=("bf16",), steps=50),
                "combine": {"mode": "singles", "include": ["tp2+bf16", "pp2+bf16", "cp2+bf16", "dp_shard2+bf16"]},
            },
            on("tp2", precisions=("bf16",), steps=50, train={"optimizer": "sgd", "learning_rate": 0.1}),
            on("ep2", precisions=("bf16",), steps=50, recipe="moe"),
        ),
    ),
    Innocent(
        id="I05",
        title="each rank prints the norm of its own shards; what clips is right",
        source="pytorch/torchtitan#766",
        planted="local_norm_printed",
        ladders=(on("dp_shard3", "tp2", "dp_shard2+tp2"),),
    ),
    Innocent(
        id="I06",
        title="the norm that is printed is above the limit: it is that before clipping",
        source="deepspeedai/DeepSpeed#6767",
        ladders=(
            on("dp_shard3", train={"clip": 0.05}),
            {"axes": {"dp_replicate": 2, "zero": [1, 2, 3]}, "combine": {"mode": "singles"}, "train": {"clip": 0.05}},
        ),
    ),
    Innocent(
        id="I07",
        title="gradients of DDP and of accumulation, read when they are complete",
        source="Lightning-AI/pytorch-lightning#20882",
        ladders=(on("dp_replicate3+accum3"),),
    ),
    Innocent(
        id="I08",
        title="a seed for each rank under DDP, which hands round the weights of rank 0",
        source="karpathy/nanoGPT#22",
        planted="seed_of_each_rank",
        ladders=(on("dp_replicate3", "dp_replicate3+accum5"),),
    ),
    Innocent(
        id="I09",
        title="the loss times cp, divided by dp x cp",
        source="NVIDIA/Megatron-LM#673",
        planted="loss_times_cp",
        ladders=(on("cp2", "dp_replicate3+cp2", precisions=("fp32", "bf16")),),
    ),
    Innocent(
        id="I10",
        title="a loss with dropout is above that without",
        source="facebookresearch/fairseq#3479",
        ladders=(
            {
                "axes": {"custom": ["dropout"], "ckpt_act": True, "precision": list(NARROW)},
                "custom": {"dropout": {"options": {"dropout": 0.3}, "same": False}},
                "combine": {"mode": "singles", "include": ["ckpt_act+custom.dropout"]},
            },
        ),
    ),
    Innocent(
        id="I11",
        title="what is printed is the loss of one batch only",
        source="huggingface/pytorch-image-models#2339",
        planted="one_batch_printed",
        ladders=(on("accum5", "dp_replicate3"),),
    ),
    Innocent(
        id="I12",
        title="each rank prints the loss of its own samples",
        source="aigc-apps/VideoX-Fun#222",
        planted="local_loss_printed",
        ladders=(on("dp_shard3", "dp_replicate3+accum5"),),
    ),
)


def run(launcher: SharingLauncher, out: Path, *, note: Callable[[str], None]) -> list[str]:
    """Rungs that raised something, of all cases."""
    alarms = []
    for innocent in INNOCENTS:
        raised = []
        for number, each in enumerate(innocent.matrices()):
            launcher.harmless = lambda setting: not setting
            try:
                folder = out / f"{innocent.id}_{number}"
                report = running.report(each, folder, launcher, fault=innocent.fault)
            finally:
                launcher.harmless = lambda setting: False
            raised += [
                f"{innocent.id}: {rung['id']} is {rung['status']}"
                for rung in report["rungs"]
                if rung["status"] not in ("pass", "skip")
            ]
        note(f"{innocent.id:<24} {innocent.title}: {', '.join(raised) or 'quiet'}")
        alarms += raised
    return alarms
