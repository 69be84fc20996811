"""What a plan costs: device-seconds of the last run where it is known, else an estimate."""

from __future__ import annotations

from collections.abc import Mapping

SECONDS_OF_A_RANK = 0.7
"""For a rung that has not run here before: a rank of the built-in recipe, a few steps, on half a core."""


def device_seconds(worlds: Mapping[str, int], seconds: Mapping[str, float]) -> dict[str, float]:
    """By rung, from its number of ranks and what it took in the last run."""
    return {id: world * seconds.get(id, SECONDS_OF_A_RANK) for id, world in worlds.items()}


def device_hours(worlds: Mapping[str, int], seconds: Mapping[str, float]) -> float:
    """Of all rungs together: devices that wait for others of their node are not counted."""
    return sum(device_seconds(worlds, seconds).values()) / 3600
