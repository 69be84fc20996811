"""How tensors are spoken of."""

from __future__ import annotations

from dist_checks.trace import Kind


def subject(kind: Kind, count: int, of: int, *, past: bool = False) -> str:
    """``every gradient is``, ``1 gradient of 40 is``, ``3 of 40 gradients are``."""
    word = kind.value.replace("_", " ")
    one, many = ("was", "were") if past else ("is", "are")
    if count == of:
        return f"every {word} {one}"
    return f"1 {word} of {of} {one}" if count == 1 else f"{count} of {of} {word}s {many}"
