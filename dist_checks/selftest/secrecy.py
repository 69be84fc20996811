"""What ranks and launcher have left of a planted rung must not say that a fault was planted."""

from __future__ import annotations

import re
from pathlib import Path

READ = (".json", ".jsonl", ".collectives", ".log")
"""Of a rung's files, those with words in them. Digests are numbers."""


def told(run: Path, id: str, title: str) -> list[str]:
    """The files of a run's rungs that name the fault, or speak of faults at all."""
    # "rank_sleeps.py" is where a collective was called: so it would be in a file of the user's.
    named = rf"(?<![\w-]){re.escape(id)}(?![\w-]|\.py)"
    words = re.compile(rf"\bfaults?\b|\bplanted\b|{named}|{re.escape(title)}", re.IGNORECASE)
    return [
        str(path.relative_to(run))
        for path in sorted((run / "rungs").rglob("*"))
        if path.suffix in READ and words.search(_text(path).replace(str(run), ""))
    ]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")
