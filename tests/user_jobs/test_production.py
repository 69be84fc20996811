"""A job in production: the probe every so many steps, and a judge beside it."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

from jobs_of_users import HERE
from typer.testing import CliRunner

from dist_checks.cli import app
from dist_checks.following import code, follow
from dist_checks.judging.verdict import ExitCode
from launch.base import Job
from launch.local import LocalLauncher

EVERY = 20
STEP = "        optimizer.step()\n"
FLIPPED = STEP + "        if step == 120 and rank == 1:\n            raw_model.ln_f.weight.data[3] += 0.01\n"


def job(folder: Path, text: str, steps: int) -> Job:
    folder.mkdir()
    (folder / "train.py").write_text(text)
    return Job(
        name="job",
        folder=folder / "job",
        world_size=2,
        entry="dist_checks.worker.script:main",
        payload={
            "argv": [str(folder / "train.py"), "--steps", str(steps), "--batch", "4"],
            "see": "probe",
            "folder": str(folder / "trace"),
        },
        env={"DIST_CHECKS_TRACE": str(folder / "trace"), "DIST_CHECKS_EVERY": str(EVERY)},
        deadline=200.0,
    )


def test_a_weight_that_one_rank_changes_is_named_at_the_next_look(launcher: LocalLauncher, tmp_path: Path) -> None:
    text = (HERE / "nanogpt_ddp.py").read_text()
    assert STEP in text
    running = Thread(target=lambda: list(launcher.run([job(tmp_path / "run", text.replace(STEP, FLIPPED), 200)])))
    running.start()
    try:
        said: list[str] = []
        seen = follow(tmp_path / "run" / "trace", said.append, 0.2)
    finally:
        running.join()
    assert "replicas have parted at step 120: rank 1 (" in seen.wrong
    assert "holds another weight of ln_f.weight than rank 0" in seen.wrong
    assert "equal at step 100" in seen.wrong
    assert code(seen) == ExitCode.FAIL
    assert all(line.startswith("PASS 2 ranks agree") for line in said)
    result = CliRunner().invoke(app, ["judge", str(tmp_path / "run" / "trace")])
    assert result.exit_code == ExitCode.FAIL
    assert "FAIL replicas have parted at step 120: rank 1" in result.stdout


def test_a_healthy_job_agrees_to_its_end(launcher: LocalLauncher, tmp_path: Path) -> None:
    (exit,) = launcher.run([job(tmp_path / "run", (HERE / "nanogpt_ddp.py").read_text(), 50)])
    assert exit.state.value == "done", exit.error
    seen = follow(tmp_path / "run" / "trace", print, 0.1)
    assert not seen.wrong
    assert seen.steps == (0, 20, 40)
    assert code(seen) == ExitCode.PASS
