"""O03: a run that goes on makes its sampler anew, with epoch 0, and then skips the batches that were read."""

from __future__ import annotations

from collections.abc import Mapping

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker.data import Loader
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    def load_state_dict(self: Loader, state: Mapping[str, int]) -> None:
        self.epoch, self.at = 0, state["at"]

    Loader.load_state_dict = load_state_dict  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="O03",
    title="a resumed loader skips the right batches of the wrong epoch: right in the first epoch and at its end",
    source="huggingface/accelerate PR#4071",
    axes=((Axis.RESUME,),),
    check="resume",
    plant=plant,
    planted_in={"axes": {"resume": ["same"], "dp_replicate": 2}, "steps": 4, "options": {"samples": 61}},
    step=3,
)
