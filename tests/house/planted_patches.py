"""A process of its own for the test of what faults patch: plants them all, and prints what changed on the judge's side.

Patches pile up in this process, so it ends after that. The last one is no fault of the catalogue: it patches the probe,
which must be seen.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from dataclasses import replace
from types import FunctionType, ModuleType
from typing import Any

warnings.simplefilter("ignore")

import dist_checks.judging.judge  # noqa: E402  # the judge's side, which a fault could reach as well
import dist_checks.worker.entry  # noqa: E402
from dist_checks.axes import Setting  # noqa: E402
from dist_checks.matrix import parse  # noqa: E402
from dist_checks.rung import Role, Rung  # noqa: E402
from dist_checks.selftest.catalogue import Planted  # noqa: E402
from dist_checks.worker import faults  # noqa: E402

WATCHED = ("dist_checks.probe", "dist_checks.trace", "dist_checks.extent", "dist_checks.judging")


def snapshot() -> dict[str, Any]:
    """Every name of the watched modules and of their classes, and the code of their functions."""
    found: dict[str, Any] = {}

    def look(where: str, names: dict[str, Any]) -> None:
        for name, value in names.items():
            if name.startswith("__") and name != "__init__":
                continue
            found[f"{where}.{name}"] = value
            if isinstance(value, FunctionType):
                found[f"{where}.{name}()"] = value.__code__
            elif isinstance(value, type) and value.__module__.startswith(WATCHED) and f"{where}.{name}." not in found:
                look(f"{where}.{name}", dict(vars(value)))

    for name, module in sorted(sys.modules.items()):
        if name.startswith(WATCHED) and isinstance(module, ModuleType):
            look(name, {key: value for key, value in vars(module).items() if not isinstance(value, ModuleType)})
    return found


def rungs(fault: Any) -> list[Rung]:
    """With all that the fault's ladder has on, as far as it can be told apart by value."""
    matrix = parse(Planted.from_json(fault.to_json() | {"missing": []}).matrix())
    most = max((len(values) for values in matrix.axes.values()), default=1)
    settings = [Setting({axis: values[at % len(values)] for axis, values in matrix.axes.items()}) for at in range(most)]
    return [
        Rung(
            id=setting.name,
            role=Role.RUNG,
            setting=setting,
            precision=str(setting.get("precision", "fp64")),  # type: ignore[call-overload]
            seed=0,
            steps=1,
        )
        for setting in settings
    ]


def patch_the_probe(rung: Rung) -> None:
    dist_checks.probe.recorder.Recorder.gradients = lambda *_, **__: None  # type: ignore


changed: dict[str, list[str]] = {}
env = dict(os.environ)
for fault in (*faults.FAULTS, replace(faults.FAULTS[0], id="probe", plant=patch_the_probe)):
    for rung in rungs(fault):
        os.environ |= {"RANK": str(rung.layout.world_size - 1), "WORLD_SIZE": str(rung.layout.world_size)}
        before = snapshot()
        fault.plant(rung)
        after = snapshot()
        changed[fault.id] = [name for name in before if after.get(name) is not before[name]]
        os.environ.clear()
        os.environ |= env
print(json.dumps(changed))
