"""What a digest costs on one CPU thread, beside sums of the same tensors: ratios within one run.

python tests/bench/bench_digest.py [megabytes]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

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
    full = torch.randn(megabytes * 1_000_000 // (4 * 4096), 4096)
    half, double = full.bfloat16(), full.double()
    columns, narrow, flat = full[:, 1024:2048], full.view(-1, 256), full.view(-1)[1001:]
    offset = [0, 1024]
    cases: dict[str, tuple[Tensor, Callable[[], object]]] = {
        "float32": (full, lambda: digest(full)),
        "float32, rows of 256": (narrow, lambda: digest(narrow)),
        "float32, quarter of the columns": (columns, lambda: digest(columns, shape=full.shape, offset=offset)),
        "float32, flat range": (flat, lambda: digest_flat(flat, shape=full.shape, start=1001)),
        "bfloat16": (half, lambda: digest(half)),
        "float64": (double, lambda: digest(double)),
    }
    print(f"{'GB/s, and seconds against the digest':38}{'digest':>8}{'x.sum()':>16}{'x.double().sum()':>20}")
    for name, (x, call) in cases.items():
        gigabytes = x.numel() * x.element_size() / 1e9
        took = seconds(digest=call, sum=x.sum, double=lambda x=x: x.double().sum())  # type: ignore[misc]
        rate = {key: gigabytes / value for key, value in took.items()}
        ratio = {key: value / took["digest"] for key, value in took.items()}
        others = f"{rate['sum']:8.1f} ({ratio['sum']:.3f}){rate['double']:12.2f} ({ratio['double']:.3f})"
        print(f"{name:38}{rate['digest']:8.2f}{others}")


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
