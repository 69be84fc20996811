"""The expression after ``-k``, as in pytest: parts of rung names with ``and``, ``or``, ``not`` and parentheses."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

Wanted = Callable[[str], bool]


def choose(expression: str, names: Sequence[str]) -> set[str]:
    """The names that the expression selects. A whole name, like ``tp2+sp``, selects this rung only.

    Raises ValueError, saying what was expected where.
    """
    if expression in names:
        return {expression}
    parser = _Parser(re.findall(r"[()]|[^\s()]+", expression))
    wanted = parser.either()
    if parser.rest:
        raise ValueError(f"unexpected '{parser.rest[0]}' in '{expression}'")
    return set(filter(wanted, names))


class _Parser:
    def __init__(self, words: list[str]) -> None:
        self.rest = words

    def _take(self, word: str) -> bool:
        if self.rest[:1] == [word]:
            self.rest = self.rest[1:]
            return True
        return False

    def either(self) -> Wanted:
        left = self.both()
        while self._take("or"):
            left = _or(left, self.both())
        return left

    def both(self) -> Wanted:
        left = self.one()
        while self._take("and"):
            left = _and(left, self.one())
        return left

    def one(self) -> Wanted:
        if self._take("not"):
            inner = self.one()
            return lambda name: not inner(name)
        if self._take("("):
            inner = self.either()
            if not self._take(")"):
                raise ValueError("a closing parenthesis is missing")
            return inner
        if not self.rest or self.rest[0] in (")", "and", "or"):
            where = f"before '{self.rest[0]}'" if self.rest else "at the end"
            raise ValueError(f"expected a part of a rung's name {where}")
        word, *self.rest = self.rest
        return lambda name: word in name


def _or(a: Wanted, b: Wanted) -> Wanted:
    return lambda name: a(name) or b(name)


def _and(a: Wanted, b: Wanted) -> Wanted:
    return lambda name: a(name) and b(name)
