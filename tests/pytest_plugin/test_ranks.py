"""@pytest.mark.ranks, as its users see it: tests of bodies.py, run by a pytest of its own."""

from __future__ import annotations

import os
import re
import shutil
import tomllib
from pathlib import Path

import pytest
from pytest_runs import PLUGIN, ROOT, Ran, run

BODIES = Path(__file__).with_name("bodies.py")
# torch is imported on the ranks only: what starts pytest is then quick.
FEW = """
import pytest

@pytest.mark.ranks(2)
@pytest.mark.parametrize("factor", [1, 2])
def test_sum(factor):
    import torch, torch.distributed as dist
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == 2

@pytest.mark.ranks(2)
def test_wrong():
    import torch.distributed as dist
    assert dist.get_rank() == 0, "only rank 0 is right"

@pytest.mark.ranks(2, 3)
def test_after():
    pass
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("user")
    shutil.copy(BODIES, folder / "test_bodies.py")
    example = re.search(
        r"<!-- test_ring.py -->\n```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S
    )
    assert example
    (folder / "test_ring.py").write_text(example[1])
    return folder


@pytest.fixture(scope="module")
def ran(folder: Path) -> Ran:
    """All of them, once, and those of README."""
    return run(folder, "-p", "no:xdist", "-rs", "--junitxml=junit.xml")


def test_what_passes(ran: Ran) -> None:
    passed = {name for name, outcome in ran.outcomes.items() if outcome == "passed"}
    assert passed == {
        *(
            "test_property",
            "test_sum[1]",
            "test_sum[2]",
            "test_sizes[2ranks]",
            "test_sizes[3ranks]",
            "TestOfAClass::test_method",
        ),
        *("test_the_last_one_had_an_environment_of_its_own", "test_without_a_group", "test_here"),
        *("test_the_mean_over_ranks", "test_a_broadcast[0-2ranks]", "test_a_broadcast[1-2ranks]"),
        *("test_a_broadcast[0-3ranks]", "test_a_broadcast[1-3ranks]"),
    }
    assert ran.code == 1


def test_properties_are_those_of_rank_0(ran: Ran, folder: Path) -> None:
    assert ran.outcomes["test_property"] == "passed"
    assert '<property name="world" value="2"' in (folder / "junit.xml").read_text(encoding="utf-8")


def test_the_rank_that_fails_is_told_of_as_pytest_does(ran: Ran) -> None:
    told = ran.told("test_rank_2_is_wrong")
    assert ">       assert found == expected" in told
    assert "E       AssertionError: assert {'rank': 2, 'total': 3} == {'rank': 1, 'total': 3}" in told.replace(
        "{'total': 3, 'rank': 2} == {'total': 3, 'rank': 1}", "{'rank': 2, 'total': 3} == {'rank': 1, 'total': 3}"
    )
    assert "E         {'rank': 2} != {'rank': 1}" in told
    assert "test_bodies.py:" in told
    assert "--- rank 2 of 3 failed first ---" in told
    # What gloo says to the two depends on which connection it sees closed first.
    assert "ranks 0 and 1: " in told or ("rank 0: " in told and "rank 1: " in told), told
    for rank in range(3):
        assert f"Captured stdout and stderr of rank {rank}" in told
        assert f"rank {rank} is here" in told
    assert told.count("AssertionError") <= 2, "the launcher's own copy of the traceback is not shown"


def test_what_came_first_is_told_not_what_came_of_it(ran: Ran) -> None:
    told = ran.told("test_raises_before_the_others")
    assert "E           ValueError: rank 1 cannot read its shard" in told
    assert "--- rank 1 of 3 failed first ---" in told


def test_a_hang_is_ended_and_said_in_a_sentence(ran: Ran) -> None:
    told = ran.told("test_hangs")
    assert "hung: ranks 0 and 2 wait in barrier" in told or "hung: ranks 0 and 2 wait in all_reduce" in told, told
    assert "one ahead of rank 1, which is in test_hangs (test_bodies.py:" in told
    assert "3 of 3 ranks had not ended after 8 s, their deadline" in told
    assert "rank 1 before the barrier" in told
    assert "most recent call first" in told, "the stacks of the ranks"


def test_who_came_to_the_end_of_the_test_is_no_riddle_and_pytest_timeout_leaves_time_to_ask(ran: Ran) -> None:
    told = ran.told("test_one_leaves")
    assert "one ahead of rank 1, which has come to the end of the test" in told
    assert "had not ended after 7 s" in told


def test_a_killed_rank_is_said(ran: Ran) -> None:
    told = ran.told("test_killed")
    assert "rank 1 of 2 failed first" in told
    assert "killed by SIGKILL" in told
    assert "before the end" in told


def test_skips(ran: Ran) -> None:
    assert ran.outcomes["test_skips"] == ran.outcomes["test_skipped_by_mark"] == "skipped"
    assert "needs NVLink" in ran.text
    told = ran.told("test_skips_on_one")
    assert "rank 0: skipped (only rank 0 does not want to)" in told
    assert "rank 1: passed" in told


def test_xfail(ran: Ran) -> None:
    assert ran.outcomes["test_xfails"] == "xfail"
    assert "[XPASS(strict)] thought to be wrong" in ran.told("test_passes_against_xfail")


def test_mistakes_of_the_marker_are_named(ran: Ran) -> None:
    expected = "@pytest.mark.ranks has no option 'deadlin', expected deadline, device, backend, init, env"
    assert expected in ran.told("test_misspelt")


def test_a_fixture_fails_where_it_runs(ran: Ran) -> None:
    told = ran.told("test_fixture_fails")
    assert "LookupError: no data set here" in told
    assert "failed first, in setup" in told


@pytest.fixture
def few(tmp_path: Path) -> Path:
    (tmp_path / "test_few.py").write_text(FEW)
    return tmp_path


def test_k_and_x(few: Path) -> None:
    ran = run(few, "-p", "no:xdist", "-k", "not 1", "-x")
    assert ran.outcomes == {"test_sum[2]": "passed", "test_wrong": "failed"}
    assert "stopping after 1 failures" in ran.text


def test_xdist(few: Path) -> None:
    ran = run(few, "-n", "2", "-k", "sum or wrong")
    assert ran.outcomes == {"test_sum[1]": "passed", "test_sum[2]": "passed", "test_wrong": "failed"}
    assert "--- rank 1 of 2 failed first ---" in ran.told("test_wrong")


def test_collect_only_starts_nothing(few: Path) -> None:
    ran = run(few, "--collect-only")
    assert ran.code == 0
    assert "<Function test_after[3ranks]>" in ran.text


def test_without_torch_it_says_so(few: Path) -> None:
    (few / "conftest.py").write_text(
        "import importlib.util\nfind = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'torch' else find(name, *rest)\n"
    )
    told = run(few, "-p", "no:xdist", "-k", "wrong").told("test_wrong")
    assert "@pytest.mark.ranks needs torch, which is not installed here" in told


def test_an_entry_point_and_p_are_one_plugin(few: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an installed package, whose files pytest then marks for the rewriting of their asserts."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    name, module = tomllib.loads(text)["project"]["entry-points"]["pytest11"].popitem()
    about = few / "site" / "installed-0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: installed\nVersion: 0\n")
    (about / "entry_points.txt").write_text(f"[pytest11]\n{name} = {module}\n")
    (about / "RECORD").write_text("dist_checks/__init__.py,,\nlaunch/__init__.py,,\n")
    monkeypatch.setenv("PYTHONPATH", f"{few / 'site'}:{os.environ.get('PYTHONPATH', '')}")
    for plugin in ("", PLUGIN):
        ran = run(few, "-p", "no:xdist", "-k", "test_sum and 1", plugin=plugin)
        assert ran.outcomes == {"test_sum[1]": "passed"}, ran.text
