"""What Linux offers to tie processes together and to end them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
from pathlib import Path

PARENT = "LAUNCH_PARENT"  # environment variable: the process whose end is the end of this one

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PR_SET_PTRACER = 0x59616D61

# Opened when a compute context is made on a device, not when devices are merely counted.
CONTEXT_FILES = ("/dev/nvidia-uvm", "/dev/kfd", "/dev/davinci")
TORCH_DEVICES = ("cuda", "xpu", "mtia", "npu", "hpu")


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


def die_with_parent(parent: int, signum: int = signal.SIGKILL) -> None:
    """This process gets `signum` when the thread of `parent` that started it ends."""
    _prctl(PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent:  # it ended before the line above
        os.kill(os.getpid(), signal.SIGKILL)


def be_seen_by(process: int) -> None:
    """That process and its children may look at the stacks of this one, where the kernel asks for such leave."""
    with contextlib.suppress(OSError):
        _prctl(PR_SET_PTRACER, process)


def adopt_orphans() -> None:
    """Descendants whose parent ends become children of this process, so that it can see, end and reap them."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def children() -> set[int]:
    """Process ids of the children of this process; empty where the kernel does not tell."""
    pids: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            pids.update(int(pid) for pid in (task / "children").read_text().split())
    return pids


def end_group(leader: int) -> None:
    """SIGKILL to the process group of `leader`, which has to be one that this package started."""
    assert leader > 1, leader
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def alive(pid: int) -> bool:
    """Whether the process still runs; one that has ended but was not reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def name_of(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:  # a real-time signal
        return f"signal {signum}"


def free_port() -> int:
    """A TCP port of this host that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def device_context() -> str:
    """What tells that this process holds a context on an accelerator, or ''. A forked child could not use it."""
    torch = sys.modules.get("torch")
    for name in TORCH_DEVICES:
        initialized = getattr(getattr(torch, name, None), "is_initialized", None)
        if initialized is not None and initialized():
            return f"torch.{name} is initialized"
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{fd}")
            if target.startswith(CONTEXT_FILES):
                return f"{target} is open"
    return ""
