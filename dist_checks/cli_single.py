"""The commands about one device: show-batch, replay, compare-models, explain."""

from __future__ import annotations

import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from dist_checks.asking import ask
from dist_checks.judging.modules import first_difference
from dist_checks.judging.replayed import sentences
from dist_checks.judging.triage import SYMPTOMS, find
from dist_checks.judging.verdict import ExitCode
from dist_checks.matrix import ConfigError, Matrix
from dist_checks.report import batch as pages

ALONE = "dist_checks.worker.alone"
Fault = Annotated[str, typer.Option("--fault", metavar="ID", help="plant this fault first", hidden=True)]


def show_batch(matrix: Matrix, validation: bool, fault: str) -> None:
    """What the model really receives: inputs over targets, token by token, after collation, packing and masking."""
    if matrix.command:
        raise ConfigError("show-batch: only a recipe says what it receives, and this is a script's own loop")
    asked = {
        "recipe": matrix.recipe,
        "options": matrix.options,
        "train": asdict(matrix.train),
        "seed": matrix.seeds[0],
        "validation": validation,
        **({"fault": fault} if fault else {}),
    }
    print(pages.page(ask(f"{ALONE}.showing:main", asked)))


def replay(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="replay.pt of a rung, or the rung's folder")],
    without: Annotated[list[int] | None, typer.Option("--without-sample", metavar="ID", help="leave it out")] = None,
    fault: Fault = "",
) -> None:
    """Run a saved step again by itself: does it repeat, and what makes the first number that is not finite?"""
    path = bundle / "replay.pt" if bundle.is_dir() else bundle
    if not path.is_file():
        raise ConfigError(
            f"{path}: there is no such bundle: one is saved where a step is not finite, or jumps while a rung learns"
        )
    asked = {"bundle": str(path.absolute()), "without": without or [], "fault": fault}
    seen = ask(f"{ALONE}.replaying:main", asked)
    for line in sentences(seen):
        print(line)
    raise typer.Exit(ExitCode.PASS if seen["same"] else ExitCode.FAIL)


def compare_models(
    reference: Annotated[str, typer.Argument(metavar="REFERENCE", help="package.module:function that builds a model")],
    mine: Annotated[str, typer.Argument(metavar="MINE", help="the same, of the other implementation")],
    names: Annotated[
        Path | None, typer.Option("--map", help="TOML: names of modules of mine = names of the reference's")
    ] = None,
    inputs: Annotated[str, typer.Option(help="package.module:function that gives the arguments of both")] = "",
    fault: Fault = "",
) -> None:
    """Same weights, one batch, float32: the first module where two implementations differ, then gradients."""
    mapped = _names(names) if names else {}
    asked = {"reference": reference, "mine": mine, "map": mapped, "inputs": inputs, "fault": fault}
    found = first_difference(ask(f"{ALONE}.comparing:main", asked))
    print(f"{found.status.name} {found.message}")
    for suspect in found.suspects[:3]:
        print(f"     suspect  {suspect}")
    if found.change:
        print(f"     next  {found.change}")
    raise typer.Exit(ExitCode.of(found.status))


def _names(path: Path) -> dict[str, str]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"--map: {path} cannot be read: {error}") from None
    flat = table.get("names", table)
    if not all(isinstance(name, str) for name in flat.values()):
        raise ConfigError(f'--map: {path}: expected lines such as "layers.0" = "blocks.0"')
    return dict(flat)


def explain(
    symptom: Annotated[list[str] | None, typer.Argument(help="a name, or words; none: all names")] = None,
) -> None:
    """What a symptom may be due to, the likeliest first, and the next single thing to do."""
    words = " ".join(symptom or ())
    if not words:
        for row in SYMPTOMS.values():
            print(f"{row.name:<20} {row.symptom}")
        return
    rows = find(words)
    if not rows:
        raise ConfigError(f"explain: nothing is known of {words!r}; dist-checks explain lists all symptoms")
    for row in rows:
        print(f"{row.name}: {row.symptom}")
        for number, suspect in enumerate(row.suspects.values(), 1):
            print(f"  {number}. {suspect}")
        print(f"  next: {row.change}")
