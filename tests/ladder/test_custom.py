"""Axes of the user's own: compared with what they must equal, named by the verdict, checked at the door."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ladders import Ladder, broken

from dist_checks import ConfigError
from dist_checks.judging.verdict import ExitCode
from dist_checks.matrix import load, parse

SMALL = {"options": {"layers": 2, "width": 16}}
TREE = {"tree": {"env": {"NCCL_ALGO": "Tree"}}}


def rungs(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {rung["id"]: rung for rung in report["rungs"]}


def test_one_that_must_change_nothing(ladder: Ladder) -> None:
    outcome = ladder({"custom": ["tree"], "tp": 2}, custom=TREE, **SMALL)
    assert outcome.exit_code() is ExitCode.PASS, outcome.report["sentence"]
    found = rungs(outcome.report)
    assert found.keys() >= {"custom.tree", "tp2+custom.tree"}
    assert found["tp2+custom.tree"]["reference"] == "single"
    assert max(found["tp2+custom.tree"]["series"]["gradient_distance"]) < 1e-11


def test_variables_that_do_not_reach_the_ranks(ladder: Ladder) -> None:
    outcome = ladder({"custom": ["tree"], "dp_replicate": 2}, custom=TREE, fault="custom_off", **SMALL)
    assert outcome.report["sentence"] == "FAIL broken: custom.tree (alone)"
    [entry] = outcome.report["broken"]
    assert (entry["check"], entry["axes"], entry["values"]) == ("engaged", ["custom"], {"custom": "tree"})
    assert "env.NCCL_ALGO is None on rank 0, not 'Tree'" in entry["explanation"]


def test_one_with_numbers_of_its_own_has_a_single_of_its_own(ladder: Ladder) -> None:
    custom = {"wide": {"options": {"width": 32}, "train": {"learning_rate": 1e-3, "clip": 0}, "same": False}}
    outcome = ladder({"custom": ["wide"], "dp_replicate": 2, "precision": "bf16"}, custom=custom, **SMALL)
    assert outcome.exit_code() is ExitCode.PASS, outcome.report["sentence"]
    found = rungs(outcome.report)
    assert found["custom.wide"]["role"] == found["bf16+custom.wide"]["role"] == "single"
    assert found["dp_replicate2+custom.wide"]["reference"] == "custom.wide"
    assert max(found["dp_replicate2+custom.wide"]["series"]["gradient_distance"]) < 1e-11


def test_one_that_should_be_the_same_and_is_not(ladder: Ladder) -> None:
    outcome = ladder({"custom": ["slow"], "tp": 2}, custom={"slow": {"train": {"weight_decay": 0.2}}}, **SMALL)
    assert outcome.report["sentence"] == "FAIL broken: custom.slow (alone)"
    assert broken(outcome.report) == [["custom"]]


@pytest.mark.parametrize(
    ("matrix", "line"),
    [
        ({"axes": {"custom": "tree"}}, "axes.custom[0]: there is no table [custom.tree], expected one of: none"),
        ({"axes": {"custom": 3}}, "axes.custom[0]: custom takes the name of a table such as [custom.NAME], not 3"),
        ({"custom": {"a.b": TREE["tree"]}}, "custom.a.b: a name has letters"),
        ({"custom": {"a": {}}}, "custom.a: this sets nothing, expected options, train or env"),
        ({"custom": {"a": {"envs": {}}}}, "custom.a.envs: this key is not known"),
        ({"custom": {"a": {"env": {"X": 1}}}}, "custom.a.env.X: input should be a valid string, not 1"),
        ({"custom": {"a": {"train": {"lr": 1}}}}, "custom.a.train.lr: this key is not known"),
    ],
    ids=str,
)
def test_what_is_wrong_with_it_is_said_in_one_line(matrix: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(matrix)
    [said] = str(error.value).splitlines()
    assert said.startswith(f"matrix: {line}")


def test_options_that_no_recipe_takes(ladder: Ladder) -> None:
    with pytest.raises(ConfigError, match=r"^custom.deep: options .* do not fit recipe 'gpt'"):
        ladder({"custom": "deep", "tp": 2}, custom={"deep": {"options": {"depth": 3}}})


def test_it_is_read_back_from_toml(tmp_path: Path) -> None:
    matrix = parse({"axes": {"custom": ["tree"]}, "custom": TREE})
    (tmp_path / "m.toml").write_text(matrix.to_toml())
    assert load(tmp_path / "m.toml") == matrix
