"""Imported by the fork server of a ladder with the recipe huggingface: what transformers takes seconds to import."""

from __future__ import annotations

import contextlib
import importlib

MODULES = (
    "transformers.models.auto.modeling_auto",
    "transformers.models.llama.modeling_llama",
    "transformers.masking_utils",
    "transformers.trainer",
)

with contextlib.suppress(ImportError):  # loading the recipe says so
    for name in MODULES:
        importlib.import_module(name)
