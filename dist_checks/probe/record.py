"""What a probe records, and how often."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Steps are counted from 0. The step event itself is always written."""

    every: int = 1
    """Digests of gradients and weights in every so many steps, the first included."""
    state_every: int = 4
    """Optimizer state after every so many of those steps, the first included; 0 for never."""
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
        if self.every < 1 or self.state_every < 0 or self.outputs_steps < 0:
            raise ValueError(
                f"every ({self.every}) must be at least 1, state_every ({self.state_every}) and outputs_steps "
                f"({self.outputs_steps}) at least 0"
            )

    def tensors_at(self, step: int) -> bool:
        return step % self.every == 0

    def state_at(self, step: int) -> bool:
        return self.state_every > 0 and self.tensors_at(step) and step // self.every % self.state_every == 0

    def routing_at(self, step: int) -> bool:
        return step < self.routing_steps

    def outputs_at(self, step: int) -> bool:
        return step < self.outputs_steps
