"""torch.distributed.checkpoint cannot load an optimizer with a group of which this rank steps nothing.

ZeroRedundancyOptimizer has such groups on ranks that got no parameter of them. The worker leaves them out while it
loads (``dist_checks/worker/checkpoint.py``).
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

from dist_checks.worker.checkpoint import without_empty_groups

OPTIONS = StateDictOptions(flatten_optimizer_state_dict=True)


def made() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW([{"params": [model.weight]}, {"params": [model.bias]}])
    optimizer.param_groups[1]["params"] = []
    return model, optimizer


def test_it_can_be_saved_and_not_loaded() -> None:
    model, optimizer = made()
    saved = get_optimizer_state_dict(model, optimizer, options=OPTIONS)
    with pytest.raises(IndexError):
        set_optimizer_state_dict(model, optimizer, saved, options=OPTIONS)


def test_without_its_empty_groups_it_can() -> None:
    model, optimizer = made()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    saved = get_optimizer_state_dict(model, optimizer, options=OPTIONS)
    again, other = made()
    with without_empty_groups(other):
        set_optimizer_state_dict(again, other, saved, options=OPTIONS)
    assert [len(group["params"]) for group in other.param_groups] == [1, 0]
    assert torch.equal(other.state[again.weight]["exp_avg"], optimizer.state[model.weight]["exp_avg"])
