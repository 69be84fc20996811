"""Any causal language model of transformers, made from a config: nothing is downloaded. Trained on what gpt is."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, SequenceParallel

from dist_checks.recipes.base import Attend, Batch
from dist_checks.recipes.gpt import VOCABULARY, GPTRecipe, blocks_of
from dist_checks.recipes.styles import TakenWhole

SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
"""What a config has where ``[options.config]`` does not say it."""

RUN = ("eager", "batched_mm")
"""How experts can be run. (Torch's grouped product, another way of transformers, has no float64.)"""

EXPERTS = ("moe_tp_experts", "packed_colwise", "moe_identity_expert")
"""Styles of modules that are left whole on every rank of tp here."""

NORM_OF_HEADS = "replicated_with_grad_allreduce"

PARTS = {"embed_tokens", "layers", "norm"}
"""Of a model that can be cut into stages."""

ATTENTION = "dist_checks"


class CausalLMRecipe(GPTRecipe):
    """``[options] model_type = "llama"``, and a table ``[options.config]`` of what its config is to be.

    Attention is torch's (sdpa), dropout is off, and nothing is added to the loss of the targets. ``experts`` is how
    transformers is to run experts: "eager", one by one, or "batched_mm", all at once, which compile needs: each token
    then gets a copy of the weights of its experts.
    """

    name = "huggingface"
    masks_alike = ()

    def __init__(
        self,
        *,
        model_type: str = "llama",
        config: Mapping[str, Any] | None = None,
        samples: int = 150,
        ragged: bool = True,
        length: int = 32,
        experts: str = "eager",
    ) -> None:
        from transformers import AutoConfig

        super().__init__(samples=samples, ragged=ragged, length=length)
        if experts not in RUN:
            raise ValueError(f"options.experts ({experts!r}) must be one of {', '.join(RUN)}")
        self.run_experts = experts
        values = {"use_cache": False, **SMALL, **(config or {})}
        try:
            self.config = AutoConfig.for_model(model_type, **values)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"options.model_type {model_type!r} and options.config: {error}") from error
        for name, value in self.config.to_dict().items():
            if "drop" in name and isinstance(value, float):  # no layout draws the same masks
                setattr(self.config, name, 0.0)
        if self.config.vocab_size < VOCABULARY:
            raise ValueError(f"options.config.vocab_size ({self.config.vocab_size}) must be at least {VOCABULARY}")
        self.classes = self.config.vocab_size
        self.layers = self.config.num_hidden_layers
        self.tied = bool(self.config.tie_word_embeddings)
        self._meta = self._made("meta")

    def _made(self, device: str) -> Any:
        from transformers import AutoModelForCausalLM

        with torch.device(device):
            made = AutoModelForCausalLM.from_config(
                copy.deepcopy(self.config),
                attn_implementation="sdpa",
                experts_implementation=self.run_experts,
            )
        return made.float().train()

    def model(self) -> nn.Module:  # type: ignore[override]  # gpt's is a GPT
        made: nn.Module = self._made("cpu")
        return made

    def loss(self, output: Any, batch: Batch) -> tuple[Tensor, int]:
        return super().loss(output if isinstance(output, Tensor) else output.logits, batch)

    def blocks(self, model: nn.Module) -> dict[str, nn.Module]:
        name, layers = _layers(model)
        return {f"{name}.{index}": block for index, block in layers.named_children()}

    # Experts

    def routers(self, model: nn.Module) -> dict[str, nn.Module]:
        """Those whose logits transformers can record."""
        recorder = (getattr(model, "_can_record_outputs", None) or {}).get("router_logits")
        kind = getattr(recorder, "target_class", None)
        return {name: module for name, module in model.named_modules() if kind is not None and isinstance(module, kind)}

    def chosen(self, output: Any, ids: Sequence[int], tokens: tuple[int, int, int] | None) -> Any:
        """Padding goes to experts as well, where it does nothing: it is left out."""
        whole = next((x for x in output if isinstance(x, Tensor) and x.dtype == torch.int64), None)
        if whole is None:
            return output
        inputs = self.collate(ids).inputs
        real = (inputs if tokens is None else inputs[:, slice(*tokens[:2])]) != self.pad
        rows = whole.detach().cpu().view(-1, real.shape[1], whole.shape[-1])[: len(ids)]
        return rows.masked_fill(~real.unsqueeze(-1), -1)

    # Tensor parallelism

    def tensor_parallel_plan(self, *, sequence_parallel: bool) -> dict[str, ParallelStyle] | None:  # type: ignore[override]
        """The model's own, in torch's styles; what it does not mention is whole on every rank. Experts are as well."""
        plan = self._plan()
        if sequence_parallel or not plan:
            return None
        found: dict[str, ParallelStyle] = {}
        for path, module in self._meta.named_modules():
            style = next((style for pattern, style in plan.items() if fnmatchcase(path, pattern)), None)
            if (made := self._style(path, style)) is not None:
                found[path] = made
            elif any(True for _ in module.parameters(recurse=False)):
                found[path] = TakenWhole()
        return found

    def _plan(self) -> Mapping[str, str]:
        return {**(getattr(self._meta, "tp_plan", None) or {})}

    def _style(self, path: str, style: str | None) -> ParallelStyle | None:
        if path == "lm_head" and style is not None:  # sharded over the vocabulary, for loss_parallel
            return ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
        match style:
            case "embedding_rowwise":
                return RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate())
            case "colwise":
                return ColwiseParallel()
            case "rowwise" if not self._is_expert(path):
                return RowwiseParallel()
        if style == NORM_OF_HEADS:  # each rank norms its own heads
            return SequenceParallel(sequence_dim=2, use_local_output=True)
        return None

    def _is_expert(self, path: str) -> bool:
        return ".experts" in path

    def divisors(self) -> dict[str, dict[str, int]]:
        named = {
            "heads": "num_attention_heads",
            "key and value heads": "num_key_value_heads",
            "MLP width": "intermediate_size",
            "vocabulary": "vocab_size",
        }
        found = {what: getattr(self.config, name, None) for what, name in named.items()}
        return {"tp": {what: size for what, size in found.items() if size}, "cp": {"sequence length": self.length}}

    def lacking(self) -> dict[str, str]:
        out = super().lacking()
        kind = self.config.model_type
        if not self._plan():
            out["tp"] = f"needs a tp_plan, which transformers has none of for {kind}"
        else:
            known = {"colwise", "rowwise", "colwise_gather_output", "embedding_rowwise", NORM_OF_HEADS, *EXPERTS}
            if unknown := sorted(set(self._plan().values()) - known):
                out["tp"] = f"meets {unknown[0]!r} in transformers' tp_plan for {kind}, which is not known here"
        out["sp"] = f"is not in transformers' tp_plan for {kind}"
        if self.most_stages == 1:
            out["cp"] = f"needs attention and positions that can be replaced; those of {kind} are not known to be"
            out["pp"] = f"needs a model of {', '.join(sorted(PARTS))}, which {kind} is not"
        if getattr(self.config, "num_experts", None) or getattr(self.config, "num_local_experts", None):
            out["ep"] = "needs experts that take sorted tokens; those of transformers choose inside"
            if self.run_experts == "eager":
                out["compile"] = (
                    "needs experts that run all at once, since a loop over those that were chosen breaks the graph: "
                    'say options.experts = "batched_mm"'
                )
        return out

    # Pipelines

    @property
    def most_stages(self) -> int:
        plan = getattr(self.config, "base_model_pp_plan", None) or {}
        return self.layers + 2 if set(plan) >= PARTS and hasattr(self._meta, "lm_head") else 1

    def stage(self, model: nn.Module, index: int, count: int) -> nn.Module:  # type: ignore[override]
        return Stage(model, blocks_of(self.layers, index, count), first=index == 0, last=index == count - 1)

    # Context parallelism

    def split_sequence(self, model: nn.Module, start: int, attend: Attend) -> None:
        from transformers import AttentionInterface, AttentionMaskInterface

        AttentionInterface.register(ATTENTION, _attention)
        AttentionMaskInterface.register(ATTENTION, _no_mask)
        base: Any = model.get_submodule("model")
        base.config._attn_implementation = ATTENTION
        for module in base.modules():
            if hasattr(module, "is_causal"):
                module.attend = attend
                module.config._attn_implementation = ATTENTION
        original = base.forward

        def forward(*args: Any, input_ids: Tensor, **kwargs: Any) -> Any:
            kwargs["position_ids"] = torch.arange(start, start + input_ids.shape[1], device=input_ids.device)[None]
            return original(*args, input_ids=input_ids, **kwargs)

        base.forward = forward


def _layers(model: nn.Module) -> tuple[str, nn.Module]:
    """The list of blocks, that with the most parameters, and its name."""
    lists = [(name, m) for name, m in model.named_modules() if isinstance(m, nn.ModuleList | Layers)]
    return max(lists, key=lambda each: sum(parameter.numel() for parameter in each[1].parameters()))


class Layers(nn.ModuleDict):
    """Some layers under the numbers that they have in the whole model, which cuts a slice from them."""

    def __getitem__(self, key: Any) -> Any:
        return list(self.values()) if isinstance(key, slice) else super().__getitem__(key)


class Stage(nn.Module):
    """A part of a model: tokens -> residual stream -> residual stream -> logits, as far as the stage reaches."""

    def __init__(self, model: Any, layers: range, *, first: bool, last: bool) -> None:
        super().__init__()
        # Its own forward makes masks and rotary embeddings, so it is kept, with other modules in it.
        base = copy.copy(model.model)
        base._modules = dict(base._modules)
        base.layers = Layers({str(index): model.model.layers[index] for index in layers})
        if not first:
            base.embed_tokens = None
        if not last:
            base.norm = nn.Identity()
        self.model = base
        self.lm_head = model.lm_head if last else None
        self.first = first

    def forward(self, x: Tensor) -> Tensor:
        given = {"input_ids": x} if self.first else {"inputs_embeds": x}
        out: Tensor = self.model(**given).last_hidden_state
        return out if self.lm_head is None else self.lm_head(out)


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, scaling: float | None = None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Of (samples, heads, tokens, size) each, with fewer heads of keys and values perhaps."""
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    root = query.shape[-1] ** -0.5
    if scaling is not None and scaling != root:
        query = query * (scaling / root)
    return module.attend(query, key, value).transpose(1, 2), None


def _no_mask(*args: Any, **kwargs: Any) -> None:
    return None
