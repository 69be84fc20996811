"""What a recipe may say beside what it must: where it says nothing, rung zero leaves that out, with its reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dist_checks.recipes.base import Batch


class Offers:
    """Optional; derive from :class:`~dist_checks.recipes.base.Recipe`, which has all of these."""

    next_token: bool = False
    """Each output predicts the token after its own, from that one and those before. Outputs are (samples, length,
    classes), or hold one such tensor."""
    starts_trained: bool = False
    """:meth:`model` loads trained weights: the first loss is to be below that of an untrained one."""
    spares_norms: bool = False
    """Norms and biases are to have no weight decay."""
    pad: int | None = None
    """The token that fills up inputs."""
    begin: int | None = None
    """The token that every text begins with, once."""
    end: int | None = None
    """The token that every text ends with, once."""
    tags: Sequence[str] | None = None
    """Names of tags of which a sample may have several: targets are (samples, tags), 1 where it has the tag, 0 where it
    has not, IGNORE where nobody knows; outputs are a logit for each, and ``classes`` is 2. One tag for each token is
    nothing special: targets are those of tokens, and ``classes`` is the number of tags."""
    mixture: Mapping[str, float] | None = None
    """Of each source, the share of samples that it is declared to have; with :meth:`source`."""

    def source(self, sample: int) -> str:
        """Where a training sample is from."""
        return ""

    def documents(self, batch: Batch) -> Tensor | None:
        """For packed samples: (samples, length) int64, the number of the document that each token belongs to, negative
        for padding. None: a sample is one document."""
        return None

    def prompt(self, sample: int) -> int:
        """Number of tokens at the beginning of a sample whose targets are to be ignored."""
        return 0

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        """What the model is for, measured: higher is better. A low loss does not prove a useful output."""
        return {}
