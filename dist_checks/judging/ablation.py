"""One setting changed, the same seeds with and without it: is the difference more than the noise between seeds?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dist_checks.axes import Axis, Setting
from dist_checks.judging.blame import NOTHING_COMPARED
from dist_checks.judging.noise import OPEN, WITHIN, end, noise
from dist_checks.judging.verdict import Status, Verdict


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


def decide(verdict: Verdict, found: Sequence[Mapping[str, Any]]) -> Verdict:
    """Where nothing else was to be compared, the question was which of two settings is better: that is the verdict."""
    if not found or verdict.sentence != NOTHING_COMPARED:
        return verdict
    open_ = [each for each in found if each["verdict"] == OPEN]
    sentence = "; ".join(str(each["sentence"]) for each in open_ or found)
    status = Status.INCONCLUSIVE if open_ else Status.PASS
    return replace(verdict, status=status, sentence=f"{status.name} {sentence}")


def _ends(singles: Sequence[Mapping[str, Any]], setting: Setting) -> dict[int, float]:
    """By seed, the mean loss of the last steps of each single with that setting."""
    out = {}
    for rung in singles:
        value = end((rung.get("series") or {}).get("loss") or ())
        if Setting(rung["axes"]) == setting and value is not None:
            out[int(rung["seed"])] = value
    return out


def _changed(table: Mapping[str, Any]) -> Iterator[str]:
    for part in ("options", "train", "env"):
        for key in table.get(part) or {}:
            yield f"{part}.{key}"


def _compared(name: str, pairs: Sequence[tuple[float, float]], settings: list[str]) -> dict[str, Any]:
    seen = noise(pairs)
    said, verdict = f"custom.{name}: {seen.sentence}", seen.verdict
    if len(settings) > 1 and verdict not in (OPEN, WITHIN):
        verdict = OPEN
        said += f"; {', '.join(settings)} changed together, so it is due to none of them alone: change one at a time"
    return {
        "settings": settings,
        "seeds": seen.seeds,
        "base": seen.base,
        "changed": seen.changed,
        "difference": seen.difference,
        "noise": seen.noise,
        "verdict": verdict,
        "sentence": said,
    }
