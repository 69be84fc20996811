"""The probe in Ray Train: what its workers have to be told, which Ray may have started long before.

``ray.init(runtime_env={"env_vars": env_vars()})``, and in the training function the lines of any other loop. Ray ends
workers without their exit handlers: ``probe.close()`` is the last of them.
"""

from __future__ import annotations

import os

from dist_checks.probe.own import EVERY, RUNG
from dist_checks.probe.probe import FOLDER

NAMES = (FOLDER, RUNG, EVERY, "TORCH_FR_BUFFER_SIZE", "PYTHONPATH", "OMP_NUM_THREADS")


def env_vars() -> dict[str, str]:
    """Of this process, those that tell a rank whether, where and what it is to record; the folder is one that all
    nodes see."""
    return {name: os.environ[name] for name in NAMES if name in os.environ}
