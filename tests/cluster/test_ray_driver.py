"""How the process that talks to Ray gets to a cluster; Ray itself is not started."""

from __future__ import annotations

from typing import Any

import parts
import pytest

if parts.missing("ray"):
    pytest.skip(parts.missing("ray"), allow_module_level=True)

from launch import ray_driver  # not where Ray is not installed
from launch.process import free_port


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Addresses that Ray was asked for; the first two times it does not start."""
    asked: list[str] = []

    def init(address: str, **_: Any) -> None:
        asked.append(address)
        if len(asked) < 3:
            raise Exception("The current node timed out\nduring startup.")

    monkeypatch.setattr(ray_driver.ray, "init", init)
    monkeypatch.setattr(ray_driver.ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray_driver, "_knock", lambda address: None)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return asked


def test_a_ray_of_its_own_is_tried_again(tried: list[str]) -> None:
    ray_driver.connect("", 2)
    assert tried == ["local"] * 3


def test_a_cluster_that_is_not_there_is_told_at_once(tried: list[str]) -> None:
    with pytest.raises(ConnectionError, match=r"no Ray cluster at .*: The current node timed out during startup"):
        ray_driver.connect("10.0.0.1:6379", None)
    assert len(tried) == 1


def test_nobody_listens_there() -> None:
    port = free_port()
    with pytest.raises(ConnectionError, match=rf"no Ray cluster at '127.0.0.1:{port}': Connection refused"):
        ray_driver.connect(f"127.0.0.1:{port}", None)


def test_what_ray_raises_is_an_answer(tried: list[str]) -> None:
    asked = {"do": "place", "address": "10.0.0.1:1", "cpus": None}
    answer = ray_driver.Driver().answer(asked)
    assert answer["error"].startswith("ConnectionError: no Ray cluster at '10.0.0.1:1'")
