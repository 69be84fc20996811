"""torch 2.13 on gloo: freeing DDP after destroy_process_group hangs while a collective is being forgotten.

The reducer is then the last that holds the group. It is freed with the GIL held, joins the group's threads, and one of
them waits for the GIL to let go of the tensor of its last all_reduce. A script that ends with an all_reduce of its
loss, destroy_process_group and the end of main() hangs now and then, more often where the machine is busy. Way round:
keep something that holds the group, or the model. The probe does, and so does a rank that was forked to run a script.
"""

from __future__ import annotations

import faulthandler
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from upstream_ranks import run

HUNG = 10


def leave(rank: int, keep: bool) -> bool:
    """Rank 1 comes late to the all_reduce of rank 0, which is about to end."""
    faulthandler.dump_traceback_later(HUNG, exit=True)
    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
    group = dist.group.WORLD if keep else None
    if rank == 1:
        time.sleep(1)
    work = dist.all_reduce(torch.ones(4), async_op=True)
    if rank == 1:
        work.wait()
        return True
    del work
    dist.destroy_process_group()
    del model
    return group is not None


def freed(rank: int) -> bool:
    return leave(rank, keep=False)


def kept(rank: int) -> bool:
    return leave(rank, keep=True)


def test_a_group_that_only_its_reducer_holds(tmp_path: Path) -> None:
    (tmp_path / "freed").mkdir()
    (tmp_path / "kept").mkdir()
    assert run(freed, tmp_path / "freed") == [None, True], "it does not hang any more"
    assert run(kept, tmp_path / "kept") == [True, True]
