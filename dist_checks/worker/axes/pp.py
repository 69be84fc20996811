"""pp: this rank keeps its stages of the model; :mod:`dist_checks.worker.pipelining` runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from torch import nn

from dist_checks import pipeline
from dist_checks.axes import Axis
from dist_checks.probe.names import STAGE
from dist_checks.recipes.base import Recipe
from dist_checks.worker.axes import tp
from dist_checks.worker.mesh import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Tie:
    """One parameter of the model that several ranks have a copy of, because several stages use it."""

    names: Mapping[int, str]
    """Its name at each coordinate of pp that has one."""

    @property
    def first(self) -> str:
        """What the single calls it."""
        return next(iter(self.names.values()))


class Stages(nn.Module):
    """A rank's part of the model; not called itself."""

    def __init__(self, stages: Mapping[int, nn.Module], ties: tuple[Tie, ...], at: int) -> None:
        super().__init__()
        self.ties = ties
        self.at = at
        """This rank's coordinate of pp."""
        for index, stage in stages.items():
            self.add_module(f"{STAGE}{index}", stage)

    @property
    def by_index(self) -> dict[int, nn.Module]:
        return {int(name.removeprefix(STAGE)): stage for name, stage in self.named_children()}

    @property
    def copies(self) -> dict[str, str]:
        """Of parameters here that are copies of one on an earlier stage: name here -> name there."""
        return {tie.names[self.at]: tie.first for tie in self.ties if tie.names.get(self.at, tie.first) != tie.first}


def apply(model: nn.Module, recipe: Recipe, world: World) -> nn.Module:
    """Raises ValueError where the recipe cannot be cut into so many stages."""
    if world.degree(Axis.PP) == 1:
        return model
    setting = world.rung.setting
    count = pipeline.stages(setting)
    if count > recipe.most_stages:
        raise ValueError(f"{count} stages of a pipeline are more than recipe {recipe.name} has ({recipe.most_stages})")
    stages = {index: recipe.stage(model, index, count) for index in range(count)}
    at = world.layout.coordinates(world.rank)[Axis.PP]
    mine = pipeline.stages_of(setting, at)
    ties = tuple(_ties(model, stages, world))
    return Stages({index: stages[index] for index in mine}, ties, at)


def _ties(model: nn.Module, stages: Mapping[int, nn.Module], world: World) -> Iterator[Tie]:
    """The parameters that stages of several ranks use, by what they are called there."""
    home = {index: at for at in range(world.degree(Axis.PP)) for index in pipeline.stages_of(world.rung.setting, at)}
    for group in tp.tied(model):
        names: dict[int, str] = {}
        for name in group:
            for index, stage in stages.items():
                if name in dict(stage.named_parameters(remove_duplicate=False)):
                    names.setdefault(home[index], name)
        if len(names) > 1:
            yield Tie(names=names)


def each(model: nn.Module, change: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """``model`` with ``change`` made to it; of a pipeline, to each stage: each is wrapped and called on its own."""
    if not isinstance(model, Stages):
        return change(model)
    for index, stage in model.by_index.items():
        setattr(model, f"{STAGE}{index}", change(stage))
    return model


def held(model: nn.Module, blocks: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """The blocks that this rank has."""
    if not isinstance(model, Stages):
        return dict(blocks)
    mine = set(model.modules())
    return {name: block for name, block in blocks.items() if block in mine}


def copies(model: nn.Module) -> dict[str, str]:
    """See :attr:`Stages.copies`; nothing where there is no pipeline."""
    return model.copies if isinstance(model, Stages) else {}
