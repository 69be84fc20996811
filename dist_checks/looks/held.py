"""One batch, over and over, in a script that would read others; without dropout, which nobody memorises."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader

T = TypeVar("T")

DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")


def copied(value: T) -> T:
    """With tensors of its own: a loop may change them in place."""
    return tree_map(lambda x: x.detach().clone() if isinstance(x, Tensor) else x, value)  # type: ignore[no-any-return]  # untyped


def held(batches: Iterable[T], kept: list[T]) -> Iterator[T]:
    """As many as ``batches`` are, and each the first of all, which is put into ``kept``."""
    for batch in batches:
        if not kept:
            kept.append(copied(batch))
        yield copied(kept[0])


def hold_loaders() -> None:
    """From now on every DataLoader gives its first batch in the place of each other."""
    original = DataLoader.__iter__
    if hasattr(original, "holds"):
        return
    kept: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()

    def held_iter(loader: Any) -> Iterator[Any]:
        return held(original(loader), kept.setdefault(loader, []))

    held_iter.holds = True  # type: ignore[attr-defined]  # asked for above
    DataLoader.__iter__ = held_iter  # type: ignore[assignment,method-assign]  # whoever opens one


def drop_nothing() -> None:
    """From now on what torch computes drops nothing, whoever asks for it."""
    for name in DROPOUTS:
        setattr(F, name, _without(getattr(F, name)))
    F.scaled_dot_product_attention = _attention_without(F.scaled_dot_product_attention)


def _without(original: Callable[..., Any]) -> Callable[..., Any]:
    def keep(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        return original(input, p, False)

    return keep


def _attention_without(original: Callable[..., Any]) -> Callable[..., Any]:
    def attend(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, *rest: Any, **named: Any
    ) -> Any:
        return original(query, key, value, attn_mask, 0.0, *rest, **named)

    return attend


def without_decay(optimizers: Iterable[Optimizer]) -> None:
    """Weights are drawn to nothing but what is to be memorised."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if group.get("weight_decay"):
                group["weight_decay"] = torch.zeros_like(w) if isinstance(w := group["weight_decay"], Tensor) else 0.0
