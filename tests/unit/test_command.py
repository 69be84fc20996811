"""Command lines of the user's own: what is put in, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dist_checks.command import Command
from dist_checks.matrix import ConfigError, parse
from dist_checks.plan import make
from dist_checks.refusals import Facts
from dist_checks.rung import Rung

ARGV = "train.py --tp {tp} {sp:--sequence-parallel} --dtype {precision} --zero {zero} --seed {seed} --out {out}"


def rungs(argv: str, axes: dict[str, Any], **command: Any) -> dict[str, Rung]:
    matrix = parse({"command": {"argv": argv, **command}, "axes": axes, "launch": {"cold_twin": False}})
    return {rung.id: rung for rung in make(matrix, Facts(), 8).rungs}


def test_values_and_flags() -> None:
    found = rungs(ARGV, {"tp": 2, "sp": True, "precision": "bf16", "dp_replicate": 2})
    command = Command(argv=ARGV)
    words = command.filled(found["tp2+sp"], {}, Path("/r/tp2+sp"))
    assert " ".join(words[1:]) == (
        "train.py --tp 2 --sequence-parallel --dtype fp32 --zero 0 --seed 0 --out /r/tp2+sp/out"
    )
    words = command.filled(found["bf16"], {}, Path("/r/bf16"))
    assert " ".join(words[1:]) == "train.py --tp 1 --dtype bf16 --zero 0 --seed 0 --out /r/bf16/out"


def test_options_fill_placeholders_and_braces_are_written_twice() -> None:
    found = rungs("train.py --tp {tp}", {"tp": 2})
    command = Command(argv="""python -m pkg.train --lr {lr} '{{"stage": {zero}}}'""")
    assert command.filled(found["tp2"], {"lr": 0.1}, Path("/r")) == (
        *("python", "-m", "pkg.train", "--lr", "0.1", '{"stage": 0}'),
    )


def test_hooks_and_the_outside_are_put_before_the_script() -> None:
    rung = rungs("train.py --tp {tp}", {"tp": 2})["tp2"]
    words = Command(argv="train.py --tp {tp}", see="hooks").filled(rung, {}, Path("/r"))
    assert words[1:] == ("-m", "dist_checks.probe.unchanged", "train.py", "--tp", "2")
    outside = Command(argv="train.py --tp {tp}", see="log", loss="x").filled(rung, {}, Path("/r"))
    assert outside[1:3] == ("-m", "dist_checks.probe.outside")
    assert outside[4:] == ("train.py", "--tp", "2")


def test_a_script_is_judged_by_its_own_single() -> None:
    found = rungs("train.py --tp {tp} --dtype {precision}", {"tp": 2, "precision": "bf16"})
    assert {rung.precision for rung in found.values()} == {"fp32", "bf16"}
    assert (found["tp2"].reference, found["tp2"].truth) == ("single", "single")
    assert (found["bf16"].reference, found["bf16"].truth) == (None, "single")
    assert (found["tp2+bf16"].reference, found["tp2+bf16"].truth) == ("bf16", "single")


def test_what_the_loop_of_recipes_cannot_combine_a_script_may() -> None:
    assert "pp2+cp2" in rungs("train.py --pp {pp} --cp {cp}", {"pp": 2, "cp": 2})


@pytest.mark.parametrize(
    ("matrix", "line"),
    [
        ({"command": {"argv": ""}}, "command.argv: expected a command"),
        ({"command": {"argv": "train.py '"}}, "command.argv: no closing quotation"),
        ({"command": {"argv": "train.py {tp"}}, "command.argv: expected '}' before end of string"),
        ({"command": {"argv": "train.py {what}"}}, "command.argv: there is nothing to put in for {what}"),
        ({"command": {"argv": "train.py"}, "axes": {"accum": 2}}, "axes.accum: command.argv has no {accum}"),
        ({"command": {"argv": "train.py"}, "axes": {"tp": 2, "pp": 2}}, "axes.pp: command.argv has no {pp}"),
        ({"command": {"argv": "train.py"}, "recipe": "moe"}, "recipe: it says nothing to a script"),
        ({"command": {"argv": "train.py", "see": "log"}}, "command.see: by its log alone: say where its loss is"),
        ({"command": {"argv": "train.sh", "see": "hooks"}}, "command.argv: hooks are put into 'train.py ...'"),
    ],
)
def test_mistakes(matrix: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(matrix)
    assert any(each.removeprefix("matrix: ").startswith(line) for each in str(refused.value).splitlines())


def test_one_axis_may_be_what_is_left_of_the_world() -> None:
    assert "dp_replicate2+tp2" in rungs("train.py --tp {tp}", {"dp_replicate": 2, "tp": 2})
