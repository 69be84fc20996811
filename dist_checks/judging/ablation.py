"""One setting changed, the same seeds with and without it: is the difference more than the noise between seeds?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from dist_checks.axes import Axis, Setting

T = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}
"""Student's t by degrees of freedom, two-sided, at 0.95; 1.96 for more."""

LAST = 0.1
"""Part of the steps whose mean loss counts."""


def ablations(rungs: Iterable[Mapping[str, Any]], custom: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of ``[custom.NAME]`` with ``same = false``: singles with it against singles without, seed by seed.

    ``rungs`` are those of report.json with their ``seed``. ``{name, recipe, settings, seeds, base, changed, difference,
    noise, verdict, sentence}``: losses are means over seeds, ``noise`` is what the mean difference has to exceed; the
    verdict is lower, higher, within noise, or not decided.
    """
    singles = [rung for rung in rungs if rung["role"] == "single"]
    out = []
    for name, table in custom.items():
        if table.get("same", True):
            continue
        for recipe in dict.fromkeys(rung.get("recipe", "") for rung in singles):
            mine = [rung for rung in singles if rung.get("recipe", "") == recipe]
            with_it = _ends(mine, Setting({Axis.CUSTOM: name}))
            without = _ends(mine, Setting())
            pairs = [(without[seed], with_it[seed]) for seed in sorted(set(with_it) & set(without))]
            if pairs:
                out.append({"name": name, "recipe": recipe, **_compared(name, pairs, list(_changed(table)))})
    return out


def _ends(singles: Sequence[Mapping[str, Any]], setting: Setting) -> dict[int, float]:
    """By seed, the mean loss of the last steps of each single with that setting."""
    out = {}
    for rung in singles:
        values = [x for x in (rung.get("series") or {}).get("loss") or () if isinstance(x, float) and math.isfinite(x)]
        if Setting(rung["axes"]) == setting and values:
            out[int(rung["seed"])] = fmean(values[-max(1, int(LAST * len(values))) :])
    return out


def _changed(table: Mapping[str, Any]) -> Iterator[str]:
    for part in ("options", "train", "env"):
        for key in table.get(part) or {}:
            yield f"{part}.{key}"


def _compared(name: str, pairs: Sequence[tuple[float, float]], settings: list[str]) -> dict[str, Any]:
    differences = [changed - base for base, changed in pairs]
    base, changed, difference = (
        fmean(a for a, _ in pairs),
        fmean(b for _, b in pairs),
        fmean(differences),
    )
    noise = math.inf
    if len(pairs) > 1:
        noise = T.get(len(pairs) - 1, 1.96) * stdev(differences) / math.sqrt(len(pairs))
    said = f"custom.{name}: loss {changed:.4g} against {base:.4g}"
    if len(pairs) < 2:
        verdict = "not decided"
        said += f", {_apart(difference)}; one seed does not tell a difference from noise: repeat = 3 would"
    elif abs(difference) <= noise:
        verdict = "within noise"
        said += f", within noise ({_apart(difference)}, {noise:.2g} between {len(pairs)} seeds)"
    else:
        verdict = "lower" if difference < 0 else "higher"
        said += f", {_apart(difference)} over {len(pairs)} seeds (noise {noise:.2g})"
    if len(settings) > 1 and verdict in ("lower", "higher"):
        verdict = "not decided"
        said += f"; {', '.join(settings)} changed together, so it is due to none of them alone: change one at a time"
    return {
        "settings": settings,
        "seeds": len(pairs),
        "base": base,
        "changed": changed,
        "difference": difference,
        "noise": noise,
        "verdict": verdict,
        "sentence": said,
    }


def _apart(difference: float) -> str:
    return f"{abs(difference):.2g} {'lower' if difference < 0 else 'higher'}"
