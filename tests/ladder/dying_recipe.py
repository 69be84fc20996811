"""A user's recipe that kills its process on rank 1."""

from __future__ import annotations

import os
import signal

from dist_checks.recipes.gpt import GPT, GPTRecipe


class DiesOnRank1(GPTRecipe):
    def model(self) -> GPT:
        if os.environ.get("RANK") == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().model()
