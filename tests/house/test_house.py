"""The house keeps its own rules: imports, file sizes, docstrings, exports."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("dist_checks", "launch")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
TORCH_FREE = (
    "dist_checks",
    "dist_checks.judging",
    "dist_checks.judging.judge",
    "dist_checks.report",
    "dist_checks.session",
    "dist_checks.cli",
    "dist_checks.doctor",
    "dist_checks.pytest_plugin",
    "dist_checks.pytest_plugin.collecting",
    "dist_checks.pytest_plugin.ranks",
    "launch",
    "launch.local",
)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_a_file_is_one_idea(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 400, "split it: a file is seldom over 300 lines"
    assert path.name not in ("utils.py", "types.py", "helpers.py", "common.py")
    if text.strip():
        assert ast.get_docstring(ast.parse(text)), "a module says in one sentence what it is for"


def imports_torch(module: str) -> bool:
    """In a child process: is torch there after importing the module?"""
    code = f"import sys, {module}; sys.exit(3 if 'torch' in sys.modules else 0)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode in (0, 3), ended.stderr
    return ended.returncode == 3


@pytest.mark.parametrize("module", TORCH_FREE)
def test_the_judge_side_imports_no_torch(module: str) -> None:
    assert not imports_torch(module)


def test_and_this_would_be_seen() -> None:
    assert imports_torch("dist_checks.worker.entry")


def test_the_harness_imports_in_time_for_a_prompt() -> None:
    """Heavy libraries come in when they are needed: a page writer is not needed to print the help."""
    code = "import sys, dist_checks; sys.exit(bool({'numpy', 'pydantic', 'rich', 'jinja2'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)


def test_the_pytest_plugin_costs_nothing_where_nobody_uses_it() -> None:
    """It is loaded in every pytest run of whoever has the package."""
    code = "import sys, pytest; had = {*sys.modules}; import dist_checks.pytest_plugin; print(*{*sys.modules} - had)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert set(ended.stdout.split()) == {"dist_checks", "dist_checks.pytest_plugin", "dist_checks.pytest_plugin.names"}


def test_exports_are_what_is_promised() -> None:
    import dist_checks

    for exported in dist_checks.__all__:
        assert getattr(dist_checks, exported) is not None
    with pytest.raises(AttributeError, match="no_such_thing"):
        dist_checks.no_such_thing  # noqa: B018 (the access is the test)


WORKER = ROOT / "dist_checks" / "worker"
FAULTS = sorted([*(WORKER / "faults").rglob("*.py"), *(WORKER / "mutations").rglob("*.py")])
UNTOUCHED = ("dist_checks.probe", "dist_checks.trace", "dist_checks.judging", "dist_checks.report")


def imported(path: Path) -> set[str]:
    """Every module that a file names in an import, and every name that it takes from one."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("path", FAULTS, ids=name)
def test_a_fault_touches_neither_probe_nor_trace_nor_checks(path: Path) -> None:
    reached = [module for module in imported(path) if module.startswith(UNTOUCHED)]
    assert not reached, "a fault cannot be recognised, only detected"
    assert ".probe" not in path.read_text(encoding="utf-8"), "nor through the trainer's own probe"


def test_and_an_import_of_the_probe_would_be_seen(tmp_path: Path) -> None:
    path = tmp_path / "fault.py"
    path.write_text("def plant():\n    from dist_checks import probe\n")
    assert "dist_checks.probe" in imported(path)


@pytest.fixture(scope="module")
def patched() -> dict[str, list[str]]:
    """Of each fault: what it changes of probe, trace and judge when it is planted, in a process of their own."""
    script = Path(__file__).with_name("planted_patches.py")
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=600, check=True)
    found: dict[str, list[str]] = json.loads(ended.stdout.splitlines()[-1])
    return found


def test_no_fault_that_is_planted_changes_probe_trace_or_checks(patched: dict[str, list[str]]) -> None:
    assert len(patched) > 60
    assert not {fault: names for fault, names in patched.items() if names and fault != "probe"}


def test_and_a_fault_that_patches_the_probe_would_be_seen(patched: dict[str, list[str]]) -> None:
    assert "dist_checks.probe.recorder.Recorder.gradients" in patched["probe"]
