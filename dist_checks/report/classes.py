"""Of a recipe with classes, for the page: loss and accuracy of each, what is taken for what, the worst samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from dist_checks.report.visible import shorten, visible


def tables(health: Mapping[str, Any]) -> Markup:
    """Empty where there is nothing to count."""
    return _metrics(health) + _classes(health.get("classes") or {})


def _metrics(health: Mapping[str, Any]) -> Markup:
    seen = list(health.get("metrics") or ())
    if not seen:
        return Markup("")
    words = "; ".join(
        f"{visible(name)} {', '.join(f'{values[name]:.4g}' for _, values in seen if name in values)}"
        for name in seen[-1][1]
    )
    return Markup("<p>what the model is for, before and after: {}</p>").format(words)


def _classes(found: Mapping[str, Any]) -> Markup:
    if not found.get("counts"):
        return Markup("")
    names = [shorten(visible(name) or str(at), 40) for at, name in enumerate(found["names"])]
    rows = Markup("").join(
        Markup('<tr><th scope="row">{}</th><td class="figure">{}</td><td class="figure">{}</td></tr>').format(
            names[at], f"{found['right'][at]} of {count}", f"{found['losses'][at] / count:.3g}"
        )
        for at, count in enumerate(found["counts"])
        if count
    )
    taken = Markup("").join(
        Markup("<li>{} taken for {}: {} times</li>").format(names[label], names[guess], count)
        for label, guess, count in found.get("confusion") or ()
    )
    worst = Markup("").join(
        Markup("<li>sample {}: {} taken for {}, loss {}: {}</li>").format(
            each["id"], names[each["label"]], names[each["said"]], f"{each['loss']:.3g}", visible(each["text"])
        )
        for each in found.get("worst") or ()
        if each["said"] < len(names)
    )
    return Markup(
        '<details><summary>classes after learning</summary><div class="wide"><table><thead><tr><th scope="col">class'
        '</th><th scope="col" class="figure">right</th><th scope="col" class="figure">loss</th></tr></thead><tbody>{}'
        "</tbody></table></div><p>most frequent mistakes</p><ul>{}</ul><p>furthest off</p><ul>{}</ul></details>"
    ).format(rows, taken, worst)
