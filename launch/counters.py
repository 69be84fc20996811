"""What a node counts of errors of its devices.

GPUs are asked by nvidia-smi, where it is installed: its counters of memory errors (ECC, remapped rows, retired pages),
of the links between GPUs and of the bus. XIDs, by which the driver reports what went wrong, come from the kernel's log,
where it may be read.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from xml.etree import ElementTree

LONGEST = 10.0  # seconds that the driver may take to answer
QUESTION = ("/bin/sh", "-c", "nvidia-smi -q -x; nvidia-smi nvlink -e")
END = "</nvidia_smi_log>"
COUNTED = ("ecc_errors/volatile", "remapped_rows", "retired_pages", "pci/replay_counter", "pci/replay_rollover_counter")
XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)")

Counts = dict[str, int]
"""By name; each only rises."""


def asked() -> tuple[str, ...]:
    """The command that prints the counters of GPUs; empty where there is none."""
    return QUESTION if shutil.which("nvidia-smi") else ()


def ask() -> str:
    """What it prints."""
    if not asked():
        return ""
    with suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(asked(), capture_output=True, text=True, timeout=LONGEST, check=False).stdout
    return ""


def parse(said: str) -> tuple[int, Counts]:
    """The number of GPUs, and ``GPU 0: ecc_errors volatile dram_uncorrectable``: 0 and the like."""
    log, end, links = said.partition(END)
    try:
        root = ElementTree.fromstring(log + end)
    except ElementTree.ParseError:
        return 0, {}
    gpus, found = root.findall("gpu"), Counts()
    for index, gpu in enumerate(gpus):
        for name, value in _numbers(gpu):
            found[f"GPU {index}: {name}"] = value
    return len(gpus), found | _links(links)


def _numbers(gpu: ElementTree.Element) -> Iterator[tuple[str, int]]:
    for path in COUNTED:
        for part in gpu.findall(path):
            yield from _leaves(part, path.split("/"))


def _leaves(part: ElementTree.Element, names: list[str]) -> Iterator[tuple[str, int]]:
    if (text := (part.text or "").strip()).isdecimal():
        yield " ".join(names), int(text)
    for child in part:
        yield from _leaves(child, [*names, child.tag])


def _links(said: str) -> Counts:
    """``GPU 0: ...`` and below it ``Link 1: Replay Errors: 0``."""
    found, gpu = Counts(), ""
    for line in said.splitlines():
        if match := re.match(r"GPU (\d+):", line):
            gpu = match[1]
        elif match := re.match(r"\s*Link (\d+): (.+): (\d+)\s*$", line):
            found[f"GPU {gpu}: link {match[1]} {match[2]}"] = int(match[3])
    return found


class Kernel:
    """What the kernel of this machine has to say."""

    def __init__(self) -> None:
        self.log = -1
        with suppress(OSError):
            self.log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self.log, 0, os.SEEK_END)
        self._xids: Counter[str] = Counter()

    def read(self) -> Counts:
        """Counted since this object was made."""
        self._xids.update(_xids(self._news()))
        return dict(self._xids)

    def _news(self) -> Iterator[str]:
        while self.log >= 0:
            try:
                yield os.read(self.log, 8192).decode(errors="replace")  # a record
            except BrokenPipeError:
                continue  # records were overwritten before they were read
            except OSError:
                return


def _xids(records: Iterator[str]) -> Iterator[str]:
    for record in records:
        for device, number in XID.findall(record):
            yield f"XID {number} of {device}"


def rise(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, list[int]]:
    """Those that rose: [before, after]. What was not there before counts from 0."""
    return {name: [before.get(name, 0), value] for name, value in after.items() if value > before.get(name, 0)}
