"""Which of the waiting jobs starts next."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from launch.base import Job

OVERTAKEN = 3  # how many smaller jobs may start before one that does not fit yet


class Waiting:
    """Jobs in the order given, as long as slots allow: a slot is room for one rank.

    The first job that fits starts, even before one that does not; but no job is overtaken more than OVERTAKEN times,
    after which slots are left empty until it fits. A job larger than all slots together runs alone.
    """

    def __init__(self, jobs: Iterable[Job], slots: int) -> None:
        self._jobs = list(jobs)
        self._overtaken = [0] * len(self._jobs)
        self._slots = slots

    def __len__(self) -> int:
        return len(self._jobs)

    def needs(self, job: Job) -> int:
        """The slots that `job` takes."""
        return min(job.world_size, self._slots)

    def take(self, free: int) -> Job | None:
        """The next job to start on `free` slots, or None if it is better to wait."""
        return self.take_if(lambda job: self.needs(job) <= free)

    def take_if(self, fits: Callable[[Job], bool]) -> Job | None:
        """The next job to start, where there is more to it than a number of slots."""
        for index, job in enumerate(self._jobs):
            if fits(job):
                self._overtaken[:index] = [count + 1 for count in self._overtaken[:index]]
                del self._overtaken[index]
                return self._jobs.pop(index)
            if self._overtaken[index] >= OVERTAKEN:
                return None
        return None

    def drop(self) -> list[Job]:
        """All that never started."""
        dropped, self._jobs, self._overtaken = self._jobs, [], []
        return dropped
