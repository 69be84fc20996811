"""Starts the ranks of many small distributed jobs, watches them, ends them, and says how each one ended."""

from launch.base import Exit, Job, Launcher, LaunchError, RankExit, State
from launch.local import LocalLauncher

__all__ = ["Exit", "Job", "LaunchError", "Launcher", "LocalLauncher", "RankExit", "State"]
