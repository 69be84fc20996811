"""A training so small that numpy does it, sharded by arithmetic, recorded as ranks would record it, easy to break.

Each sample is ``(TOKENS, WIDTH)``; the model is ``down(tanh(up(x * norm)))`` with a squared error over a ragged number
of targets. Everything that can go wrong is a method of :class:`tampering.Tamper`, which by default changes nothing.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tampering import HEALTHY, Tamper

from dist_checks.axes import Axis, Layout, Setting
from dist_checks.extent import Box, Extent, shard
from dist_checks.rung import Role, Rung
from dist_checks.trace import BEFORE, BUCKETS, NO_ITEM, Entry, Kind, Values, Writer

TOKENS, WIDTH, HIDDEN, SAMPLES, BATCH = 4, 6, 12, 36, 12
SHAPES = {"norm.weight": (WIDTH,), "up.weight": (HIDDEN, WIDTH), "down.weight": (WIDTH, HIDDEN)}
TP_DIM = {"up.weight": 0, "down.weight": 1}
BUFFER = "scale"
RATE, MOMENTUM, DECAY, CLIP = 0.05, 0.9, 0.1, 0.5
NOISE = {"fp64": 0.0, "fp32": 1e-7, "bf16": 4e-3, "fp16": 5e-4}
DTYPE = {"fp64": "float64", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}

Arrays = dict[str, np.ndarray]


def digest(full: np.ndarray, extent: Extent) -> Values:
    """Of the part ``extent`` of the array ``full``: linear sketch, position-weighted fingerprint."""
    index = np.arange(full.size, dtype=np.uint64).reshape(full.shape)
    cut = tuple(slice(o, o + n) for o, n in zip(extent.boxes[0].offset, extent.boxes[0].length, strict=True))
    x, i = np.ascontiguousarray(full[cut], np.float64).reshape(-1), index[cut].reshape(-1)
    with np.errstate(over="ignore"):
        mixed = (i + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(32)
        bits = x.view(np.uint64)
        fingerprint = int(((bits + (bits >> np.uint64(33))) * (mixed | np.uint64(1))).sum(dtype=np.uint64))
    finite = np.where(np.isfinite(x), x, 0.0)
    signs = np.where(mixed & np.uint64(1 << 40), 1.0, -1.0)
    sketch = np.bincount((mixed % np.uint64(BUCKETS)).astype(np.int64), finite * signs, BUCKETS)
    return Values(
        fingerprint=fingerprint,
        elements=x.size,
        zeros=int((x == 0).sum()),
        nonfinite=int((~np.isfinite(x)).sum()),
        sum_squares=float((finite**2).sum()),
        largest=float(np.abs(finite).max(initial=0.0)),
        sketch=tuple(sketch.tolist()),
    )


def rung(
    setting: Mapping[str, Any] | None = None, *, precision: str = "fp64", steps: int = 4, seed: int = 0, **fields: Any
) -> Rung:
    """A rung as the plan would write it; a single where no structural axis is on."""
    on = Setting(setting or {})
    suffix = f"@seed{seed}" if seed else ""
    single = not on.structural
    return replace(
        Rung(
            id=on.name + suffix,
            role=Role.SINGLE if single else Role.RUNG,
            setting=on,
            precision=str(on.get(Axis.PRECISION, precision)),
            seed=seed,
            steps=steps,
            reference=None if single else on.numerics.name + suffix,
            truth=None if not on and precision == "fp64" else "single" + suffix,
        ),
        **fields,
    )


def data(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed + 100)
    counts = 1 + np.arange(SAMPLES) % TOKENS  # ragged
    return rng.normal(size=(SAMPLES, TOKENS, WIDTH)), rng.normal(size=(SAMPLES, TOKENS, WIDTH)), counts


def order(seed: int, epoch: int) -> list[int]:
    return np.random.default_rng([seed, epoch]).permutation(SAMPLES).tolist()


class World:
    """All ranks of one rung, one after the other."""

    def __init__(self, rung: Rung, folder: Path, tamper: Tamper = HEALTHY, optimizer: str = "SGD") -> None:
        self.rung, self.folder, self.tamper, self.optimizer = rung, folder, tamper, optimizer
        self.layout = Layout(rung.setting)
        self.x, self.z, self.counts = data(rung.seed)
        self.accum = rung.setting.degree(Axis.ACCUM)
        self.sp = Axis.SP in rung.setting
        self.ranks = range(self.layout.world_size)
        init = np.random.default_rng(rung.seed)
        weights = {name: init.normal(size=shape) / 3 for name, shape in SHAPES.items()}
        self.weights = [
            {name: tamper.initial(rank, name, w.copy()) for name, w in weights.items()} for rank in self.ranks
        ]
        self.momenta: list[Arrays] = [{} for _ in self.ranks]
        self.squares: list[Arrays] = [{} for _ in self.ranks]

    def extent(self, rank: int, kind: Kind, name: str) -> Extent:
        at = self.layout.coordinates(rank)
        tp, dp = self.layout.degrees[Axis.TP], self.layout.degrees[Axis.DP_SHARD]
        name = name.split("/")[0]
        if kind is Kind.BUFFER:
            return self.tamper.extent(rank, kind, name, Extent.full((3,)))
        cuts = [(TP_DIM[name], tp, at[Axis.TP])] if name in TP_DIM else []
        cuts.append((0, dp, at[Axis.DP_SHARD]))
        partial = ("tp",) if self.sp and name == "norm.weight" and kind in (Kind.GRADIENT, Kind.APPLIED) else ()
        extent = Extent(shape=SHAPES[name], boxes=(shard(SHAPES[name], cuts),), partial=partial)
        return self.tamper.extent(rank, kind, name, extent)

    def run(self) -> None:
        self.writers = [self._open(rank) for rank in self.ranks]
        self.written = [0] * len(self.ranks)
        self._write_weights(BEFORE)
        if self.rung.role is Role.SINGLE:
            self._write_shares()
        for step in range(self.rung.steps):
            self.step(step)
        for writer, written in zip(self.writers, self.written, strict=True):
            writer.close(memory_peak=1, digests=written)
        ranks = [
            {"rank": rank, "host": "h0", "pid": rank, "code": 0, "signal": None, "error": ""} for rank in self.ranks
        ]
        self.exit(state="done", ranks=ranks)

    def exit(self, **fields: Any) -> None:
        found = {"job": self.rung.id, "error": "", "first_failed": None, "hosts": ["h0"], "seconds": 1.0, "ranks": []}
        (self.folder / "exit.json").write_text(json.dumps(found | fields))

    def _open(self, rank: int) -> Writer:
        header = {
            "rung": self.rung.id,
            "world_size": len(self.ranks),
            "host": "h0",
            "pid": 1000 + rank,
            "device": "cpu",
            "coordinates": {axis.value: at for axis, at in self.layout.coordinates(rank).items()},
            "parameters": [{"name": name, "shape": shape, "trainable": True} for name, shape in SHAPES.items()],
            "optimizer": [
                {"class": self.optimizer, "parameters": [*SHAPES], "momentum": MOMENTUM, "weight_decay": DECAY}
            ],
            "blocks": ["blocks.0"],
        }
        return Writer(self.folder, rank, self.tamper.header(rank, header))

    def record(self, rank: int, step: int, kind: Kind, name: str, full: np.ndarray, item: int = NO_ITEM) -> None:
        self._digest(rank, step, kind, name, full, self.extent(rank, kind, name), item)

    def _digest(self, rank: int, step: int, kind: Kind, name: str, full: np.ndarray, extent: Extent, item: int) -> None:
        self.writers[rank].digest(step, Entry(kind, name, "float64", extent), digest(full, extent), item)
        self.written[rank] += 1

    def _write_weights(self, step: int) -> None:
        for rank in self.ranks:
            for name, w in self.weights[rank].items():
                self.record(rank, step, Kind.WEIGHT, name, w)
            buffer = self.tamper.buffer(rank, step, np.arange(3.0))
            self.record(rank, step, Kind.BUFFER, BUFFER, buffer)

    def ids(self, step: int) -> tuple[int, list[int]]:
        epoch, at = divmod(step * BATCH, SAMPLES)
        return epoch, order(self.rung.seed, epoch)[at : at + BATCH]

    def micro_batches(self, step: int, rank: int) -> list[list[int]]:
        size = self.layout.data_size
        mine = self.tamper.ids(step, rank, self.ids(step)[1][self.layout.data_rank(rank) :: size])
        return [part.tolist() for part in np.array_split(np.array(mine, np.int64), self.accum)]

    def sample(self, weights: Arrays, id: int, tokens: slice = slice(None)) -> tuple[np.ndarray, float, Arrays]:
        """(output, summed loss, gradients of the summed loss) of one sample; gradients of a part of its tokens."""
        x, z, live = self.x[id], self.z[id], (np.arange(TOKENS) < self.counts[id])[:, None]
        a = np.tanh((x * weights["norm.weight"]) @ weights["up.weight"].T)
        y = a @ weights["down.weight"].T
        error = np.where(live, y - z, 0.0)
        up = (error @ weights["down.weight"]) * (1 - a**2)
        gradients = {
            "down.weight": error.T @ a,
            "up.weight": up.T @ (x * weights["norm.weight"]),
            "norm.weight": ((up @ weights["up.weight"]) * x)[tokens].sum(0),
        }
        return y, 0.5 * float((error**2).sum()), gradients

    def _write_shares(self) -> None:
        ids = self.ids(0)[1]
        for id in ids:
            for name, g in self.sample(self.weights[0], id)[2].items():
                share = self.tamper.sample_share(id, g / self.counts[ids].sum())
                self.record(0, 0, Kind.SAMPLE_GRADIENT, name, share, id)

    def step(self, step: int) -> None:
        batches = {rank: self.micro_batches(step, rank) for rank in self.ranks}
        lead = {self.layout.data_rank(rank): rank for rank in reversed(self.ranks)}
        total = int(sum(self.counts[id] for rank in lead.values() for part in batches[rank] for id in part)) or 1
        own = [self._own_gradient(step, rank, batches[rank], total) for rank in self.ranks]
        for rank in self.ranks:
            self._outputs(step, rank, [id for part in batches[rank] for id in part])
        gradients = []
        for rank in self.ranks:
            group = self.layout.group(rank, *self.layout.data_axes)
            reduced = {name: np.sum([own[other][name] for other in group], axis=0) for name in SHAPES}
            rounded = {name: self._rounded(name, rank, g) for name, g in reduced.items()}
            gradients.append(
                {
                    name: self.tamper.gradient(
                        step, rank, name, self.tamper.reduced(rank, name, len(group) * own[rank][name], g)
                    )
                    for name, g in rounded.items()
                }
            )
        events = {rank: self._event(step, rank, batches[rank]) for rank in self.ranks}
        for rank in self.ranks:
            norms = self._update(step, rank, gradients)
            events[rank] |= norms
        self._write_weights(step)
        for rank in self.ranks:
            for name in SHAPES:
                self.record(rank, step, Kind.STATE, f"{name}/momentum_buffer", self.momenta[rank][name])
            event = self.tamper.event(step, rank, events[rank])
            self.writers[rank].event("step", **event, digests=self.written[rank])
            if step == 0:
                self.writers[rank].event("evidence", matmul_dtypes=[DTYPE[self.rung.precision]], collectives=None)
            self.writers[rank].flush()

    def _rounded(self, name: str, rank: int, g: np.ndarray) -> np.ndarray:
        level = NOISE[self.rung.precision]
        if not level:
            return g
        # The same on every rank, another in every rung: what narrow numbers make of it.
        seed = zlib.crc32(f"{self.rung.id.split('@')[0]} {name}".encode())
        noise = np.random.default_rng(seed).normal(size=g.shape)
        return g + level * noise * np.linalg.norm(g) / np.sqrt(g.size)

    def _own_gradient(self, step: int, rank: int, batches: Sequence[Sequence[int]], total: int) -> Arrays:
        tokens = slice(None)
        if self.sp:
            size = TOKENS // self.layout.degrees[Axis.TP]
            at = self.layout.coordinates(rank)[Axis.TP]
            tokens = slice(at * size, (at + 1) * size)
        out = {name: np.zeros(shape) for name, shape in SHAPES.items()}
        for micro, ids in enumerate(batches):
            for id in ids:
                weight = self.tamper.weight_of(step, self.layout.data_rank(rank), micro, id) / total
                for name, g in self.sample(self.weights[rank], id, tokens)[2].items():
                    out[name] += weight * g
        return out

    def _outputs(self, step: int, rank: int, ids: Iterable[int]) -> None:
        if step:
            return
        extent = Extent.full((TOKENS, WIDTH))
        if self.sp:
            tp = self.layout.degrees[Axis.TP]
            box = shard((TOKENS, WIDTH), [(0, tp, self.layout.coordinates(rank)[Axis.TP])])
            extent = Extent(shape=(TOKENS, WIDTH), boxes=(Box(box.offset, box.length),))
        for id in ids:
            y = self.tamper.output(step, rank, id, self.sample(self.weights[rank], id)[0])
            # The same on every rank, another in every rung.
            noise = np.random.default_rng([zlib.crc32(self.rung.id.split("@")[0].encode()), id])
            y = y * (1 + NOISE[self.rung.precision] * noise.normal(size=y.shape))
            for kind in (Kind.OUTPUT, Kind.OUTPUT_GRADIENT):
                self._digest(rank, step, kind, "blocks.0", y, extent, id)

    def _norm(self, gradients: Sequence[Arrays]) -> float:
        """Put together from what the ranks hold: each region once, pieces of partial sums added."""
        full = {name: np.zeros(shape) for name, shape in SHAPES.items()}
        done = set()
        for rank in self.ranks:
            at = self.layout.coordinates(rank)[Axis.TP]
            for name, g in gradients[rank].items():
                extent = self.extent(rank, Kind.GRADIENT, name)
                key = (name, extent.boxes, at if extent.partial else 0)
                if key not in done:
                    done.add(key)
                    box = extent.boxes[0]
                    cut = tuple(slice(o, o + n) for o, n in zip(box.offset, box.length, strict=True))
                    full[name][cut] += g[cut]
        return float(np.sqrt(sum((g**2).sum() for g in full.values())))

    def _whole(self, rank: int, name: str, gradients: Sequence[Arrays]) -> np.ndarray:
        """A partial sum is added up where it is used."""
        if self.extent(rank, Kind.GRADIENT, name).partial:
            return np.sum([gradients[other][name] for other in self.layout.group(rank, Axis.TP)], axis=0)
        return gradients[rank][name]

    def _update(self, step: int, rank: int, gradients: Sequence[Arrays]) -> dict[str, Any]:
        for name in SHAPES:
            self.record(rank, step, Kind.GRADIENT, name, gradients[rank][name])
        norm = self._norm(gradients)
        used = self.tamper.norm_used(step, rank, norm)
        printed = self.tamper.norm_printed(step, rank, norm)
        factor = min(1.0, CLIP / (used + 1e-6))
        for name, w in list(self.weights[rank].items()):
            self.record(
                rank, step, Kind.APPLIED, name, self.tamper.applied(step, rank, name, factor * gradients[rank][name])
            )
            g = self.tamper.applied(step, rank, name, factor * self._whole(rank, name, gradients))
            after = self._sgd(rank, name, w, g) if self.optimizer == "SGD" else self._adam(step, rank, name, w, g)
            self.weights[rank][name] = self.tamper.moved(step, rank, name, w, after)
        return {"norm_used": used, "norm_printed": printed, "clip": CLIP}

    def _sgd(self, rank: int, name: str, w: np.ndarray, g: np.ndarray) -> np.ndarray:
        d = g + DECAY * w
        held = self.momenta[rank]
        held[name] = MOMENTUM * held[name] + d if name in held else d
        return w - RATE * held[name]

    def _adam(self, step: int, rank: int, name: str, w: np.ndarray, g: np.ndarray) -> np.ndarray:
        m, v = self.momenta[rank], self.squares[rank]
        m[name] = 0.9 * m.get(name, 0.0) + 0.1 * g
        v[name] = 0.95 * v.get(name, 0.0) + 0.05 * g**2
        m_hat, v_hat = m[name] / (1 - 0.9 ** (step + 1)), v[name] / (1 - 0.95 ** (step + 1))
        return w - RATE * (m_hat / (np.sqrt(v_hat) + 1e-8) + DECAY * w)

    def _event(self, step: int, rank: int, batches: list[list[int]]) -> dict[str, Any]:
        ids = [id for part in batches for id in part]
        epoch, everything = self.ids(step)
        loss = sum(self.sample(self.weights[rank], id)[1] for id in ids)
        mean = sum(self.sample(self.weights[rank], id)[1] for id in everything) / int(self.counts[everything].sum())
        return {
            "step": step,
            "epoch": epoch,
            "ids": ids,
            "micro_batches": batches,
            "tokens": None,
            "loss_sum": loss,
            "targets": int(self.counts[ids].sum()) if ids else 0,
            "printed_loss": mean,
            "learning_rates": [RATE],
            "loss_scale": None,
            "skipped": False,
            "rng": f"state {step} {self.layout.data_rank(rank)}",
            "seconds": 0.1,
        }


def write_plan(run: Path, rungs: Sequence[Rung], *, dropout: float = 0.0, **train: Any) -> None:
    run.mkdir(parents=True, exist_ok=True)
    plan = {
        "schema": 1,
        "rungs": [each.to_json() for each in rungs],
        "skipped": [{"axes": {"tp": 3}, "reason": "tp degree (3) must divide the hidden width (16)"}],
        "train": {"batch": BATCH, "optimizer": "sgd", "learning_rate": RATE, "weight_decay": DECAY, "clip": CLIP}
        | train,
        "recipe": {"name": "tiny", "blocks": ["blocks.0"], "dropout": dropout},
    }
    (run / "plan.json").write_text(json.dumps(plan))


def make_run(
    run: Path,
    rungs: Sequence[Rung],
    tampers: Mapping[str, Tamper] | None = None,
    *,
    optimizer: str = "SGD",
    dropout: float = 0.0,
    **train: Any,
) -> Path:
    """A whole run folder; ``tampers`` by id of the rung that they break."""
    write_plan(run, rungs, dropout=dropout, **train)
    for each in rungs:
        World(each, run / "rungs" / each.id, (tampers or {}).get(each.id, HEALTHY), optimizer).run()
    return run
