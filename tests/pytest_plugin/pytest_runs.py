"""Runs pytest in a process of its own, with the plugin, and reads what a user would read."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLUGIN = "dist_checks.pytest_plugin"
LINE = re.compile(r"^(?P<name>\S+::\S+) (?P<outcome>[A-Z]+)\b", re.MULTILINE)
XDIST_LINE = re.compile(r"^\[gw\d+\] \[[ \d/%]+\] (?P<outcome>[A-Z]+) (?P<name>\S+::\S+)", re.MULTILINE)
INI = "[pytest]\naddopts = --strict-markers --strict-config\nfilterwarnings = error\nconsole_output_style = count\n"


@dataclass(frozen=True)
class Ran:
    code: int
    text: str

    @cached_property
    def outcomes(self) -> dict[str, str]:
        """By what comes after the file."""
        found = [*LINE.finditer(self.text), *XDIST_LINE.finditer(self.text)]
        return {line["name"].partition("::")[2]: line["outcome"].lower() for line in found}

    def told(self, test: str) -> str:
        """What is told of a test that fails: its traceback and what was captured."""
        name = test.replace("::", ".")
        found = re.search(rf"^_+ {re.escape(name)} _+$\n(.*?)(?=^(?:_+ .+ _+|=+ .* =+)$)", self.text, re.M | re.S)
        assert found, f"{name} is not told of in:\n{self.text}"
        return found[1]


def run(folder: Path, *arguments: str, ini: str = INI, plugin: str = PLUGIN) -> Ran:
    """pytest in ``folder``; ``plugin`` '' for one that is registered otherwise."""
    (folder / "pytest.ini").write_text(ini)
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    env["PYTHONPATH"] = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
    loaded = ("-p", plugin) if plugin else ()
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "--basetemp", str(folder / "base"), *loaded, *arguments],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    return Ran(code=ended.returncode, text=ended.stdout + ended.stderr)
