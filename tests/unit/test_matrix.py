"""What the user wrote is understood, or refused with one clear line for each wrong key."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

from dist_checks.axes import Axis
from dist_checks.matrix import PRESETS, SAMPLE, Accept, ConfigError, Matrix, Train, load, parse, preset


def test_one_value_or_several() -> None:
    assert parse({"axes": {"tp": 2}}).axes == parse({"axes": {"tp": [2]}}).axes == {Axis.TP: (2,)}


def test_off_is_no_value() -> None:
    assert parse({"axes": {"tp": [1, 2, 2]}}).axes == {Axis.TP: (2,)}


def test_the_same_in_python(tmp_path: Path) -> None:
    matrix = Matrix(
        axes={Axis.TP: (2,), Axis.PRECISION: ("bf16",)},
        train=Train(clip=0.0),
        accept=(Accept(reason="known", until=datetime.date(2030, 1, 31), rung="tp2"),),
    )
    assert parse(matrix) == matrix
    (tmp_path / "matrix.toml").write_text(matrix.to_toml())
    assert load(tmp_path / "matrix.toml") == matrix


def test_what_comes_with_the_package_is_valid() -> None:
    assert load(SAMPLE).recipe == "gpt"
    for path in PRESETS.glob("*.toml"):
        assert preset(path.stem).name == path.stem


@pytest.mark.parametrize(
    ("written", "line"),
    [
        ({"stepz": 3}, "matrix: stepz: this key is not known"),
        ({"steps": 0}, "matrix: steps: input should be greater than or equal to 1, not 0"),
        ({"steps": "8"}, "matrix: steps: input should be a valid integer, not '8'"),
        ({"seeds": []}, "matrix: seeds: expected at least one seed"),
        ({"seeds": [1, 1]}, "matrix: seeds: expected at least one seed"),
        ({"axes": {"zp": 2}}, "matrix: axes.zp: this is no axis, expected one of pp, dp_replicate, dp_shard"),
        (
            {"axes": {"tp": [2, "four"]}},
            "matrix: axes.tp[1]: tp takes a whole number of at least 1 (1 is off), not 'four'",
        ),
        ({"axes": {"tp": True}}, "matrix: axes.tp[0]: tp takes a whole number of at least 1 (1 is off), not True"),
        ({"axes": {"sp": True}}, "matrix: axes.sp: sp needs tp, and axes.tp has no value"),
        ({"axes": {"precision": "fp8"}}, "matrix: axes.precision[0]: precision takes one of fp64, fp32, bf16, fp16"),
        ({"axes": 3}, "matrix: axes: expected a table of axes, not 3"),
        ({"train": {"optimizer": "lion"}}, "matrix: train.optimizer: input should be 'adamw' or 'sgd', not 'lion'"),
        ({"train": {"momentum": 0.9}}, "matrix: train.momentum: this key is not known"),
        ({"combine": {"include": ["tp2+sp7"]}}, "matrix: combine.include[0]: 'sp7' is no axis with its value"),
        ({"combine": {"exclude": ["tp2+xp2"]}}, "matrix: combine.exclude[0]: 'xp2' is no axis with its value"),
        ({"accept": [{"reason": "x"}]}, "matrix: accept[0].until: this key is missing"),
        ({"also": [{"axes": {"ep": 2}}]}, "matrix: also[0].recipe: this key is missing"),
        ({"also": [{"recipe": "moe", "axes": {"ep": "x"}}]}, "matrix: also[0].axes.ep[0]: ep takes a whole number"),
        ({"also": [{"recipe": "moe", "axes": {"ex": 2}}]}, "matrix: also[0].axes.ex: this is no axis"),
        ({"also": [{"recipe": "moe", "axes": {"sp": True}}]}, "matrix: also[0].axes.sp: sp needs tp"),
        ({"also": [{"recipe": "moe", "seeds": [1]}]}, "matrix: also[0].seeds: this key is not known"),
        (
            {"also": [{"recipe": "moe", "combine": {"include": ["ep2+sp7"]}}]},
            "matrix: also[0].combine.include[0]: 'sp7' is no axis with its value",
        ),
        (
            {"also": [{"recipe": "moe"}, {"recipe": "a.b:C", "name": "moe"}]},
            "matrix: also[1].name: 'moe' is the name of also[0] as well",
        ),
        ({"also": [{"recipe": "moe", "name": "a@b"}]}, "matrix: also[0].name: expected letters, digits, '-' and '_'"),
    ],
)
def test_refused(written: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(written)
    assert str(refused.value).startswith(line)
    assert "\n" not in str(refused.value)


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(ConfigError) as refused:
        parse({"stepz": 1, "axes": {"zp": 1, "tp": "x"}, "train": {"batch": -1}})
    assert len(str(refused.value).splitlines()) == 4


def test_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone.toml: cannot be read"):
        load(tmp_path / "gone.toml")
    (tmp_path / "bad.toml").write_text("steps = = 3")
    with pytest.raises(ConfigError, match=r"bad.toml: this is not TOML"):
        load(tmp_path / "bad.toml")
    with pytest.raises(ConfigError, match="there is no preset 'slow', expected one of huggingface, nightly, quick"):
        preset("slow")


def test_a_second_recipe_survives_toml(tmp_path: Path) -> None:
    also = {"recipe": "my_pkg.train:Mine", "options": {"depth": 2}, "axes": {"ep": [2, 4]}, "combine": {"mode": "all"}}
    matrix = parse({"axes": {"tp": 2}, "also": [also, {"recipe": "moe"}]})
    (tmp_path / "m.toml").write_text(matrix.to_toml())
    assert load(tmp_path / "m.toml") == matrix
    assert list(matrix.ladders) == ["", "Mine", "moe"]
    mine = matrix.ladders["Mine"]
    assert (mine.recipe, mine.options, mine.axes, mine.train) == (
        "my_pkg.train:Mine",
        {"depth": 2},
        {Axis.EP: (2, 4)},
        matrix.train,
    )
