"""Code of a fault under the name of its file alone: no traceback says that it is from among the faults."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any


def disguise(plant: Callable[..., Any]) -> None:
    """Every function of the module of ``plant``, and those that they define: what fails in them, or waits in them, is
    found in ``rank_sleeps.py``, as it would be in a file of the user's."""
    module = sys.modules[plant.__module__]
    for value in vars(module).values():
        if isinstance(value, FunctionType) and value.__module__ == module.__name__:
            value.__code__ = _renamed(value.__code__)


def _renamed(code: CodeType) -> CodeType:
    inner = tuple(_renamed(each) if isinstance(each, CodeType) else each for each in code.co_consts)
    return code.replace(co_filename=Path(code.co_filename).name, co_consts=inner)
