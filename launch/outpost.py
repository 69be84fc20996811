"""The agent of a node that is not the launcher's own: it connects to its launcher, and brings back what ranks wrote."""

from __future__ import annotations

import argparse
import base64
import os
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path

from launch.agent import Agent, serve
from launch.archive import archive
from launch.channel import SECRET, connect
from launch.nodes import VISIBLE, stamp
from launch.process import free_port
from launch.wire import Message, Wire

PIECE = 1 << 18  # bytes of a file in one message


class Outpost(Agent):
    """An agent that knows its node's name. Besides what every agent says and does:

    do ping      at: answered by `pong` with the same number and this node's monotonic clock
    do port      job: answered by `port`, one that is free here
    do start     also stamp: of the job's folder. Where that folder cannot be seen from here, ranks write into one of
                 this node; a value of the payload that names the folder then names that one

    said ready   also address slots devices
    said ended   also clock: the monotonic clock of this node when the end of the rank began
    said file    job name data (base64) first: a piece of a file that ranks wrote where the launcher cannot see it
    """

    def __init__(self, wire: Wire, name: str, address: str) -> None:
        super().__init__(wire)
        self._host, self._address = name, address
        self._carried: dict[str, Path] = {}  # by job: a folder of this node whose files are to be sent

    def _tell(self, report: Message) -> None:
        job = report.get("job", "")
        match report["said"]:
            case "ready":
                devices = [device for device in os.environ.get(VISIBLE, "").split(",") if device]
                slots = len(devices) or len(os.sched_getaffinity(0))
                report |= {"address": self._address, "slots": slots, "devices": devices}
            case "ended" if job in self._crews:
                report |= {"clock": self._crews[job].started + report["since"]}
            case "over" if job in self._crews:
                if (crew := self._crews[job]).well:  # else whoever looks for the reason finds logs where they were
                    archive(crew.folder, [member.rank for member in crew.members])
                if job in self._carried:
                    self._send_files(job, self._carried.pop(job))
        if self._signalled and report["said"] in ("ended", "over"):
            return  # the node is being lost: how ranks end that die with it says nothing about the job
        super()._tell(report)

    def _do(self, request: Message) -> None:
        match request["do"]:
            case "ping":
                self._tell({"said": "pong", "at": request["at"], "now": time.monotonic()})
            case "port":
                self._tell({"said": "port", "job": request["job"], "port": free_port()})
            case _:
                super()._do(request)

    def _start(self, request: Message) -> None:
        if stamp(Path(request["folder"])) != request["stamp"]:
            own = self._scratch / f"files-{self._started}"
            own.mkdir()
            self._carried[request["job"]] = own
            folder, payload = request["folder"], request["payload"]
            moved = {key: str(own) if value == folder else value for key, value in payload.items()}
            request |= {"folder": str(own), "payload": moved}
        super()._start(request)

    def _send_files(self, job: str, folder: Path) -> None:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            with suppress(OSError), path.open("rb") as file:
                first, data = True, file.read(PIECE)
                while first or data:
                    name, text = str(path.relative_to(folder)), base64.b64encode(data).decode()
                    super()._tell({"said": "file", "job": job, "name": name, "data": text, "first": first})
                    first, data = False, file.read(PIECE)
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    arguments = argparse.ArgumentParser(prog="python -m launch.outpost", description="Starts ranks for a launcher.")
    arguments.add_argument("--launcher", required=True, help="address,address:port; the secret is in the environment")
    arguments.add_argument("--name", required=True, help="of this node")
    arguments.add_argument("--preload", action="append", default=[], help="module to import before ranks are forked")
    given = arguments.parse_args()
    try:
        wire, address = connect(given.launcher, os.environ.pop(SECRET), given.name)
    except ConnectionError as error:
        sys.exit(f"node {given.name}: {error}")
    os.dup2(2, 1)
    serve(wire, given.preload, lambda wire: Outpost(wire, given.name, address))


if __name__ == "__main__":
    main()
