"""Errors that a node counts, before and after each job; nvidia-smi is a script here."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from launch_watching import only
from smi import FakeSmi

from launch import LocalLauncher, State
from launch.counters import Kernel, _xids, ask, parse, rise

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSmi:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return FakeSmi(folder)


def test_what_nvidia_smi_says(smi: FakeSmi) -> None:
    smi.says(2, 1, 5)
    devices, counts = parse(ask())
    assert devices == 1
    assert counts == {
        "GPU 0: ecc_errors volatile sram_correctable": 1,
        "GPU 0: ecc_errors volatile sram_uncorrectable_parity": 0,
        "GPU 0: ecc_errors volatile dram_correctable": 0,
        "GPU 0: ecc_errors volatile dram_uncorrectable": 2,
        "GPU 0: remapped_rows remapped_row_corr": 0,
        "GPU 0: pci replay_counter": 0,
        "GPU 0: pci replay_rollover_counter": 0,
        "GPU 0: link 0 Replay Errors": 0,
        "GPU 0: link 0 CRC Errors": 5,
    }


@pytest.mark.parametrize(
    "said", ["", "NVIDIA-SMI has failed because it couldn't communicate with the driver.", "<gpu>"]
)
def test_what_is_no_answer_counts_nothing(said: str) -> None:
    assert parse(said) == (0, {})


def test_xids_of_the_kernel_log() -> None:
    records = ["4,1,1,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=12, GPU has fallen off the bus.", "6,2,2,-;eth0: link up"]
    assert list(_xids(iter(records))) == ["XID 79 of 0000:3b:00"]


def test_only_what_rises_is_told() -> None:
    assert rise({"a": 1, "b": 2}, {"a": 1, "b": 4, "c": 1, "d": 0}) == {"b": [2, 4], "c": [0, 1]}
    assert Kernel().read() == {}


def test_counters_around_each_job(smi: FakeSmi, job, launcher: LocalLauncher, tmp_path: Path) -> None:
    assert only(launcher.run([job("record", name="first")])).counters[0]["devices"] == 1
    jobs = launcher.run([job("sleep", name="second", payload={"seconds": 0.5})])
    smi.says(2, 0, 1)
    exit = only(jobs)
    assert exit.state is State.DONE
    (counted,) = exit.counters
    rose = {"GPU 0: ecc_errors volatile dram_uncorrectable": [0, 2], "GPU 0: link 0 CRC Errors": [0, 1]}
    assert counted["rose"] == rose
    assert json.loads((tmp_path / "second" / "exit.json").read_text())["counters"] == [counted]
    assert only(launcher.run([job("record", name="third")])).counters[0]["rose"] == {}


def test_a_driver_that_hangs_is_not_waited_for(smi: FakeSmi, job, launcher: LocalLauncher, tmp_path: Path) -> None:
    """Neither by a job, nor by a launcher that is closed."""
    assert only(launcher.run([job("record", name="first")])).state is State.DONE
    smi.says("hang", 0, 0)
    exit = only(launcher.run([job("record", name="second")]))
    assert exit.state is State.DONE
    assert exit.counters[0]["rose"] == {}
    began, jobs = (
        time.monotonic(),
        launcher.run([job("record", name="third"), job("sleep", name="fourth", world_size=4)]),
    )
    wait = threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGINT))
    wait.start()
    with pytest.raises(KeyboardInterrupt):
        list(jobs)
    launcher.close()
    assert time.monotonic() - began < 6
    assert json.loads((tmp_path / "third" / "exit.json").read_text())["state"] == "done"


def test_where_no_device_counts_there_is_no_question(job, launcher: LocalLauncher) -> None:
    assert only(launcher.run([job("record")])).counters[0]["devices"] == 0
