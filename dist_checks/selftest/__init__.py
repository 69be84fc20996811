"""Who tests the tester: plants every known fault, mutates collectives, and counts the alarms of healthy runs."""

from __future__ import annotations

from dist_checks.selftest.healthy import table as margins
from dist_checks.selftest.run import SelfTest, run, sentence

__all__ = ["SelfTest", "margins", "run", "sentence"]
