"""Settings name themselves, and layouts place each rank once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dist_checks.axes import SPEC, SPECS, Axis, Layout, Setting
from dist_checks.rung import Role, Rung

SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "dp_replicate": st.integers(1, 3),
        "dp_shard": st.integers(1, 3),
        "cp": st.integers(1, 3),
        "tp": st.integers(1, 4),
        "accum": st.integers(1, 5),
        "precision": st.sampled_from(SPEC[Axis.PRECISION].choices),
    },
).map(Setting)


def test_every_axis_has_one_spec() -> None:
    assert [spec.axis for spec in SPECS] == list(Axis)


def test_names() -> None:
    assert Setting().name == "single"
    assert Setting({"accum": 5, "tp": 2, "sp": True, "precision": "bf16"}).name == "tp2+sp+accum5+bf16"
    assert Setting({"tp": 1, "sp": False}).name == "single"


@given(SETTINGS)
def test_a_name_gives_the_setting_back(setting: Setting) -> None:
    assert Setting.parse(setting.name) == setting
    assert hash(Setting.parse(setting.name)) == hash(setting)


@pytest.mark.parametrize("name", ["tp", "tp2+", "sp2", "tp2+tp4", "xp2", ""])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(ValueError, match=r"is no axis with its value|twice"):
        Setting.parse(name)


def test_an_axis_that_another_needs_cannot_be_switched_off_alone() -> None:
    setting = Setting({"tp": 2, "sp": True, "accum": 5})
    assert {axis: near.name for axis, near in setting.neighbours().items()} == {
        Axis.SP: "tp2+accum5",
        Axis.ACCUM: "tp2+sp",
    }


@given(SETTINGS)
def test_groups_partition_the_world(setting: Setting) -> None:
    layout = Layout(setting)
    for axis, degree in layout.degrees.items():
        groups = layout.groups(axis)
        assert sorted(rank for group in groups for rank in group) == list(range(layout.world_size))
        assert {len(group) for group in groups} == {degree}
    for group in layout.groups(*layout.model_axes):
        assert len({layout.data_rank(rank) for rank in group}) == 1
    assert {layout.data_rank(rank) for rank in range(layout.world_size)} == set(range(layout.data_size))
    for group in layout.groups(*layout.loss_axes):
        assert len({layout.loss_part(rank) for rank in group}) == len(group) == layout.loss_parts


def test_sp_cuts_what_cp_has_left() -> None:
    setting = Setting({"cp": 2, "tp": 4, "sp": True})
    assert setting.cutters(Axis.SP) == (Axis.CP, Axis.TP)
    assert setting.cutters(Axis.CP) == (Axis.CP,)
    assert setting.must_divide(Axis.SP, "the length", 36) == "cp x tp degree (2 x 4) must divide the length (36)"
    assert not setting.must_divide(Axis.CP, "the length", 36)


def test_tensor_parallel_ranks_are_next_to_each_other() -> None:
    layout = Layout(Setting({"dp_replicate": 3, "tp": 2}))
    assert layout.groups(Axis.TP) == ((0, 1), (2, 3), (4, 5))
    assert {axis: at for axis, at in layout.coordinates(3).items() if at} == {Axis.DP_REPLICATE: 1, Axis.TP: 1}


@given(SETTINGS)
def test_a_rung_survives_json(setting: Setting) -> None:
    rung = Rung(id=setting.name, role=Role.RUNG, setting=setting, precision="fp64", seed=0, steps=3, reference="single")
    assert Rung.from_json(rung.to_json()) == rung


def test_an_axis_works_in_its_own_groups_or_in_those_of_what_it_needs() -> None:
    layout = Layout(Setting.parse("dp_replicate2+tp2+sp+accum5"))
    assert layout.lines(Axis.TP) == layout.lines(Axis.SP) == ((0, 1), (2, 3))
    assert layout.lines(Axis.DP_REPLICATE) == ((0, 2), (1, 3))
    assert set(layout.lines(Axis.ACCUM)) == {(0, 1), (2, 3), (0, 2), (1, 3)}
