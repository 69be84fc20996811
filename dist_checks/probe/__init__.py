"""What a rank records: put into a training loop, inert outside a run."""

from dist_checks.probe.probe import Probe
from dist_checks.probe.record import Record

__all__ = ["Probe", "Record"]
