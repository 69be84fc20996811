"""The rung that looks at model and data first, and then learns long enough for a curve."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from dist_checks.looks import statistics
from dist_checks.looks.activations import activations
from dist_checks.looks.causal import BATCH, alignment, causal, documents
from dist_checks.looks.outputs import quietly
from dist_checks.recipes.base import Batch, Recipe
from dist_checks.worker import rng
from dist_checks.worker.alone import showing
from dist_checks.worker.alone.classes import classes
from dist_checks.worker.loop import Trainer

Look = Callable[[nn.Module, Recipe, Batch], dict[str, Any] | None]

LOOKS: tuple[tuple[str, Look], ...] = (
    ("causal", causal),
    ("alignment", alignment),
    ("documents", documents),
    ("activations", lambda model, recipe, batch: activations(model, lambda: model(batch.inputs))),
)
"""What is tried on the untrained model, with a few samples."""

VALIDATIONS = 4
"""How often the validation loss is taken, after the one before the first step."""
CHUNK = 32
"""Samples of a forward pass."""


def held_out(recipe: Recipe) -> range:
    """The ids of samples that are never trained on."""
    return range(recipe.samples, recipe.samples + recipe.held_out)


class LearnTrainer(Trainer):
    """One device, all of the training data, epoch after epoch."""

    def run(self) -> None:
        with rng.kept(self.world.device):
            self.examine()
            self.validate()
            self.measure()
        every = max(1, self.rung.steps // VALIDATIONS)
        for index in range(self.rung.steps):
            self.step(index)
            if (index + 1) % every == 0:
                with rng.kept(self.world.device):
                    self.validate()
        with rng.kept(self.world.device):
            self.measure()
            self.tell_apart()
        self.probe.close()

    def examine(self) -> None:
        _, [ids] = self.read(0)
        batch = self.collate(ids[:BATCH])
        for what, look in LOOKS:
            with self.autocast():
                found = look(self.model, self.recipe, batch)
            self.probe.observe(what, **(found if found is not None else {"missing": True}))
        self.probe.observe("shown", **showing.page(self.recipe, self.train.batch, self.rung.seed))
        self.probe.observe("split", **statistics.split(self.recipe, "train", range(self.recipe.samples)))
        if held := held_out(self.recipe):
            self.probe.observe("split", **statistics.split(self.recipe, "validation", held))

    def validate(self) -> None:
        """The loss of samples that are never trained on."""
        ids = held_out(self.recipe)
        if not ids:
            return
        loss_sum, targets = 0.0, 0
        with quietly(self.model):
            for start in range(0, len(ids), CHUNK):
                batch = self.collate(ids[start : start + CHUNK])
                loss_sum += float(self.forward(batch))
                targets += batch.count
        self.probe.observe("validation", loss_sum=loss_sum, targets=targets)

    def measure(self) -> None:
        """What the model is for, by the recipe's own word."""
        with quietly(self.model), self.autocast():
            values = dict(self.recipe.evaluate(self.model))
        self.probe.observe("metrics", values=values)

    def tell_apart(self) -> None:
        ids = held_out(self.recipe) or range(self.recipe.samples)
        with self.autocast():
            found = classes(self.model, self.recipe, ids, self.collate)
        self.probe.observe("classes", **(found if found is not None else {"missing": True}))
