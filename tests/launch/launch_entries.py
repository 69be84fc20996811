"""What the ranks of the tests do."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

Payload = dict[str, Any]
STATE: list[int] = []  # of this module, which the server may have imported

SLEEP = "import os, pathlib, time; pathlib.Path(os.environ['PIDS'], str(os.getpid())).touch(); time.sleep(60)"


def rank() -> int:
    return int(os.environ["RANK"])


def record(payload: Payload) -> None:
    """Writes this process down."""
    Path(payload["pids"], str(os.getpid())).touch()


def hello(payload: Payload) -> None:
    record(payload)
    print("hello from", rank())


def sleep(payload: Payload) -> None:
    record(payload)
    time.sleep(payload.get("seconds", 60.0))


def raise_on_one(payload: Payload) -> None:
    """Not before all ranks are there: one that is ended while it still starts has not said its process id."""
    record(payload)
    if rank() == 1:
        while len(os.listdir(payload["pids"])) < int(os.environ["WORLD_SIZE"]):
            time.sleep(0.01)
        raise ZeroDivisionError("one\nand more")
    time.sleep(60)


def raise_one_after_another(payload: Payload) -> None:
    """Rank 1 fails, the others find that out."""
    record(payload)
    time.sleep(0.0 if rank() == 1 else 0.1)
    raise ConnectionError("peer gone") if rank() != 1 else ZeroDivisionError("the cause")


def die_and_be_missed(payload: Payload) -> None:
    """Rank 1 is killed; the others notice that even before their agent may."""
    record(payload)
    place = Path(payload["pids"]).parent / "victim"
    if rank() == 1:
        place.write_text(str(os.getpid()))
        time.sleep(60)
    while not place.exists() or not place.read_text():
        time.sleep(0.01)
    os.kill(int(place.read_text()), signal.SIGKILL)
    raise ConnectionError("peer gone")


def abort_slowly(payload: Payload) -> None:
    """Rank 0 says that its peer is gone, a moment before that one is."""
    record(payload)
    if rank() == 0:
        raise RuntimeError("[pair.cc:537] Read error: Connection reset by peer. GLHF!")
    time.sleep(0.15)
    os.abort()


def die_after_all(payload: Payload) -> None:
    """The process of rank 1 aborts while it ends; rank 0 has work to do, and may fail."""
    record(payload)
    if rank() == 1:
        os._exit = lambda code: os.abort()  # type: ignore[assignment]
        return
    time.sleep(0.6)  # longer than the grace after a failure
    if payload.get("fails"):
        raise ZeroDivisionError("the cause")
    print("done")


def leave_with(payload: Payload) -> None:
    record(payload)
    if rank() == payload.get("rank", 0):
        sys.exit(payload["code"])


def leave_early(payload: Payload) -> None:
    """Rank 0 is done, and its process gone, while the others go on."""
    place = Path(payload["pids"]).parent / "early"
    if rank() == 0:
        place.write_text(str(os.getpid()))
        return
    while not place.exists() or not (early := place.read_text()) or Path(f"/proc/{early}").exists():
        time.sleep(0.01)
    time.sleep(0.4)  # longer than the grace after a failure


def signal_oneself(payload: Payload) -> None:
    record(payload)
    if rank() == 1:
        print("last words")
        os.kill(os.getpid(), payload["signal"])
    time.sleep(60)


def segfault(payload: Payload) -> None:
    record(payload)
    if rank() == 1:
        ctypes.string_at(0)
    time.sleep(60)


def hang_here(payload: Payload) -> None:
    """Rank 0 ends, the others hang in a C call with the interpreter lock held: only faulthandler can see them."""
    record(payload)
    while rank():
        ctypes.PyDLL(None).sleep(60)  # a signal ends one sleep


def span(payload: Payload) -> None:
    """Notes from when to when it ran."""
    record(payload)
    start = time.monotonic()
    time.sleep(payload["seconds"])
    Path(payload["spans"], f"{payload['name']}-{rank()}").write_text(f"{start} {time.monotonic()}")


def environment(payload: Payload) -> None:
    record(payload)
    for name in payload["names"]:
        print(f"{name}={os.environ.get(name)}")


def surroundings(payload: Payload) -> None:
    """What a new process would look like."""
    record(payload)
    STATE.append(rank())
    print("state", STATE)
    print("random", random.random())
    print("stdin", sys.stdin.read(), os.read(0, 1))
    print("leader", os.getpgrp() == os.getpid(), "faulthandler", faulthandler.is_enabled())
    print("handlers", signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGCHLD))
    print("files", sorted(os.listdir("/proc/self/fd"))[:-1])
    print("torch", "torch" in sys.modules)


def with_offspring(payload: Payload) -> None:
    """Leaves a process in its group and one in a session of its own."""
    record(payload)
    env = os.environ | {"PIDS": payload["pids"]}
    for session in (False, True):
        subprocess.Popen([sys.executable, "-c", SLEEP], env=env, start_new_session=session)
    while len(list(Path(payload["pids"]).iterdir())) < 3:
        time.sleep(0.01)
    if payload.get("stay"):
        time.sleep(60)
    os._exit(0)


def all_reduce(payload: Payload) -> None:
    import torch
    import torch.distributed as dist

    record(payload)
    method = os.environ.get("LAUNCH_INIT_METHOD", "env://")
    dist.init_process_group("gloo", init_method=method, rank=rank(), world_size=int(os.environ["WORLD_SIZE"]))
    value = torch.full((3,), float(rank() + 1))
    dist.all_reduce(value)
    print("sum", value.tolist(), "by", method.partition(":")[0], "threads", torch.get_num_threads())
    if payload.get("ends"):
        Path(payload["ends"], str(rank())).write_text(str(time.time()))
    dist.destroy_process_group()


def break_a_collective(payload: Payload) -> None:
    """Rank 1 dies; rank 0 is waiting for it in a collective."""
    import torch
    import torch.distributed as dist

    record(payload)
    method = os.environ.get("LAUNCH_INIT_METHOD", "env://")
    dist.init_process_group("gloo", init_method=method, rank=rank(), world_size=2)
    if rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(3))


def pretend_a_device(payload: Payload) -> None:
    record(payload)
    print("forked", "launch.agent" in sys.modules or Path("/proc/self/cmdline").read_text().find("launch.agent") >= 0)


def kill_the_agent(payload: Payload) -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


def shout(payload: Payload) -> None:
    """Fails at length, or hangs."""
    record(payload)
    if rank() % 2:
        raise RuntimeError("x" * 100_000)
    time.sleep(60)


def stop_growing(payload: Payload) -> None:
    """Rank 0 shows signs of life for a while, then never again; rank 1 prints, which is none."""
    record(payload)
    trace = Path(payload["pids"]).parent / "job" / f"rank-{rank():05d}.trace"
    for number in range(60):
        if rank() == 0 and number < payload["beats"]:
            with trace.open("a") as file:
                file.write("step\n")
        print("still here")
        time.sleep(0.1)


def leave_things(payload: Payload) -> None:
    """Makes what only a process that ends in order takes away: a temporary folder, a socket, shared memory."""
    from multiprocessing import shared_memory

    record(payload)
    memory = shared_memory.SharedMemory(create=True, size=4096)
    folder = tempfile.mkdtemp()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.path.join(folder, "s"))
    Path(payload["pids"]).parent.joinpath(f"things{rank()}").write_text(f"/dev/shm/{memory.name}\n{folder}")
    if rank() == payload.get("dies"):
        time.sleep(payload["after"])
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def stop_oneself(payload: Payload) -> None:
    """As a debugger does, or a frozen container: no thread of rank 1 runs any more."""
    record(payload)
    if rank() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(60)


def promise_and_hold_the_lock(payload: Payload) -> None:
    """Is going to tell what it waits for, and keeps the interpreter's lock."""
    record(payload)
    (Path(os.environ["LAUNCH_ASKS"]) / f"watch-{rank():05d}").touch()
    hang_here(payload)


def answer(payload: Payload) -> None:
    """Says what it waits for when it is asked, and takes its time; rank 0 may fail."""
    record(payload)
    asks = Path(os.environ["LAUNCH_ASKS"])
    (asks / f"watch-{rank():05d}").touch()
    if rank() == 0 and payload.get("fails"):
        time.sleep(0.2)
        raise ZeroDivisionError("the cause")
    while not (asks / "ask").exists():
        time.sleep(0.01)
    time.sleep(payload["seconds"])
    print("I wait for the moon", flush=True)
    (asks / f"told-{rank():05d}").touch()
    time.sleep(60)


def fill(payload: Payload) -> None:
    """Writes until its disk is full."""
    with Path(payload["folder"], "filling").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1024))
