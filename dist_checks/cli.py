"""The command ``dist-checks``."""

from __future__ import annotations

import json
import os
import shlex
import sys
import tomllib
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from dist_checks import cli_single, following, resuming, session, site
from dist_checks import doctor as doctoring
from dist_checks.command import HOOKS
from dist_checks.diffs import between_seeds, diffs
from dist_checks.judging.verdict import ExitCode
from dist_checks.launching import submits
from dist_checks.matrix import SAMPLE, ConfigError, Matrix, load, parse, preset
from dist_checks.report import ladder, table, tensorboard, terminal
from dist_checks.report.visible import MESSAGE, visible
from dist_checks.run_folder import new_folder
from dist_checks.submitting import run_there, settle, submitted
from dist_checks.sweep import sweep
from launch.scontrol import expand

app = typer.Typer(
    name="dist-checks",
    help="Says which parallelism axis broke a training job, before the job is scaled up.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

MatrixFile = Annotated[
    Path | None, typer.Argument(metavar="[matrix.toml]", help="default: ./matrix.toml, else the quick preset")
]
Preset = Annotated[str, typer.Option("--preset", help="a matrix that comes with the package: quick")]
Select = Annotated[str, typer.Option("-k", metavar="EXPR", help="only rungs whose name matches, as in pytest")]
Steps = Annotated[int | None, typer.Option("--steps", min=1, help="instead of the number in the matrix")]
Where = Annotated[Literal["local", "slurm", "ray"] | None, typer.Option("--launcher", help="where ranks run")]
SlurmOptions = Annotated[
    list[str] | None, typer.Option("--slurm", metavar="KEY=VALUE", help="as in [launch.slurm]: --slurm partition=gpu")
]
RayOptions = Annotated[
    list[str] | None, typer.Option("--ray", metavar="KEY=VALUE", help="as in [launch.ray]: --ray address=auto")
]
Address = Annotated[str, typer.Option("--address", help="of a Ray cluster: as --ray address=...")]
Nodelist = Annotated[str, typer.Option("--nodelist", help="use only these nodes of a cluster: n1,n[3-4]")]
Strict = Annotated[bool, typer.Option("--strict", help="exit with 1, not 3, where something could not be observed")]
Json = Annotated[bool, typer.Option("--json", help="print report.json instead of the summary")]
TensorBoard = Annotated[
    Path | None, typer.Option("--tensorboard", metavar="DIR", help="also write the curves of each rung as event files")
]


@app.command()
def init(path: Annotated[Path, typer.Argument(help="where to write it")] = Path("matrix.toml")) -> None:
    """Write a matrix.toml to start from."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(SAMPLE.read_text(encoding="utf-8"))
    except FileExistsError:
        raise ConfigError(f"{path}: this file exists, and is not overwritten") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None
    print(f"{path} written; next: dist-checks plan {path}")


@app.command()
def doctor(
    matrix: MatrixFile = None,
    launcher: Where = None,
    every_node: Annotated[
        bool, typer.Option("--every-node", help="known products and sums on each node and each pair of neighbours")
    ] = False,
    slurm: SlurmOptions = None,
    ray: RayOptions = None,
    nodelist: Nodelist = "",
    fault: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Say what works on this machine (torch, collectives, warm starts), or on every node of a cluster."""
    if every_node:
        placed = _placed(_matrix(matrix, "", None)[0], launcher, slurm, ray, nodelist)
        if submits(placed):
            words = ["doctor", "--launcher", "slurm", "--every-node", *(["--fault", fault] if fault else [])]
            raise typer.Exit(run_there(placed, words))
        checks = sweep(placed, fault)
    else:
        checks = doctoring.examine()
    for check in checks:
        print(f"{'ok' if check.ok else 'NOT OK':<7} {check.what:<22} {check.seen}")
    raise typer.Exit(ExitCode.PASS if all(check.ok for check in checks) else ExitCode.FAIL)


@app.command()
def plan(
    matrix: MatrixFile = None,
    preset: Preset = "",
    select: Select = "",
    steps: Steps = None,
    launcher: Where = None,
    slurm: SlurmOptions = None,
    ray: RayOptions = None,
) -> None:
    """Show the rungs, what they are compared with, what they cost and where, and what is left out and why."""
    chosen, _, _ = _matrix(matrix, preset, steps)
    placed = _placed(chosen, launcher, slurm, ray, "")
    made = session.plan(placed, select=select)
    print(ladder.render(made.to_json(), session.last_seconds()))
    if placed.launch.launcher != "local":
        print(session.afford(placed, made))


@app.command()
def run(
    matrix: MatrixFile = None,
    preset: Preset = "",
    launcher: Where = None,
    select: Select = "",
    failed: Annotated[bool, typer.Option("--failed", help="only the rungs that failed in runs/latest")] = False,
    fault: Annotated[
        str, typer.Option(metavar="ID", help="plant this fault on the ranks: the verdict must name it")
    ] = "",
    out: Annotated[Path | None, typer.Option(help="the run's folder; default runs/<time>_<name>")] = None,
    steps: Steps = None,
    slurm: SlurmOptions = None,
    ray: RayOptions = None,
    address: Address = "",
    nodelist: Nodelist = "",
    most: Annotated[
        float | None, typer.Option("--max-device-hours", help="refuse a plan that is estimated to need more")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="slurm: submit, and do not wait")] = False,
    failed_in: Annotated[Path | None, typer.Option(hidden=True)] = None,
    events: TensorBoard = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="run only what is missing of a run that was cut short")
    ] = None,
    strict: Strict = False,
    as_json: Json = False,
) -> None:
    """Run the ladder, judge it, write the report."""
    if resume:
        if (
            matrix
            or preset
            or select
            or failed
            or out
            or steps
            or launcher
            or slurm
            or ray
            or address
            or detach
            or most
        ):
            raise ConfigError("--resume takes the matrix and all choices of the run itself: give --fault at most")
        outcome = resuming.resume(resume, fault=fault or None, show=terminal.progress)
        _print(outcome.report, resume, as_json, events)
        raise typer.Exit(outcome.exit_code(strict=strict))
    chosen, text, given = _matrix(matrix, preset, steps)
    ray = [*(ray or ()), f"address={address}"] if address else ray
    placed = _placed(chosen, launcher, slurm, ray, nodelist)
    if most is not None:
        placed = replace(placed, launch=replace(placed.launch, max_device_hours=most))
    asked: dict[str, Any] = {
        "out": out,
        "select": select,
        "failed_in": failed_in or (Path("runs/latest").resolve() if failed else None),
        "fault": fault or None,
        "source": text if placed == chosen else None,
        "given": given,
    }
    if detach and not submits(placed):
        raise ConfigError("--detach: only a run that is submitted to Slurm goes on by itself")
    if detach:
        folder = session.submit(placed, **asked, note=lambda words: print(words, file=sys.stderr))
        print(f"Slurm job {submitted(folder)} submitted; when it is over: dist-checks judge {folder}")
        raise typer.Exit(ExitCode.PASS)
    outcome = session.run(placed, **asked, show=terminal.progress)
    _print(outcome.report, outcome.folder, as_json, events)
    raise typer.Exit(outcome.exit_code(strict=strict))


@app.command()
def selftest(
    faults: Annotated[str, typer.Option(metavar="IDS", help="only these, with commas: O22,O26; or none")] = "",
    mutants: Annotated[
        str, typer.Option(metavar="N", help="how many mutants of collectives and states at most, or all")
    ] = "0",
    healthy: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="also run N healthy rungs over ten seeds, and what looks like a mistake"),
    ] = 0,
    sizes: Annotated[
        bool, typer.Option("--sizes", help="also plant perturbations just above and below the sizes that reports state")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="which mutants, where there are more")] = 0,
    out: Annotated[Path | None, typer.Option(help="where the runs are left; default runs/<time>_selftest")] = None,
    as_json: Json = False,
) -> None:
    """Plant every known fault, one at a time: was it caught, and blamed rightly? Did healthy runs raise nothing?"""
    from dist_checks import selftest as testing

    if mutants != "all" and not mutants.isdecimal():
        raise ConfigError(f"--mutants: expected a number or all, not '{mutants}'")
    folder = new_folder("selftest", out)
    most = None if mutants == "all" else int(mutants)
    test = testing.run(
        folder,
        faults=faults,
        mutants=most,
        healthy=healthy,
        sizes=sizes,
        seed=seed,
        note=lambda line: print(line, flush=True),
    )
    (folder / "selftest.json").write_text(json.dumps(test.to_json(), indent=1) + "\n", encoding="utf-8")
    if as_json:
        print(json.dumps(test.to_json(), indent=1))
    if test.healthy:
        margins = testing.margins(test.healthy["margins"])
        (folder / "margins.md").write_text(margins, encoding="utf-8")
        print(f"margins    {folder / 'margins.md'}")
    for alarm in (*test.false_alarms, *test.missed):
        print(alarm)
    print(f"data       {folder / 'selftest.json'}")
    print(testing.sentence(test))
    raise typer.Exit(ExitCode.PASS if test.holds else ExitCode.FAIL)


@app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def attach(
    words: Annotated[list[str], typer.Argument(metavar="-- train.py ...", help="the script, its arguments")],
) -> None:
    """Run a script with the probe in it, no line changed: on every rank, under torchrun or any launcher.

    It writes to the folder $DIST_CHECKS_TRACE, and without it changes nothing."""
    os.execv(sys.executable, [sys.executable, "-m", HOOKS, *words])


@app.command()
def judge(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="a run's folder")] = Path("runs/latest"),
    strict: Strict = False,
    as_json: Json = False,
    follow: Annotated[bool, typer.Option("--follow", help="of a job's trace: look again, until the job ends")] = False,
    interval: Annotated[float, typer.Option("--interval", metavar="SECONDS", help="between two looks")] = 10.0,
) -> None:
    """Judge a stored run again, without torch, and write its report again; or the trace of a job in production."""
    if follow or following.is_trace(folder):
        seen = following.follow(folder, print, interval) if follow else following.once(folder)
        print(json.dumps(seen.to_json(), indent=1) if as_json else seen.sentence)
        raise typer.Exit(following.code(seen))
    if (job := settle(folder)) is not None and not job.over:
        print(f"{job.words}: judging what has ended by now", file=sys.stderr)
    outcome = session.Outcome(report=session.judge(folder), folder=folder)
    _print(outcome.report, folder, as_json)
    raise typer.Exit(outcome.exit_code(strict=strict))


@app.command()
def diff(
    a: Annotated[Path, typer.Argument(metavar="RUN_A", help="a run's folder, or that of one trace: RUN/rungs/tp2")],
    b: Annotated[Path, typer.Argument(metavar="RUN_B")],
    as_json: Annotated[bool, typer.Option("--json", help="print all of it as JSON")] = False,
) -> None:
    """Where do two runs first differ, of any layouts, from any place and time? And which of their settings do?"""
    found, seeds = diffs(a, b), between_seeds(a, b)
    if as_json:
        told = {name: each.to_json() for name, each in found.items()}
        told |= {name: told[name] | {"seeds": each.to_json()} for name, each in seeds.items() if name in told}
        print(json.dumps(told, indent=1, default=str))
    else:
        for name, each in found.items():
            print(f"{'same' if each.same else 'DIFFERS' if each.compared else '?':<8} {name}: {each.sentence}")
            if each.warning:
                print(f"{'':<8} {each.warning}")
        for name, noise in seeds.items():
            if noise.difference:
                print(f"{'seeds':<8} {name}: {noise.sentence}")
    if any(each.first is not None for each in found.values()):
        raise typer.Exit(ExitCode.FAIL)
    raise typer.Exit(ExitCode.PASS if all(each.same for each in found.values()) else ExitCode.INCONCLUSIVE)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="a run's folder")] = Path("runs/latest"),
    as_json: Json = False,
    as_table: Annotated[bool, typer.Option("--table", help="print a Markdown table of the rungs instead")] = False,
    events: TensorBoard = None,
) -> None:
    """Write the pages of a judged run again, and print its summary."""
    written = session.pages(folder)
    if as_table:
        print(table.render(written), end="")
    else:
        _print(written, folder, as_json, events)


@app.command("show-batch")
def show_batch(
    matrix: MatrixFile = None,
    preset: Preset = "",
    validation: Annotated[bool, typer.Option("--validation", help="validation samples instead")] = False,
    fault: cli_single.Fault = "",
) -> None:
    """What the model really receives: inputs over targets, token by token, after collation, packing and masking."""
    cli_single.show_batch(_matrix(matrix, preset, None)[0], validation, fault)


app.command()(cli_single.replay)
app.command("compare-models")(cli_single.compare_models)
app.command()(cli_single.explain)


def _matrix(path: Path | None, name: str, steps: int | None) -> tuple[Matrix, str | None, str]:
    """The matrix that is asked for, its text where it is a file and nothing overrides it, and how it was named."""
    if path and name:
        raise ConfigError(f"give either a file ({path}) or --preset ({name})")
    if path is None and not name and Path("matrix.toml").is_file():
        path = Path("matrix.toml")
    matrix = load(path) if path else preset(name or "quick")
    given = shlex.quote(str(path)) if path else f"--preset {name or 'quick'}"
    if steps:
        return replace(matrix, steps=steps), None, given
    return matrix, path.read_text(encoding="utf-8") if path else None, given


def _placed(
    matrix: Matrix,
    launcher: Literal["local", "slurm", "ray"] | None,
    slurm: Sequence[str] | None,
    ray: Sequence[str] | None,
    nodelist: str,
) -> Matrix:
    """With what the command line says about where it runs."""
    data = tomllib.loads(matrix.to_toml())
    launch = data.setdefault("launch", {})
    for name, words in (("slurm", slurm), ("ray", ray)):
        try:
            launch[name] = {**launch.get(name, {}), **dict(site.given(list(words or ())))}
        except ValueError as error:
            raise ConfigError(f"--{name}: {error}") from None
    launch |= {"launcher": launcher} if launcher else {}
    launch |= {"nodelist": expand(nodelist)} if nodelist else {}
    return parse(data, source="the command line") if launcher or slurm or ray or nodelist else matrix


def _print(report: dict[str, object], folder: Path, as_json: bool, events: Path | None = None) -> None:
    if events is not None:
        try:
            tensorboard.write(report, events)
        except OSError as error:
            raise ConfigError(f"--tensorboard: {error.filename} cannot be written: {error.strerror}") from None
    if as_json:
        json.dump(report, sys.stdout, indent=1)
        print()
    else:
        terminal.summary(report, sys.stdout, links={"page": folder / "report.html", "data": folder / "report.json"})


def main() -> None:
    """Entry point of the console script: every ending has its exit code."""
    try:
        code = app(standalone_mode=False) or ExitCode.PASS
    except (ConfigError, typer.TyperException) as error:
        print(visible(error, limit=MESSAGE, lines=True), file=sys.stderr)
        code = ExitCode.USAGE
    except (KeyboardInterrupt, typer.Abort):
        code = ExitCode.INTERRUPTED
    except Exception:
        traceback.print_exc()
        print("dist-checks itself broke: this is a bug of the harness, not of your job", file=sys.stderr)
        code = ExitCode.BROKEN
    sys.exit(code)
