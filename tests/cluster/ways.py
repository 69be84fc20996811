"""The six ways to run one matrix: here, on Slurm from outside and inside, on Ray alone, in a cluster and as a job."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import raying
from clusters import MATRIX, PYTHON, ROOT, dist_checks, environment, exit_code, in_allocation, wait_until

Words = Sequence[str]


@contextmanager
def slurm() -> Iterator[str]:
    """A Slurm of four nodes in a folder of its own; the path of its configuration, which stands in $SLURM_CONF, too."""
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        env = {**os.environ, "SLURM_DEV": folder}
        up = subprocess.run([ROOT / "slurm/dev/up"], env=env, capture_output=True, text=True, timeout=120, check=False)
        assert up.returncode == 0, up.stderr
        os.environ["SLURM_CONF"] = conf = up.stdout.strip().removeprefix("export SLURM_CONF=")
        try:
            yield conf
        finally:
            del os.environ["SLURM_CONF"]
            subprocess.run([ROOT / "slurm/dev/down"], env=env, capture_output=True, timeout=60, check=True)
            Path(folder).mkdir(exist_ok=True)


def local(out: Path, words: Words = (), matrix: Path = MATRIX) -> int:
    """The exit code, as of all of these."""
    return dist_checks("run", matrix, *words, "--out", out).returncode


def outside(out: Path, words: Words = (), matrix: Path = MATRIX) -> int:
    """Submitted, followed and judged by the one who submits."""
    return dist_checks("run", matrix, "--launcher", "slurm", "--slurm", "mem=2000", *words, "--out", out).returncode


def inside(out: Path, words: Words = (), matrix: Path = MATRIX) -> int:
    """By the batch script that users submit."""
    return exit_code(in_allocation(out, matrix, *words))


def embedded(out: Path, words: Words = (), matrix: Path = MATRIX) -> int:
    """Ray for the time of the run."""
    return dist_checks("run", matrix, "--launcher", "ray", *words, "--out", out).returncode


def clustered(made: raying.Cluster, out: Path, words: Words = (), matrix: Path = MATRIX) -> int:
    """From a machine of a running Ray cluster."""
    given = ("--launcher", "ray", "--ray", f"address={made.address}")
    return dist_checks("run", matrix, *given, *words, "--out", out).returncode


def as_job(made: raying.Cluster, out: Path, words: Words = (), matrix: Path = MATRIX) -> int:
    """By Ray's job server; the exit code of the driver."""
    from ray.job_submission import JobSubmissionClient

    client = JobSubmissionClient(made.dashboard)
    command = [*PYTHON, "run", str(matrix), "--launcher", "ray", "--out", str(out), *words]
    job = client.submit_job(
        entrypoint=" ".join(f"'{word}'" for word in command),
        runtime_env={"env_vars": {"PYTHONPATH": environment()["PYTHONPATH"]}},
    )
    wait_until(lambda: client.get_job_status(job).is_terminal(), 800)
    code = client.get_job_info(job).driver_exit_code
    return -1 if code is None else code
