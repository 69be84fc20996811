"""Does the optimizer hold exactly the parameters that the model trains, each once?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dist_checks.judging.verdict import Blamed, Finding
from dist_checks.judging.view import RungView


def check(view: RungView) -> Iterator[Finding]:
    """Names and counts of the header. A parameter in a group that is none of the model's is a stale tensor: the
    optimizer was made before the model was wrapped, tied or rebuilt (huggingface/accelerate#3256)."""
    writer = view.writer("optimizer_covers")
    header = view.trace.header
    rows, groups = header.get("parameters") or (), header.get("optimizer") or ()
    if not rows or not groups:
        said = "the tables of parameters and of the optimizer were not recorded"
        yield writer.unseen(f"{said}: {view.trace.cut}") if view.trace.cut else writer.skipped(said)
        return
    trained = [str(row["name"]) for row in rows if row.get("trainable", True) and not row.get("tied")]
    tied = {str(row["name"]): str(row["tied"]) for row in rows if row.get("tied")}
    held = Counter(tied.get(name, name) if name else "" for group in groups for name in group.get("parameters") or ())
    strange = held.pop("", 0)
    missing = [name for name in trained if name not in held]
    twice = [name for name, count in held.items() if count > 1]
    fields = {"blames": Blamed.RECIPE, "symptom": "optimizer_wrong"}
    if strange:
        yield writer.failed(
            f"{strange} of the tensors that the optimizer steps are none of the model's; of the {len(trained)} "
            f"parameters that the model trains it misses {len(missing)}{_first(missing)}",
            **fields,
            tensor=missing[0] if missing else None,
            observed=strange,
            allowed=0,
            suspects=("stale",),
        )
    elif missing:
        yield writer.failed(
            f"the optimizer misses {len(missing)} of {len(trained)} parameters that the model trains{_first(missing)}",
            **fields,
            tensor=missing[0],
            observed=len(missing),
            allowed=0,
            suspects=("missing",),
        )
    elif twice:
        yield writer.failed(
            f"the optimizer holds {twice[0]} {held[twice[0]]} times",
            **fields,
            tensor=twice[0],
            observed=held[twice[0]],
            allowed=1,
            suspects=("twice",),
        )
    else:
        frozen = sum(not row.get("trainable", True) for row in rows)
        more = f"; {frozen} are frozen" if frozen else ""
        yield writer.passed(f"the optimizer holds the {len(trained)} parameters that the model trains, once each{more}")


def _first(names: list[str]) -> str:
    if not names:
        return ""
    return f": {', '.join(names[:3])}{' and others' if len(names) > 3 else ''}"
