"""Rung zero: what a run on one device says about the recipe, before anything is compared with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dist_checks.judging.checks.alone import (
    activations,
    alignment,
    causal,
    classes,
    clipping,
    data_duplicates,
    data_inputs,
    data_labels,
    data_mixture,
    data_padding,
    data_special_tokens,
    data_validation,
    documents,
    expected,
    fp32_islands,
    gradient_flow,
    grads_reach,
    loss_falls,
    memorised,
    non_finite,
    optimizer_covers,
    overfit,
    spikes,
    step_zero,
    too_good,
    update_ratio,
    useful,
    weight_decay_groups,
)
from dist_checks.judging.verdict import Finding
from dist_checks.judging.view import RungView
from dist_checks.rung import Role

# In the order of cause and effect, as the others: what is wrong with data and model comes before what follows from it.
ALONE: tuple[tuple[str, Callable[[RungView], Iterable[Finding]]], ...] = (
    ("data_labels", data_labels.check),
    ("alignment", alignment.check),
    ("data_padding", data_padding.check),
    ("data_special_tokens", data_special_tokens.check),
    ("data_duplicates", data_duplicates.check),
    ("data_inputs", data_inputs.check),
    ("data_validation", data_validation.check),
    ("data_mixture", data_mixture.check),
    ("causal", causal.check),
    ("documents", documents.check),
    ("non_finite", non_finite.check),
    ("step_zero", step_zero.check),
    ("fp32_islands", fp32_islands.check),
    ("optimizer_covers", optimizer_covers.check),
    ("weight_decay_groups", weight_decay_groups.check),
    ("activations", activations.check),
    ("grads_reach", grads_reach.check),
    ("gradient_flow", gradient_flow.check),
    ("update_ratio", update_ratio.check),
    ("overfit", overfit.check),
    ("loss_falls", loss_falls.check),
    ("too_good", too_good.check),
    ("memorised", memorised.check),
    ("classes", classes.check),
    ("useful", useful.check),
    ("expected", expected.check),
    ("clipping", clipping.check),
    ("spikes", spikes.check),
)

OF_SINGLE = frozenset(
    {
        "step_zero",
        "fp32_islands",
        "optimizer_covers",
        "weight_decay_groups",
        "grads_reach",
        "gradient_flow",
        "update_ratio",
        "non_finite",
    }
)
OF_OVERFIT = frozenset({"overfit", "optimizer_covers", "non_finite"})


def told_by(role: Role, name: str) -> bool:
    """Whether the check has anything to say of a rung of that role."""
    if role is Role.LEARN:
        return name not in ("overfit", "fp32_islands")
    return name in (OF_OVERFIT if role is Role.OVERFIT else OF_SINGLE)
