"""Which jobs run at the same time."""

from __future__ import annotations

import pytest
from launch_watching import recorded

from launch import Job, LocalLauncher, State
from launch.waiting import OVERTAKEN, Waiting

pytestmark = pytest.mark.timeout(60)


def jobs_of(tmp_path, *sizes):
    return [
        Job(name=f"{index}", folder=tmp_path / str(index), world_size=size, entry="a:b")
        for index, size in enumerate(sizes)
    ]


def taken(waiting, free):
    job = waiting.take(free)
    return job and job.name


def test_order_is_kept_where_jobs_fit(tmp_path):
    waiting = Waiting(jobs_of(tmp_path, 1, 2, 1), slots=4)
    assert [taken(waiting, free) for free in (4, 3, 1)] == ["0", "1", "2"]
    assert taken(waiting, 4) is None
    assert not waiting


def test_a_small_job_may_overtake_a_large_one(tmp_path):
    waiting = Waiting(jobs_of(tmp_path, 4, 1), slots=4)
    assert [taken(waiting, free) for free in (3, 2, 4)] == ["1", None, "0"]


def test_a_large_job_does_not_starve(tmp_path):
    waiting = Waiting(jobs_of(tmp_path, 4, *[1] * 9), slots=4)
    started = [taken(waiting, 1) for _ in range(OVERTAKEN)]
    assert started == ["1", "2", "3"]
    assert taken(waiting, 3) is None  # room is kept until there is enough
    assert taken(waiting, 4) == "0"
    assert taken(waiting, 1) == "4"


def test_a_job_larger_than_all_slots_runs_alone(tmp_path):
    waiting = Waiting(jobs_of(tmp_path, 8), slots=2)
    assert [taken(waiting, free) for free in (1, 2)] == [None, "0"]


def spans(folder):
    return {file.name: tuple(map(float, file.read_text().split())) for file in folder.iterdir()}


def most_at_once(ranks):
    return max(sum(start <= moment < end for start, end in ranks.values()) for moment, _ in ranks.values())


def test_jobs_overlap_and_never_exceed_the_slots(job, tmp_path):
    folder = tmp_path / "spans"
    folder.mkdir()
    sizes = {"a": 1, "b": 2, "c": 3, "d": 1, "e": 1, "f": 4}
    seconds = {"a": 0.1, "b": 1.5}  # so that d and e find room beside b, and c does not
    started = []
    jobs = [
        job(
            "span",
            name=name,
            world_size=size,
            payload={"seconds": seconds.get(name, 0.3), "spans": str(folder), "name": name},
        )
        for name, size in sizes.items()
    ]
    with LocalLauncher(slots=3) as launcher:
        exits = {exit.job: exit for exit in launcher.run(jobs, on_start=lambda job: started.append(job.name))}
    assert {exit.state for exit in exits.values()} == {State.DONE}
    found = spans(folder)
    alone = {name: span for name, span in found.items() if name.startswith("f")}
    others = {name: span for name, span in found.items() if name not in alone}
    assert (len(alone), len(others)) == (4, 8)
    assert most_at_once(others) == 3
    assert started == ["a", "b", "d", "e", "c", "f"]  # c does not fit beside a and b
    assert min(start for start, _ in alone.values()) >= max(end for _, end in others.values())
    assert len(recorded(tmp_path)) == 12


def test_exits_come_in_order_of_completion(launcher, job):
    jobs = [job("sleep", name=name, world_size=1, payload={"seconds": s}) for name, s in (("slow", 0.8), ("fast", 0.1))]
    assert [exit.job for exit in launcher.run(jobs)] == ["fast", "slow"]


def test_devices_are_shared_out(job, monkeypatch):
    monkeypatch.setenv("SOME_DEVICES", "4,5,6,7")
    payload = {"names": ["SOME_DEVICES"], "seconds": 0.3}
    with LocalLauncher(slots=3, devices="SOME_DEVICES") as launcher:
        jobs = [job("environment", name=f"job{size}", world_size=size, payload=payload) for size in (1, 2)]
        exits = sorted(launcher.run(jobs), key=lambda exit: exit.job)
    assert [exit.ranks[0].log.read_text() for exit in exits] == ["SOME_DEVICES=4\n", "SOME_DEVICES=5,6\n"]
    with pytest.raises(ValueError, match=r"slots \(5\) must not exceed the devices that SOME_DEVICES allows \(4\)"):
        LocalLauncher(slots=5, devices="SOME_DEVICES")


def test_names_and_folders_are_unique(launcher, job):
    with pytest.raises(ValueError, match="several jobs have the same name: job"):
        launcher.run([job("hello"), job("hello")])


def test_one_run_at_a_time(launcher, job):
    first = launcher.run([job("hello")])
    with pytest.raises(ValueError, match="running jobs already"):
        launcher.run([job("hello")])
    assert [exit.state for exit in first] == [State.DONE]
    assert [exit.state for exit in launcher.run([job("hello")])] == [State.DONE]
    assert list(launcher.run([])) == []


def test_the_same_job_again_and_again(launcher, job):
    """As soon as its exit is there, its name is free."""
    for _ in range(20):
        assert [exit.state for exit in launcher.run([job("hello")])] == [State.DONE]


def test_word_of_a_job_that_is_over_disturbs_no_other(job, tmp_path):
    with LocalLauncher(slots=2) as launcher:
        [first] = launcher.run([job("hello", name="first", world_size=1)])
        late = job("hello", name="late", world_size=1)
        late.write()
        fields = {"folder": str(late.folder), "entry": late.entry, "payload": dict(late.payload), "argv": ()}
        launcher._agent.wire.send(
            {"do": "start", "job": "late", "ranks": [0], "world_size": 1, "env": {}, "deadline": 9.0, **fields}
            | {"stall": None, "pulse": "", "cold": False}
        )
        exits = list(launcher.run([job("hello", name=f"next{n}", world_size=1) for n in range(3)]))
    assert [exit.state for exit in (first, *exits)] == [State.DONE] * 4
