"""What a probe costs: a training step with it over the same step without, measured in turns in one run.

``python tests/bench/bench_probe.py [--width 512 --layers 4 --batch 4 --tokens 256 --rounds 5]``
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from dist_checks.probe import Probe, Record, own
from dist_checks.probe.probe import FOLDER
from dist_checks.trace import digests_path

VOCABULARY = 4096
PRODUCTION = {"production, between": 1_000_000, "production, recorded": 1}
"""Two lines in a loop, and DIST_CHECKS_EVERY: what a step costs that is not recorded, and one that is."""


class Model(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x)
        return logits


def steps(mode: str, options: argparse.Namespace, folder: Path) -> Iterator[float]:
    """CPU seconds of each step, without end: what else runs on the machine does not count."""
    torch.manual_seed(0)
    model = Model(options.width, options.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    probe = Probe()
    if mode.startswith("recording"):
        # Block outputs belong to the first step, optimizer state to some: neither is what every step costs.
        record = Record(outputs_steps=0, state_every=0, applied="applied" in mode)
        probe = Probe.attach(model, optimizer, folder=folder / mode, rank=0, record=record)
    if mode in PRODUCTION:
        os.environ |= {FOLDER: str(folder / mode), own.EVERY: str(PRODUCTION[mode])}
        own._attached = None  # a process has one as a rule
        probe = Probe.attach(model, optimizer)
    ids = list(range(options.batch))
    tokens = torch.randint(VOCABULARY, (options.batch, options.tokens))
    while True:
        start = time.process_time()
        if mode == "inert" or mode.startswith("recording"):
            probe.micro_batch(ids)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        if mode == "inert" or mode.startswith("recording"):
            probe.gradients()
        optimizer.step()
        if mode != "without":
            probe.step(loss_sum=loss.item() * tokens.numel(), targets=tokens.numel())
        yield time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("width", 512), ("layers", 4), ("batch", 4), ("tokens", 256), ("rounds", 5), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    modes = ("without", "inert", "recording", "recording applied", *PRODUCTION)
    with tempfile.TemporaryDirectory() as folder:
        runs = {mode: steps(mode, options, Path(folder)) for mode in modes}
        for run in runs.values():
            next(run)  # warm: buffers, tables, optimizer state
        rounds = [{mode: next(run) for mode, run in runs.items()} for _ in range(options.rounds)]
        size = digests_path(Path(folder) / "recording", 0).stat().st_size
    model = Model(options.width, options.layers)
    tensors = len(list(model.parameters()))
    count = sum(parameter.numel() for parameter in model.parameters())
    print(
        f"{count / 1e6:.1f} million parameters in {tensors} tensors, {options.batch} x {options.tokens} tokens a step"
    )
    print(f"{size / tensors / (3 + 2 * options.rounds):.0f} bytes of digests for each tensor, step and kind")
    for mode in modes:
        ratios = [one[mode] / one["without"] for one in rounds]
        seconds = statistics.median(one[mode] for one in rounds)
        print(f"{mode:18} {seconds:8.4f} s   {statistics.median(ratios):.3f} x without (from {min(ratios):.3f})")


if __name__ == "__main__":
    main()
