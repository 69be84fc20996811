"""Text from a run, made safe to show: nothing in it can steer a terminal, reverse a line or break an XML file."""

from __future__ import annotations

NAME = 160
"""Longest name that is shown whole."""
MESSAGE = 4000
"""Longest message that is shown whole."""


def _escape(char: str) -> str:
    code = ord(char)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def visible(value: object, *, limit: int = NAME, lines: bool = False) -> str:
    """``str(value)`` with every character that is not printable as an escape, and the middle left out beyond ``limit``.

    Those are controls (ANSI escapes begin with one), formats (such as right-to-left override), lone surrogates, code
    points that are no characters, and all separators but the space. With ``lines``, line breaks stay line breaks.
    Tabs become two spaces.
    """
    text = value if isinstance(value, str) else str(value)
    if len(text) > limit:
        head, tail = limit * 2 // 3, limit // 3
        text = f"{text[:head]}[... {len(text) - head - tail} more characters ...]{text[-tail:]}"
    if text.isprintable():
        return text
    if lines:
        text = text.replace("\r\n", "\n")
    text = text.replace("\t", "  ")
    return "".join(char if char.isprintable() or (char == "\n" and lines) else _escape(char) for char in text)


def shorten(text: str, width: int) -> str:
    """At most ``width`` characters, the middle left out: the ends of a tensor's name say most."""
    if len(text) <= width:
        return text
    tail = (width - 2) // 2
    return f"{text[: width - 2 - tail]}..{text[len(text) - tail :]}"
