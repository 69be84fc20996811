"""Where a rung that resumes is stopped, and the layout that it has in between."""

from __future__ import annotations

import pytest

from dist_checks import restarts
from dist_checks.axes import Setting
from dist_checks.rung import Role, Rung


@pytest.mark.parametrize(
    ("steps", "epoch", "points"), [(4, 2, (1, 3)), (5, 3, (1, 4)), (6, 4, (2, 5)), (200, 4, (2, 5)), (3, 1, (1, 2))]
)
def test_the_second_is_inside_of_the_second_epoch(steps: int, epoch: int, points: tuple[int, int]) -> None:
    assert restarts.points(steps, epoch) == points
    assert points[1] // epoch >= 1
    assert points[1] % epoch or epoch == 1


def test_too_few_steps() -> None:
    rule = (
        r"resume needs at least 6 steps, not 5: it goes on inside of its second epoch, before step 5, where an epoch "
    )
    with pytest.raises(ValueError, match=rule + "has 4 steps"):
        restarts.points(5, 4)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("dp_replicate4", "dp_replicate2"),
        ("dp_replicate3", "dp_replicate2"),
        ("dp_replicate2", "single"),
        ("dp_shard3", "dp_replicate3"),
        ("dp_replicate2+dp_shard3", "dp_replicate3"),
        ("tp2+sp", "single"),
        ("tp4+sp", "tp2+sp"),
        ("pp2+interleaved+accum5", "accum5"),
        ("dp_shard2+cp2+tp2", "dp_replicate2"),
        ("ep2+bf16", "bf16"),
        ("single", "dp_replicate2"),
        ("accum5", "dp_replicate2+accum5"),
    ],
)
def test_the_layout_in_between(name: str, other: str) -> None:
    setting = Setting({**Setting.parse(name), **Setting.parse("resume_other")})
    between = restarts.between(setting)
    assert between is not None
    assert between.name == other
    rung = Rung(id="r", role=Role.RUNG, setting=setting, precision="fp64", seed=0, steps=4, restarts=(1, 3))
    again = Rung.from_json(rung.to_json())
    assert again == rung
    assert [phase.rung.setting.name for phase in again.phases] == [
        setting.name,
        restarts.other(setting).name,
        setting.name,
    ]
    assert [(phase.name, phase.start, phase.stop) for phase in again.phases] == [
        ("phase0", 0, 1),
        ("phase1", 1, 3),
        ("phase2", 3, 4),
    ]


def test_a_rung_that_does_not_resume_is_one_phase() -> None:
    rung = Rung(id="r", role=Role.RUNG, setting=Setting.parse("tp2"), precision="fp64", seed=0, steps=4)
    [phase] = rung.phases
    assert (phase.rung, phase.name, phase.start, phase.stop) == (rung, "", 0, 4)
    assert restarts.between(rung.setting) is None
