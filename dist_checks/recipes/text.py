"""Real English that every Python has: Python's own manual, cut into short phrases of different lengths."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from pydoc_data.topics import topics

SHORTEST = 8

_PROSE = re.compile(r"[A-Z][a-z]* [a-z]")  # a paragraph that starts like a sentence; no code, no grammar
_CUT = re.compile(
    r"(?<=[.,;:?!)]) (?=[A-Za-z])"  # after punctuation
    r"| (?=(?:and|or|that|which|when|if|for|in|with|by|from|to|is|are) )"  # and where a clause or a phrase begins
)


def phrases(count: int, longest: int, shortest: int = SHORTEST, more: int = 0) -> list[bytes]:
    """The first ``count`` phrases, no two alike, of ``shortest`` to ``longest`` bytes: longer ones are cut off. Then
    up to ``more`` others.

    Raises ValueError when the manual has fewer.
    """
    found = list(islice(_phrases(longest, shortest), count + more))
    if len(found) < count:
        raise ValueError(f"options.samples ({count}) must be at most {len(found)}: the built-in text has no more")
    return found


def _phrases(longest: int, shortest: int) -> Iterator[bytes]:
    seen: set[str] = set()
    for name in sorted(topics):
        for paragraph in topics[name].split("\n\n"):
            if not _PROSE.match(paragraph) or "***" in paragraph:
                continue
            for whole in _CUT.split(" ".join(paragraph.split())):
                phrase = whole[:longest]
                if len(phrase) >= shortest and phrase.isascii() and phrase not in seen:
                    seen.add(phrase)
                    yield phrase.encode()
