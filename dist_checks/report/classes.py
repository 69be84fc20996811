"""Of a recipe with classes, for the page: loss and accuracy of each, what is taken for what, the worst samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    return Markup(
        '<details><summary>classes after learning</summary><div class="wide"><table><thead><tr><th scope="col">class'
        '</th><th scope="col" class="figure">right</th><th scope="col" class="figure">loss</th></tr></thead><tbody>{}'
        "</tbody></table></div>{}<p>most frequent mistakes</p><ul>{}</ul><p>furthest off</p><ul>{}</ul></details>"
    ).format(rows, _matrix(names, found.get("matrix") or ()), taken, _worst(names, found.get("worst") or ()))


def _matrix(names: Sequence[str], matrix: Sequence[Sequence[int]]) -> Markup:
    """A row for each label, a column for what was said."""
    if not matrix:
        return Markup("")
    head = Markup("").join(Markup('<th scope="col" class="figure">{}</th>').format(name) for name in names)
    rows = Markup("").join(
        Markup('<tr><th scope="row">{}</th>{}</tr>').format(
            names[at], Markup("").join(Markup('<td class="figure">{}</td>').format(count or "") for count in row)
        )
        for at, row in enumerate(matrix)
        if any(row)
    )
    return Markup(
        '<div class="wide"><table><caption>rows are labels, columns what was said</caption><thead><tr><th scope="col">'
        "</th>{}</tr></thead><tbody>{}</tbody></table></div>"
    ).format(head, rows)


def _worst(names: Sequence[str], worst: Sequence[Mapping[str, Any]]) -> Markup:
    """Grouped by what was taken for what, the group with the worst of all first."""
    kinds: dict[tuple[int, int], list[Mapping[str, Any]]] = {}
    for each in worst:
        if max(each["label"], each["said"]) < len(names):
            kinds.setdefault((each["label"], each["said"]), []).append(each)
    return Markup("").join(
        Markup("<li>{} taken for {}<ul>{}</ul></li>").format(
            names[label],
            names[said],
            Markup("").join(
                Markup("<li>sample {}{}, loss {}: {}</li>").format(
                    each["id"],
                    "" if each.get("at") is None else f" at token {each['at']}",
                    f"{each['loss']:.3g}",
                    visible(each["text"]),
                )
                for each in group
            ),
        )
        for (label, said), group in kinds.items()
    )
