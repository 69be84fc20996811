"""Reports of the catalogue a second time, written from the report alone: the same mistake, made in another way."""

from __future__ import annotations

from collections.abc import Sequence

from dist_checks.worker.faults.again import (
    averaged_again,
    dropout_of_its_own,
    expert_hooks,
    final_norm_forgotten,
    mesh_name_test,
    mesh_of_one,
    module_replaced,
    sampler_of_the_world,
    summed_over_cp,
    tie_sent_one_way,
    window_off_by_one,
)
from dist_checks.worker.faults.base import Fault

FAULTS: Sequence[Fault] = (
    averaged_again.FAULT,
    window_off_by_one.FAULT,
    module_replaced.FAULT,
    mesh_of_one.FAULT,
    mesh_name_test.FAULT,
    final_norm_forgotten.FAULT,
    sampler_of_the_world.FAULT,
    tie_sent_one_way.FAULT,
    summed_over_cp.FAULT,
    expert_hooks.FAULT,
    dropout_of_its_own.FAULT,
)
