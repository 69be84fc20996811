"""Which modules are the blocks of a model that says nothing of them."""

from __future__ import annotations

from torch import nn

from dist_checks.probe import compiling
from dist_checks.probe.names import STAGE, plain_names


def blocks_of(model: nn.Module) -> dict[str, nn.Module]:
    """The list of at least two modules of one class that holds the most parameters, by plain name. None inside a graph
    of torch.compile, which would take a hook in."""
    compiled = compiling.inside_compiled(model)
    found: dict[str, nn.Module] = {}
    most = 0
    for name, module in model.named_modules():
        children = list(module.named_children())
        if compiled.intersection(child for _, child in children):
            continue
        if not isinstance(module, nn.ModuleList | nn.ModuleDict) or len({type(child) for _, child in children}) != 1:
            continue
        size = sum(parameter.numel() for parameter in module.parameters())
        if any(child.startswith(STAGE) for child, _ in children):  # of a pipeline: not in the order in which they run
            continue
        if len(children) > 1 and size > most:
            names = plain_names(f"{name}.{child}" for child, _ in children)
            found, most = dict(zip(names.values(), (child for _, child in children), strict=True)), size
    return found
