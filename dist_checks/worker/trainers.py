"""Which loop trains a rung: the plain one, or that of a framework which owns a part of the step."""

from __future__ import annotations

from dist_checks.axes import Axis
from dist_checks.rung import Role
from dist_checks.worker.axes import zero
from dist_checks.worker.loop import Trainer
from dist_checks.worker.mesh import World


def choose(world: World) -> type[Trainer]:
    """On every rank, the same. The modules of frameworks are imported by the rungs that use them only."""
    if world.rung.role is Role.OVERFIT:
        from dist_checks.worker.alone.overfit import OverfitTrainer

        return OverfitTrainer
    if world.rung.role is Role.LEARN:
        from dist_checks.worker.alone.learn import LearnTrainer

        return LearnTrainer
    if world.degree(Axis.PP) > 1:
        from dist_checks.worker.pipelining import PipelineTrainer

        return PipelineTrainer
    if zero.stage(world):
        from dist_checks.worker.zero import ZeroTrainer

        return ZeroTrainer
    if Axis.ZERO in world.rung.setting:
        from dist_checks.worker.zero import RedundancyTrainer

        return RedundancyTrainer
    if world.rung.precision.endswith("_params"):
        from dist_checks.worker.masters import MasterTrainer

        return MasterTrainer
    return Trainer
