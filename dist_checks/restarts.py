"""Where a rung that resumes is stopped, and on which ranks it goes on. No torch here."""

from __future__ import annotations

from dist_checks.axes import SPEC, Axis, Setting, Value

ALONE = Setting({Axis.DP_REPLICATE: 2})
"""Where a run on one device goes on under ``other``."""


def points(steps: int, epoch: int) -> tuple[int, int]:
    """The steps before which a run of ``steps`` steps, ``epoch`` of them in an epoch, is saved and loaded again.

    The second is inside of the second epoch: there a loader that starts its epochs anew reads other samples
    (huggingface/accelerate PR#4071). Raises ValueError where the run is too short for that.
    """
    second = epoch + 1 if epoch > 1 else 2
    if steps <= second:
        inside = "inside of its second epoch, " if epoch > 1 else ""
        raise ValueError(
            f"resume needs at least {second + 1} steps, not {steps}: it goes on {inside}before step {second}, where an "
            f"epoch has {epoch} step{'s' * (epoch > 1)}"
        )
    return max(1, epoch // 2), second


def settings(setting: Setting, phases: int) -> list[Setting]:
    """The setting of each phase: its own, and under ``other`` that of :func:`other` in every second one."""
    turned = other(setting) if setting.get(Axis.RESUME) == "other" else setting
    return [turned if index % 2 else setting for index in range(phases)]


def between(setting: Setting) -> Setting | None:
    """Of a rung under ``other``, one that has the layout in between from its first step to its last: where that one
    fails too, it is not for resuming. None where the layout never changes."""
    return other(setting).without(Axis.RESUME) if setting.get(Axis.RESUME) == "other" else None


def other(setting: Setting) -> Setting:
    """The layout in between: dp_replicate of half the degree, rounded up; dp_replicate in the place of dp_shard; each
    other axis of devices of half its degree, or off where that is odd. What needs an axis that is off is off too.

    A run on one device goes on with :data:`ALONE`.
    """
    on: dict[Axis, Value] = dict(setting)
    replicas = -(-setting.degree(Axis.DP_REPLICATE) // 2) * setting.degree(Axis.DP_SHARD)
    on |= {Axis.DP_REPLICATE: replicas, Axis.DP_SHARD: 1}
    for axis in setting:
        if SPEC[axis].devices and axis not in (Axis.DP_REPLICATE, Axis.DP_SHARD):
            degree = setting.degree(axis)
            on[axis] = 1 if degree % 2 else degree // 2
    turned = Setting(on)
    turned = Setting({axis: value for axis, value in turned.items() if all(n in turned for n in SPEC[axis].needs)})
    devices = any(SPEC[axis].devices for axis in setting)
    return turned if devices else Setting({**turned, **ALONE})
