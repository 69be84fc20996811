"""What a digest costs on one CPU thread, beside sums of the same tensors: ratios within one run.

python tests/bench/bench_digest.py [megabytes]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch

from dist_checks.probe.digest import digest, digest_flat, digest_many

ROUNDS = 5


def seconds(**calls: Callable[[], object]) -> dict[str, float]:
    """The least CPU seconds of each call; the calls take turns, so that a busy machine disturbs all of them."""
    least = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        call()
    for _ in range(ROUNDS):
        for name, call in calls.items():
            start = time.thread_time()
            call()
            least[name] = min(least[name], time.thread_time() - start)
    return least


def large(megabytes: int) -> None:
    x = torch.randn(megabytes * 1_000_000 // (4 * 4096), 4096)
    half, double = x.bfloat16(), x.double()
    columns, narrow = x[:, 1024:2048], x.view(-1, 256)
    offset = [0, 1024]
    cases: dict[str, tuple[torch.Tensor, Callable[[], object]]] = {
        "float32": (x, lambda: digest(x)),
        "float32, rows of 256": (narrow, lambda: digest(narrow)),
        "float32, quarter of the columns": (columns, lambda: digest(columns, shape=x.shape, offset=offset)),
        "float32, flat range": (x, lambda: digest_flat(x.view(-1)[:-1001], shape=x.shape, start=1001)),
        "bfloat16": (half, lambda: digest(half)),
        "float64": (double, lambda: digest(double)),
    }
    print(f"{'GB/s':34}{'digest':>8}{'x.sum()':>9}{'x.double().sum()':>18}   digest against x.double().sum()")
    for name, (tensor, call) in cases.items():
        gigabytes = tensor.numel() * tensor.element_size() / 1e9
        took = seconds(digest=call, sum=tensor.sum, double=lambda t=tensor: t.double().sum())  # type: ignore[misc]
        rates = {key: gigabytes / value for key, value in took.items()}
        ratio = took["double"] / took["digest"]
        print(f"{name:34}{rates['digest']:8.2f}{rates['sum']:9.1f}{rates['double']:18.2f}   {ratio:.2f} times as fast")


def small() -> None:
    xs = [torch.randn(64, 64) for _ in range(200)]
    took = seconds(stacked=lambda: digest_many(xs), one=lambda: [digest(x) for x in xs])
    print(
        f"\n200 tensors of 4096 elements: {1e3 * took['stacked']:.1f} ms stacked, "
        f"{1e3 * took['one']:.1f} ms one by one, {took['one'] / took['stacked']:.1f} times as long"
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    large(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
    small()
