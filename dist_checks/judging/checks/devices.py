"""Did the hosts count errors of their devices while the rung ran?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from dist_checks.judging.verdict import Blamed, Finding
from dist_checks.judging.view import RungView

DEVICE = r"GPU |XID "
CORRECTED = r"_correctable|single_bit|remapped_row_corr|replay|recovery|crc"
"""The hardware has put it right, or sent it again: what was computed is not touched."""
OF_THE_JOB = r"XID (13|31|43|45) "
"""Faults of a program, by NVIDIA's catalogue of XIDs: an illegal address, a kernel that was ended."""


def check(view: RungView) -> Iterator[Finding]:
    """Memory that could not be corrected, a device that fell off the bus: the host is to blame, whatever else failed.

    Counters are read by the agent of each node before and after the rung.
    """
    writer = view.writer("devices")
    nodes: list[Mapping[str, Any]] = list((view.exit or {}).get("counters") or ())
    rose = [
        (str(node["host"]), name, values) for node in nodes for name, values in node["rose"].items() if _device(name)
    ]
    serious = [each for each in rose if not re.search(f"{CORRECTED}|{OF_THE_JOB}", each[1], re.IGNORECASE)]
    devices = sum(int(node["devices"]) for node in nodes)
    if serious:
        hosts = sorted({host for host, _, _ in serious})
        yield writer.failed(_words(serious), hosts=hosts, observed=len(serious), allowed=0, blames=Blamed.HOST)
    elif rose:
        yield writer.passed(f"nothing that was not put right: {_words(rose)}", observed=0, allowed=0)
    elif devices:
        yield writer.passed(f"no error counted of {devices} devices", observed=0, allowed=0)
    else:
        yield writer.skipped("no device here counts its errors")


def _device(name: str) -> bool:
    return re.match(DEVICE, name) is not None


def _words(rose: list[tuple[str, str, list[int]]]) -> str:
    told = [f"{host} {name} rose from {before} to {after}" for host, name, (before, after) in rose[:3]]
    return "; ".join(told) + (f" and {len(rose) - 3} more" if len(rose) > 3 else "")
