"""The self-test judges itself: what holds, what does not, and what is shared between ladders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dist_checks import session
from dist_checks.axes import Axis, Setting
from dist_checks.judging.triage import SYMPTOMS
from dist_checks.matrix import ConfigError, parse
from dist_checks.rung import Role, Rung
from dist_checks.selftest import catalogue, healthy, ladder, mutants
from dist_checks.selftest.catalogue import Planted
from dist_checks.selftest.run import Row, SelfTest, leads, line, sentence
from dist_checks.selftest.sharing import SharingLauncher
from launch.base import Exit, Job, State

FAULT = Planted(
    id="O99",
    title="t",
    source="s",
    sets=(("accum", "dp_replicate"), ("tp",)),
    check="replicas",
    blamed="axis",
    planted_in={"axes": {"dp_replicate": 3, "accum": 5}},
    step=0,
    hosts=1,
    needs=(),
)
SEEN = Row(
    fault=FAULT,
    caught=True,
    check="replicas",
    blamed=["accum", "dp_replicate"],
    sets=[["accum", "dp_replicate"]],
    step=0,
)


def test_it_expects_the_sets_whose_axes_are_on_the_ladder() -> None:
    assert FAULT.expected_sets == [["accum", "dp_replicate"]]
    assert FAULT.expected_blame == ["accum", "dp_replicate"]
    assert replace(FAULT, blamed="host", sets=()).expected_blame == ["host"]


def test_a_fault_without_a_ladder_gets_the_smallest_one() -> None:
    axes = replace(FAULT, planted_in=None, sets=(("sp",),)).matrix()["axes"]
    assert axes == {"accum": [5], "tp": [2], "sp": [True]}, "with one that must stay right"
    assert "dp_replicate" in replace(FAULT, planted_in=None, sets=(("accum",),)).matrix()["axes"]
    assert parse(replace(FAULT, planted_in=None, sets=(("zero",),)).matrix())


@pytest.mark.parametrize(
    "wrong",
    [
        {"caught": False},
        {"check": "gradients"},
        {"step": 1},
        {"blamed": ["accum"]},
        {"sets": [["accum"], ["dp_replicate"]]},  # each alone, where they break only together
        {"unled": ["loss_stuck"]},
    ],
    ids=["not caught", "check", "step", "blame", "sets", "symptom"],
)
def test_a_row_holds_only_if_all_of_it_does(wrong: dict[str, Any]) -> None:
    assert SEEN.holds
    row = replace(SEEN, **wrong)
    assert not row.holds
    assert "NOT" in line(row)
    test = SelfTest(rows=(SEEN, row), clean_runs=3, false_alarms=(), seconds=1.0)
    assert sentence(test).startswith("FAIL 1 of 2 faults caught")


def test_a_symptom_counts_with_its_suspect_first() -> None:
    row = SYMPTOMS["loss_rises"]
    found = [{"symptom": row.name, "suspects": list(row.ordered(["sign"]))}, {"check": "samples"}]
    assert leads(found, "loss_rises", "sign")
    assert not leads(found, "loss_rises", "rate")
    assert not leads(found, "loss_stuck", "rate")


def test_what_is_skipped_is_said_in_the_last_line() -> None:
    skipped = Row(fault=FAULT, skipped="deepspeed is not installed")
    test = SelfTest(rows=(SEEN, skipped), clean_runs=3, false_alarms=(), seconds=1.0)
    assert test.holds
    assert sentence(test) == (
        "PASS 1 of 1 faults caught and blamed rightly, 3 healthy rungs with no false alarms; "
        "SKIP O99 (deepspeed is not installed)"
    )
    alone = SelfTest(rows=(skipped,), clean_runs=0, false_alarms=(), seconds=1.0)
    assert sentence(alone).startswith("FAIL 0 of 0"), "nothing tried is never a pass"


def test_false_alarms_and_missed_mutants_do_not_hold() -> None:
    test = SelfTest(rows=(SEEN,), clean_runs=3, false_alarms=("tp2 is fail",), seconds=1.0)
    assert not test.holds
    assert not replace(test, false_alarms=(), missed=("mutant:drop:tp:all_reduce",)).holds


def test_faults_are_chosen_by_id() -> None:
    assert catalogue.choose([FAULT], "O99") == catalogue.choose([FAULT], "") == [FAULT]
    assert catalogue.choose([FAULT], "none") == []
    with pytest.raises(ConfigError, match="there is no fault 'O98'"):
        catalogue.choose([FAULT], "O99,O98")


class Inner:
    """Runs nothing, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def run(self, jobs: Iterable[Job], on_start: Callable[[Job], None] = lambda job: None) -> Iterator[Exit]:
        for job in jobs:
            self.asked.append(job.name)
            job.folder.mkdir(parents=True)
            (job.folder / "rank-00000.jsonl").write_text(job.name)
            yield Exit(job=job.name, state=State.DONE, ranks=(), first_failed=None, error="", hosts=(), seconds=1.0)

    def close(self) -> None:
        pass


def job(folder: Path, name: str, **payload: Any) -> Job:
    setting = Setting.parse(name).to_json()
    rung = {"id": name, "setting": setting, "role": "rung"}
    return Job(
        name=name,
        folder=folder / name,
        world_size=1,
        entry="m:f",
        payload={"folder": str(folder / name), "rung": rung, **payload},
    )


def test_a_healthy_rung_is_run_once_and_a_harmless_fault_shares_it(tmp_path: Path) -> None:
    inner = Inner()
    launcher = SharingLauncher(inner)  # type: ignore[arg-type]
    launcher.harmless = lambda setting: not setting.structural
    for at, payload in enumerate(({}, {}, {"fault": "O99"})):
        jobs = [job(tmp_path / str(at), name, **payload) for name in ("single", "tp2")]
        assert {exit.job for exit in launcher.run(jobs)} == {"single", "tp2"}
        assert (tmp_path / str(at) / "single" / "rank-00000.jsonl").read_text() == "single"
    assert inner.asked == ["single", "tp2", "tp2"], "the second time everything is linked, with the fault one rung"
    assert launcher.healthy == 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, when its own optimizers are imported
def test_each_mutant_of_the_list_is_one_that_ranks_know() -> None:
    from dist_checks.worker.mutations import operators, planting, states

    known = {name: set(kinds) for name, (_, kinds) in operators.OPERATORS.items()}
    assert {name: set(kinds) for name, kinds in mutants.COLLECTIVES.items()} == known
    assert set(mutants.STATES) == set(states.OPERATORS)
    planting.check("mutant:drop:dp_shard:all_gather")
    for wrong in ("mutant:drop:dp_shard", "mutant:gone:tp", "mutant:drop:nothing:all_gather"):
        with pytest.raises(ValueError, match="there is no mutant"):
            planting.check(wrong)


def test_one_mutant_for_each_axis_collective_and_operator() -> None:
    of_tp = [mutant.id for mutant in mutants.all_of(Axis.TP, ["all_reduce"])]
    assert len(of_tp) == len(set(of_tp))
    assert "mutant:drop:tp:all_reduce" in of_tp
    assert not any("wrong_group" in id for id in of_tp), "of two ranks that is a drop"
    of_dp = [mutant.id for mutant in mutants.all_of(Axis.DP_SHARD, ["all_gather"])]
    assert "mutant:wrong_group:dp_shard:all_gather" in of_dp
    assert not any(id.endswith("reduce_scatter") for id in of_dp), "no such collective was seen"
    for axis in mutants.RUNGS:
        assert mutants.RUNGS[axis] in parse(mutants.ground(axis, Path(), [axis]).given).combine.include


@pytest.mark.parametrize(
    ("axis", "guilty"),
    [(Axis.TP, {"tp"}), (Axis.SP, {"sp"}), (Axis.ZERO, {"zero"}), (Axis.ACCUM, {"accum", "dp_replicate"})],
)
def test_a_mutant_is_to_be_blamed_on_its_axis(axis: Axis, guilty: set[str]) -> None:
    assert mutants.Mutant(id="x", operator="drop", axis=axis).guilty == guilty


def test_equivalent_means_that_every_byte_is_the_same(tmp_path: Path) -> None:
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    for folder in (right, wrong):
        folder.mkdir()
        (folder / "rank-00000.tensors").write_bytes(b"1234")
    assert mutants.equal(right, wrong)
    (wrong / "rank-00000.tensors").write_bytes(b"1235")
    assert not mutants.equal(right, wrong)
    (wrong / "rank-00000.tensors").unlink()
    assert not mutants.equal(right, wrong), "what was not kept proves nothing"
    right.rename(tmp_path / "gone")
    assert not mutants.equal(right, wrong)


def test_the_row_of_healthy_rungs_has_every_axis_in_every_precision() -> None:
    ladders = list(healthy.matrices(200, deepspeed=True))
    assert [given["seeds"] for given in ladders] == [[seed] for seed in range(10)]
    seen: set[tuple[str, str]] = set()
    for given in ladders:
        parse(given)
        for names in (given["combine"]["include"], given["also"][0]["combine"]["include"]):
            for setting in map(Setting.parse, names):
                precision = str(setting.get(Axis.PRECISION, "fp64"))
                seen |= {(axis.value, precision) for axis in setting}
    axes = {axis.value for axis in Axis} - {"custom", "precision", "compile", "resume"}
    wanted = {(axis, precision) for axis in axes for precision in healthy.PRECISIONS}
    # DeepSpeed's are in float32 where the others are in float64; torch's own is not.
    assert wanted <= seen | {("zero", "fp32")}
    assert ("compile", "fp64") in seen


def test_margins_are_shares_of_what_is_allowed() -> None:
    margins = healthy.Margins()
    rung = Rung(id="tp2", role=Role.RUNG, setting=Setting({"tp": 2}), precision="bf16", seed=0, steps=1)
    for observed in (1.0, 2.0, 3.0):
        margins.add(rung, {"check": "gradients", "observed": observed, "allowed": 4.0}, f"seed {observed}")
    margins.add(rung, {"check": "replicas", "observed": 0.0, "allowed": 0.0}, "seed 0")
    (row,) = margins.rows()
    assert (row["rungs"], row["half"], row["largest"], row["where"]) == (3, 0.5, 0.75, "seed 3.0")
    assert "| bf16 | rung | gradients | 3 |" in healthy.table(margins.rows())


def test_an_interrupted_ladder_ends_the_self_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was cut short is neither a miss nor a false alarm."""
    cut = session.Outcome(report={"status": "inconclusive", "rungs": []}, folder=tmp_path, interrupted=True)
    monkeypatch.setattr(session, "run", lambda *_, **__: cut)
    with pytest.raises(KeyboardInterrupt):
        ladder.report({}, tmp_path, SharingLauncher(Inner()))  # type: ignore[arg-type]
