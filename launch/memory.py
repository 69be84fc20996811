"""Whether the kernel has ended processes for lack of memory."""

from __future__ import annotations

from pathlib import Path


def oom_kills() -> int:
    """How many processes of this host since it has started, in whatever cgroup; 0 where the kernel does not tell."""
    try:
        rows = (line.split() for line in Path("/proc/vmstat").read_text().splitlines())
        return int(dict(rows).get("oom_kill", "0"))
    except (OSError, ValueError):
        return 0


def said_of(before: int) -> str:
    """Of a process that was killed: what it may have died of, where more have been ended than `before`; else ''."""
    count = oom_kills() - before
    if count <= 0:
        return ""
    several = "processes" if count > 1 else "process"
    return f"killed by SIGKILL: the kernel has ended {count} {several} of this host for lack of memory meanwhile"
