"""Runs the jobs of rungs: those of one rung one after the other, different rungs side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dist_checks.jobs import forget_checkpoint
from dist_checks.progress import Progress
from launch.base import Exit, Job, Launcher, State


def launch(
    launcher: Launcher,
    jobs: Iterable[tuple[Job, ...]],
    progress: Progress,
    look: Callable[[Exit], None] = lambda exit: None,
) -> None:
    """The jobs of each tuple one after the other, as long as they go well; those of different tuples side by side.

    ``look`` is shown each exit, and may raise.
    """
    chains = {chain[0].name: chain for chain in jobs}
    of_job = {job.name: id for id, chain in chains.items() for job in chain}
    seconds = dict.fromkeys(chains, 0.0)

    def started(job: Job) -> None:
        if job is chains[of_job[job.name]][0]:
            progress.started(_shown(job), job.world_size)

    # Of every chain the first job, then of those that have another one the second.
    for at in range(max(map(len, chains.values()), default=0)):
        wave = [chain[at] for chain in chains.values() if at < len(chain)]
        for exit in launcher.run(wave, on_start=started):
            id = of_job[exit.job]
            seconds[id] += exit.seconds
            look(exit)
            if exit.state is State.DONE:
                forget_checkpoint(chains[id][at])
            else:
                chains[id] = chains[id][: at + 1]
            if at + 1 == len(chains[id]):
                progress.ended(_shown(chains[id][0]), exit.state, seconds[id])


def _shown(job: Job) -> str:
    """The rung that it is a part of."""
    return str(job.payload["rung"]["id"] if "rung" in job.payload else job.name)
