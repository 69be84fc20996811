"""Tokens that went to other experts are counted, and excuse about what a sample contributes, and less of a factor."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from judging_cases import ORDER, of
from tiny_world import make_run, rung
from torch import nn

from dist_checks.judging.comparison import Comparison
from dist_checks.judging.judge import judge
from dist_checks.judging.logical import Key
from dist_checks.judging.routing import Flip, Routes, Share, excuse, flips, tokens
from dist_checks.judging.verdict import Finding, Status
from dist_checks.probe.hooks import MicroBatch
from dist_checks.probe.routing import RoutingHooks
from dist_checks.trace import NO_ITEM, Chain, Kind, events_path


def made(*samples: tuple[int, ...], step: int = 0) -> Routes:
    """Of one router, with two choices for each token."""
    key = (step, "r")
    return Routes(
        of={key: dict(enumerate(samples))},
        choices=2,
        ranks={(*key, item): (0,) for item in range(len(samples))},
        apart=None,
    )


def test_tokens_are_counted_not_choices() -> None:
    (flip,) = flips(made((0, 1, 2, 3, 1, 3), (0, 1)), made((0, 1, 0, 1, 1, 2), (0, 1)))
    assert (flip.step, flip.router, flip.item, flip.tokens) == (0, "r", 0, 2)
    assert not list(flips(made((0, 1)), made((0, 1))))
    assert tokens(made((0, 1, 2, 3), (0, 1)), 0) == 3


def compared(kind_item: int, distance: float, scale: float = 1.0, step: int = 0) -> Comparison:
    one = np.ones(1)
    return Comparison(
        keys=(Key("w", step, kind_item),),
        step=np.array([step]),
        distance=distance * one,
        norm=one,
        total=one,
        allowed=0.01 * one,
        spread=0 * one,
        scale=scale * one,
        cosine=one,
        rows=np.array([0]),
        yard_rows=np.array([0]),
        missing=(),
        incomplete=(),
    )


def flip(item: int, step: int = 0) -> Flip:
    return Flip(step=step, router="r", item=item, tokens=1, ranks=(0,))


SHARES = {"w": Share(norm=0.05, along=0.04)}


def of_gradient(scale: float, *flipped: Flip, step: int = 0) -> float:
    return float(excuse(Kind.GRADIENT, compared(NO_ITEM, 0.04, scale, step), list(flipped), SHARES)[0])


def test_a_gradient_is_excused_by_what_samples_contribute() -> None:
    assert of_gradient(1.0, flip(3)) == pytest.approx(0.05)
    assert of_gradient(1.0, flip(3), flip(4)) == pytest.approx(0.05 * 2**0.5)
    assert of_gradient(1.0, flip(3, step=1)) == 0, "it had not happened yet"
    assert of_gradient(1.0, flip(3), step=1) == pytest.approx(0.05)


def test_a_factor_is_excused_by_what_tokens_stretch() -> None:
    assert of_gradient(1.019, flip(3)) > 0
    assert of_gradient(1.05, flip(3)) == 0
    assert of_gradient(0.95, flip(3), flip(4)) == 0


def test_only_the_outputs_of_that_sample_are_excused() -> None:
    assert excuse(Kind.OUTPUT, compared(3, 0.5), [flip(3)], {})[0] == 1
    assert excuse(Kind.OUTPUT, compared(4, 0.5), [flip(3)], {})[0] == 0


def test_what_is_excused_is_not_judged_and_what_is_beyond_fails() -> None:
    one = replace(compared(NO_ITEM, 0.04), excuse=np.array([0.05]))
    assert one.ok.all()
    assert one.excused.all()
    two = replace(compared(NO_ITEM, 0.07), excuse=np.array([0.05]))
    assert not two.ok.any()
    assert not two.excused.any()
    fine = replace(compared(NO_ITEM, 0.005), excuse=np.array([0.05]))
    assert not fine.excused.any()


class Router(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = torch.tensor([[[1, 0], [2, 3]], [[3, 1], [-1, -1]]])
        return x, chosen


def test_hooks_record_each_sample_once_and_leave_padding_out() -> None:
    told = []
    router = Router()
    hooks = RoutingHooks({"r": router}, lambda *what: told.append(what))
    router(torch.zeros(2))  # not asked for
    hooks.expect(MicroBatch(ids=(7, 5)))
    router(torch.zeros(2))
    router(torch.zeros(2))  # activation checkpointing runs it again
    assert told == [("r", 2, {7: [0, 1, 2, 3], 5: [1, 3]}, 0)]
    hooks.remove()
    hooks.expect(MicroBatch(ids=(7, 5)))
    router(torch.zeros(2))
    assert len(told) == 1


class FlatRouter(nn.Module):
    """A row for each token of one sample after the other, and one sample of padding behind them."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, torch.tensor([[1, 0], [2, 3], [3, 1], [0, 2], [0, 1], [0, 1]])


def test_rows_of_tokens_are_told_apart_by_sample_and_part_of_the_sequence() -> None:
    told = []
    router = FlatRouter()
    hooks = RoutingHooks({"r": router}, lambda *what: told.append(what), lambda output, ids, tokens: output[1])
    hooks.expect(MicroBatch(ids=(7, 5), tokens=(2, 4, 8), padding=1))
    router(torch.zeros(2))
    assert told == [("r", 2, {7: [0, 1, 2, 3], 5: [1, 3, 0, 2]}, 2)]
    hooks.expect(MicroBatch(ids=(7, 5), tokens=(1, 2, 2), padding=1))
    router(torch.zeros(2))
    assert told.pop()[-1] == 0, "sp gathers the sequence before"
    hooks.expect(MicroBatch(ids=(7, 5, 6, 8)))
    router(torch.zeros(2))
    assert len(told) == 1, "not of this batch"


def routed(folder: Path, rank: int, *experts: dict[str, Any]) -> None:
    """What the routers of a rank have chosen in step 0, among what it has written."""
    path = events_path(folder, rank)
    read, write = Chain(path), Chain(path)
    lines = [read.check(line).decode() for line in path.read_bytes().splitlines()]
    told = [json.dumps({"event": "routing", "step": 0, "choices": 2, **each}) for each in experts]
    path.write_text("".join(map(write.sign, [*lines[:-1], *told, lines[-1]])))


SAMPLES = [str(sample) for sample in ORDER[0][:2]]
WHOLE = {"router": "up.gate", "experts": {sample: [0, 1, 2, 3, 1, 3] for sample in SAMPLES}}


def of_run(run: Path, setting: Mapping[str, Any], *ranks: dict[str, Any], check: str = "routing") -> list[Finding]:
    broken = rung(setting)
    make_run(run, [rung(), broken])
    routed(run / "rungs" / rung().id, 0, WHOLE)
    for rank, experts in enumerate(ranks):
        routed(run / "rungs" / broken.id, rank, experts)
    return of(judge(run), broken.id, check)


def test_parts_of_a_sequence_are_put_together(tmp_path: Path) -> None:
    first = {**WHOLE, "start": 0, "experts": {sample: [0, 1, 2, 3] for sample in SAMPLES}}
    second = {**WHOLE, "start": 4, "experts": {sample: [1, 3] for sample in SAMPLES}}
    (found,) = of_run(tmp_path / "run", {"cp": 2}, first, second)
    assert (found.status, found.message) == (Status.PASS, "0 of 6 tokens were routed to other experts than in single")
    (found,) = of_run(
        tmp_path / "wrong", {"cp": 2}, first, {**second, "experts": {sample: [0, 3] for sample in SAMPLES}}
    )
    assert found.status is Status.FAIL
    assert found.message.startswith("2 of 6 tokens were routed to other experts")


def test_samples_that_were_not_recorded_are_told(tmp_path: Path) -> None:
    one = {**WHOLE, "experts": {SAMPLES[0]: WHOLE["experts"][SAMPLES[0]]}}
    passed, skipped = of_run(tmp_path / "run", {"accum": 3}, one)
    assert (passed.status, skipped.status) == (Status.PASS, Status.SKIP)
    assert skipped.message == "of 1 of 2 samples the choices of a router were not recorded"


def test_ranks_that_route_the_same_tokens_elsewhere(tmp_path: Path) -> None:
    other = {**WHOLE, "experts": {**WHOLE["experts"], SAMPLES[1]: [0, 1, 2, 3, 0, 3]}}
    (found,) = of_run(tmp_path / "run", {"tp": 2}, WHOLE, other)
    assert found.status is Status.FAIL
    assert found.message == (
        f"ranks 0 and 1 both compute sample {SAMPLES[1]} (tp), and up.gate sends its tokens to different experts"
    )
