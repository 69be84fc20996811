"""What the plugin calls its markers, ini options and parts by."""

from __future__ import annotations

RANKS = "ranks"
MATRIX = "dist_checks_matrix"
MATRICES = "dist_checks_matrices"
PRELOAD = "dist_checks_preload"
SIZE = "dist_checks_ranks"
"""The argument of a test that runs on several numbers of ranks."""
RUNG = "dist_checks_rung"
"""The fixture that goes through the rungs of a matrix."""
ON_RANK = "dist-checks-on-rank"
"""The plugin of a session that is itself on a rank: there the body is called, and nothing is started."""
VERDICT = "dist_checks_verdict"
"""What a report of a rung carries for the summary, from wherever it was made."""
SETTINGS = ("pyproject.toml", "pytest.toml", ".pytest.toml")
"""TOML files that are pytest's own."""
MARKERS = (
    f"{RANKS}(n, *more, deadline=300, device=None, backend=None, init=True, env={{}}): run fixtures and body of the "
    "test on n ranks with a process group; with several numbers, once for each",
    f"{MATRIX}(path): the matrix whose rungs the fixture {RUNG} goes through",
)
OPTIONS = "options.pickle"
"""In the folder of a job: the options of the session that started it."""
REPORT = "rank-{:05d}.report.json"
"""Beside it: what a rank has to tell."""
STRICT = "[XPASS(strict)]"
"""How pytest begins to tell of a test that passed where it was to fail."""
