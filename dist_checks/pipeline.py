"""How a pipeline is laid out, in numbers: stages, micro-batches, which rank has which stage. No torch here."""

from __future__ import annotations

from dist_checks.axes import Axis, Setting

MICRO_BATCHES = 4
"""Of one pass through the schedule. No degree that the built-in ladders use besides pp4, so that 4 names itself."""

STAGES_PER_RANK = {"interleaved": 2}
"""Of schedules that want more than one."""


def schedule(setting: Setting) -> str:
    """``gpipe``, ``1f1b``, ``interleaved`` or ``zerobubble``."""
    return str(setting.get(Axis.SCHEDULE, "gpipe"))


def refusal(setting: Setting) -> str:
    """Why a schedule cannot run with another axis; an empty string where it can."""
    if schedule(setting) == "zerobubble" and Axis.CKPT_ACT in setting:
        return "zerobubble cannot be combined with ckpt_act: it goes backward twice, and torch computes again only once"
    if schedule(setting) == "zerobubble" and Axis.COMPILE in setting:
        return "zerobubble cannot be combined with compile: torch cannot go backward apart through a compiled block"
    return ""


def stages(setting: Setting) -> int:
    """Into how many stages the model is cut; 1 where pp is off."""
    return setting.degree(Axis.PP) * STAGES_PER_RANK.get(schedule(setting), 1)


def micro_batches(setting: Setting) -> int:
    """Into how many each forward pass of the loop is cut; 1 where pp is off.

    Every schedule but gpipe wants at least as many as there are ranks.
    """
    ranks = setting.degree(Axis.PP)
    if ranks == 1:
        return 1
    return MICRO_BATCHES if ranks <= MICRO_BATCHES else 2 * ranks


def stages_of(setting: Setting, at: int) -> tuple[int, ...]:
    """The stages of the rank at coordinate ``at`` of pp: dealt out in turn, the first to the first rank."""
    return tuple(range(at, stages(setting), setting.degree(Axis.PP)))
