"""Which slots of which nodes a job takes."""

from __future__ import annotations

import os

from launch.nodes import Node, holds, place
from launch.wire import Wire


def node(name: str, slots: int, free: int | None = None, devices: int = 0) -> Node:
    reading, writing = os.pipe()
    made = Node(name=name, wire=Wire(reading, writing), slots=slots, devices=[str(d) for d in range(devices)])
    made.free = list(range(slots if free is None else free))
    made.wire.close()
    return made


def sizes(placing: dict[str, list[int]] | None) -> dict[str, int] | None:
    return placing and {name: len(slots) for name, slots in placing.items()}


FOUR = [node(f"n{index}", 4) for index in range(1, 5)]


def test_as_few_nodes_as_hold_the_ranks() -> None:
    assert sizes(place(4, FOUR, most=None, cold=False)) == {"n1": 4}
    assert sizes(place(8, FOUR, most=None, cold=False)) == {"n1": 4, "n2": 4}
    assert sizes(place(8, FOUR, most=2, cold=False)) == {"n1": 2, "n2": 2, "n3": 2, "n4": 2}


def test_evenly_where_they_do_not_fill_the_nodes() -> None:
    assert sizes(place(6, FOUR, most=None, cold=False)) == {"n1": 3, "n2": 3}
    assert sizes(place(3, FOUR, most=2, cold=False)) == {"n1": 2, "n2": 1}


def test_it_waits_for_slots_that_others_have() -> None:
    busy = [node("n1", 4, free=1), node("n2", 4, free=2)]
    assert place(4, busy, most=None, cold=False) is None
    assert sizes(place(3, busy, most=None, cold=False)) == {"n1": 1, "n2": 2}


def test_the_limit_gives_way_where_nodes_are_too_few() -> None:
    assert sizes(place(8, FOUR[:3], most=2, cold=False)) == {"n1": 4, "n2": 4}


def test_a_cold_job_is_on_one_node() -> None:
    assert sizes(place(4, FOUR, most=2, cold=True)) == {"n1": 4}


def test_cpus_are_shared_where_there_are_too_few_and_devices_are_not() -> None:
    two = [node("n1", 1), node("n2", 1)]
    assert sizes(place(5, two, most=None, cold=False)) == {"n1": 3, "n2": 2}
    assert place(5, [node("n1", 1), node("n2", 1, free=0)], most=None, cold=False) is None
    with_devices = [node("n1", 1, devices=1), node("n2", 1, devices=1)]
    assert not holds(5, with_devices, cold=False)
    assert place(5, with_devices, most=None, cold=False) is None
    assert holds(2, with_devices, cold=False)
    assert not holds(2, with_devices, cold=True)
    assert not holds(1, [], cold=False)
