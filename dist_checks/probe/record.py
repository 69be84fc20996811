"""What a probe records, and how often."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Steps are counted from 0. The step event itself is always written."""

    every: int = 1
    """Digests of gradients and weights in the ``first`` steps, also of a run that goes on, and then in every so many,
    counted from 0."""
    first: int = 5
    """So many steps at the start have them all: what single steps are judged by."""
    pairs: bool = False
    """The step before each of the later ones as well, so that what one step changes is known."""
    state_every: int = 4
    """Optimizer state after every so many of those steps, counted from 0; 0 for never."""
    outputs_steps: int = 1
    """Block outputs and their gradients, per sample, in so many first steps."""
    routing_steps: int = 2
    """Which experts each token goes to, in so many first steps."""
    applied: bool = True
    """The gradients once more, as the optimizer gets them."""
    narrowing: bool = False
    """Run the first step under a dispatch mode that notes where floats get narrower than the parameters. Slow."""
    env: tuple[str, ...] = ()
    """Environment variables whose values, as this rank sees them, are written down with the evidence."""

    def __post_init__(self) -> None:
        if self.every < 1 or min(self.first, self.state_every, self.outputs_steps) < 0:
            raise ValueError(
                f"every ({self.every}) must be at least 1, first ({self.first}), state_every ({self.state_every}) and "
                f"outputs_steps ({self.outputs_steps}) at least 0"
            )

    def tensors_at(self, step: int) -> bool:
        return step < self.first or step % self.every == 0 or (self.pairs and (step + 1) % self.every == 0)

    def state_at(self, step: int) -> bool:
        if not self.state_every:
            return False
        return step % (self.every * self.state_every) == 0 or (step < self.first and step % self.state_every == 0)

    def routing_at(self, step: int) -> bool:
        return step < self.routing_steps

    def outputs_at(self, step: int) -> bool:
        return step < self.outputs_steps


LEARN = Record(every=10, pairs=True, state_every=0, outputs_steps=0, routing_steps=0)
"""Of the rung that learns, which is long: gradients, and weights before and after, every so many steps."""
OVERFIT = replace(LEARN, every=50)
"""Of the one that memorises: whether weights move at all."""
