"""Recipes that do to their node what jobs do."""

from __future__ import annotations

import os
import time

from dist_checks.recipes.gpt import GPT, GPTRecipe

EATEN = 3 << 30  # bytes


class Eats(GPTRecipe):
    """On rank 1 of three: more memory than the job has."""

    def model(self) -> GPT:
        if os.environ.get("RANK") == "1" and os.environ.get("WORLD_SIZE") == "3":
            self.eaten = bytearray(b"x") * EATEN
        return super().model()


class Waits(GPTRecipe):
    """Where there are several ranks: ten minutes, so that something can happen meanwhile."""

    def model(self) -> GPT:
        if os.environ.get("WORLD_SIZE", "1") != "1":
            time.sleep(600)
        return super().model()
