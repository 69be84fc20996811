"""The table of triage: what a symptom may be due to, the likeliest first, and the next single thing to do."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    """One row."""

    name: str
    symptom: str
    suspects: Mapping[str, str]
    """In the order in which they are looked at."""
    change: str
    """The next single thing to change or to look at."""

    def ordered(self, first: Iterable[str] = ()) -> tuple[str, ...]:
        """The suspects in words; those of ``first``, keys or words of their own, before all others."""
        known = [self.suspects.get(each, each) for each in first]
        return tuple(dict.fromkeys([*known, *self.suspects.values()]))


def _read() -> dict[str, Symptom]:
    table = tomllib.loads(files(__package__).joinpath("triage.toml").read_text(encoding="utf-8"))
    return {
        name: Symptom(name=name, symptom=row["symptom"], suspects=row["suspects"], change=row["next"])
        for name, row in table.items()
    }


SYMPTOMS: Mapping[str, Symptom] = _read()


def find(words: str) -> list[Symptom]:
    """By name, or all rows that hold each of the words."""
    if words in SYMPTOMS:
        return [SYMPTOMS[words]]
    wanted = words.lower().replace("_", " ").split()

    def text(row: Symptom) -> str:
        return " ".join((row.name.replace("_", " "), row.symptom, *row.suspects.values())).lower()

    return [row for row in SYMPTOMS.values() if all(word in text(row) for word in wanted)]
