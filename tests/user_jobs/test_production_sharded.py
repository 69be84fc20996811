"""Jobs in production whose weights are cut, by FSDP2 and tensor parallelism or by ZeRO: ranks that hold the same part
have to agree, and those whose gradients are averaged read samples of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs_of_users import HERE
from parts import need

from dist_checks.following import code, follow
from dist_checks.judging.production import Look
from dist_checks.judging.verdict import ExitCode
from launch.base import Job
from launch.local import LocalLauncher

EVERY = 4
FSDP2 = ("fsdp2_tp.py", "--tp 2 --steps 6", 4)
ZERO = ("deepspeed_zero.py", "--zero 2 --steps 6", 2)
STEP = "            optimizer.step()\n"
NORM = """            if step == 4 and int(os.environ["RANK"]) == 3:
                model.norm.weight.data._local_tensor[1] += 0.01
"""
ENGINE = "            engine.step()\n"
HEAD = """            if rank == 1 and engine.global_steps == 5:
                engine.module.head.weight.data[0, 0] += 0.01
"""


def watch(
    job: tuple[str, str, int], launcher: LocalLauncher, folder: Path, mistake: tuple[str, str] | None = None
) -> Look:
    script, words, ranks = job
    text = (HERE / script).read_text()
    if mistake:
        assert mistake[0] in text
        text = text.replace(*mistake)
    (folder / script).write_text(text)
    trace = folder / "trace"
    order = Job(
        name="job",
        folder=folder / "job",
        world_size=ranks,
        entry="dist_checks.worker.script:main",
        payload={"argv": [str(folder / script), *words.split()], "see": "probe", "folder": str(trace)},
        env={"DIST_CHECKS_TRACE": str(trace), "DIST_CHECKS_EVERY": str(EVERY)},
        deadline=200.0,
    )
    (exit,) = launcher.run([order])
    assert exit.state.value == "done", exit.error
    return follow(trace, print, 0.1)


@pytest.mark.parametrize("job", [FSDP2, ZERO, (ZERO[0], "--zero 3 --steps 6", 2)])
def test_healthy(job: tuple[str, str, int], launcher: LocalLauncher, tmp_path: Path) -> None:
    if job[0] == ZERO[0]:
        need("deepspeed")
    seen = watch(job, launcher, tmp_path)
    assert seen.steps == (0, 4)
    assert "60 samples of the first steps read twice" in seen.sentence or "120 samples" in seen.sentence, seen.sentence
    assert code(seen) == ExitCode.PASS


def test_a_norm_that_one_tensor_parallel_rank_changes(launcher: LocalLauncher, tmp_path: Path) -> None:
    """Its shard is of FSDP, and the other rank of the tensor-parallel group holds it too."""
    seen = watch(FSDP2, launcher, tmp_path, (STEP, STEP + NORM))
    assert "replicas have parted at step 4: rank 3 (" in seen.wrong
    assert "holds another weight of norm.weight than rank 2" in seen.wrong
    assert code(seen) == ExitCode.FAIL


def test_a_weight_that_one_rank_of_zero_changes(launcher: LocalLauncher, tmp_path: Path) -> None:
    need("deepspeed")
    seen = watch(ZERO, launcher, tmp_path, (ENGINE, ENGINE + HEAD))
    assert "replicas have parted at step 4: rank 1 (" in seen.wrong
    assert "holds another weight of head.weight than rank 0" in seen.wrong


@pytest.mark.parametrize(
    ("job", "right", "wrong", "words"),
    [
        (FSDP2, "dp_rank, seed", "0, seed", "ranks 0 and 2 both read 6 of 6 samples at step 0"),
        (
            FSDP2,
            "dp, dp_rank, seed",
            "dist.get_world_size(), dist.get_rank(), seed",
            "ranks 0 and 1 hold parts of the same layers (tensor parallelism) and read different samples at step 0",
        ),
        (("nanogpt_ddp.py", "--steps 6", 2), "starts[rank::world]", "starts[0::world]", "ranks 0 and 1 both read 6 of"),
        (
            ("nanogpt_ddp.py", "--steps 6", 2),
            "starts[rank::world]",
            "starts[rank * (step != 2) :: world]",
            "ranks 0 and 1 both read 6 of 6 samples at step 2, and their gradients are averaged",
        ),
    ],
)
def test_ranks_that_read_what_they_should_not(
    job: tuple[str, str, int], right: str, wrong: str, words: str, launcher: LocalLauncher, tmp_path: Path
) -> None:
    """k2-fsa/icefall#1616, deepspeedai/DeepSpeed#99; also in a step that is passed over otherwise."""
    seen = watch(job, launcher, tmp_path, (right, wrong))
    assert words in seen.wrong
    assert code(seen) == ExitCode.FAIL
