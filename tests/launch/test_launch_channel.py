"""Only who knows the secret gets through, on either side."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from typing import Any

import pytest

from launch import channel
from launch.channel import Listener, connect
from launch.wire import Wire


def until_joined(listener: Listener, seconds: float = 5.0) -> list[tuple[str, Wire]]:
    end = time.monotonic() + seconds
    while not (joined := listener.joined()) and time.monotonic() < end:
        time.sleep(0.01)
    return joined


def test_an_agent_that_knows_the_secret_gets_through() -> None:
    listener, found = Listener(), list[Any]()
    joining = threading.Thread(target=lambda: found.append(connect(listener.where, listener.secret, "n1")))
    joining.start()
    [(name, wire)] = until_joined(listener)
    joining.join()
    [(other, address)] = found
    assert name == "n1"
    assert socket.inet_aton(address)
    other.send({"said": "hello"})
    wire.wait(2.0)
    assert wire.receive() == [{"said": "hello"}]
    for each in (wire, other):
        each.close()
    listener.close()


def test_one_that_a_busy_launcher_kept_waiting_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "PATIENCE", 0.2)
    listener, found = Listener(), list[Any]()
    joining = threading.Thread(target=lambda: found.append(connect(listener.where, listener.secret, "n1")))
    joining.start()
    time.sleep(0.1)
    assert listener.joined() == []  # it is asked to prove itself
    time.sleep(1.0)
    monkeypatch.undo()
    [(_, wire)] = until_joined(listener)
    joining.join()
    [(other, _)] = found
    other.send({"said": "hello"})
    wire.wait(2.0)
    assert wire.receive() == [{"said": "hello"}]
    for each in (wire, other):
        each.close()
    listener.close()


def test_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "JOINING", 1.0)
    listener, refused = Listener(), list[str]()

    def intrude() -> None:
        try:
            connect(listener.where, "a guess", "n1")
        except ConnectionError as error:
            refused.append(str(error))

    intruder = threading.Thread(target=intrude)
    intruder.start()
    assert until_joined(listener, 2.0) == []
    intruder.join()
    assert "does not know the secret" in refused[0]
    listener.close()


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", b"[1]\n", b'{"name": 1}\n', b"x" * 10_000])
def test_what_is_no_agent_is_sent_away(said: bytes) -> None:
    listener = Listener()
    port = int(listener.where.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.sendall(said)
        assert until_joined(listener, 0.3) == []
        stranger.settimeout(2.0)
        assert b"nonce" in stranger.recv(4096)
        with suppress(ConnectionResetError):
            assert stranger.recv(4096) == b""
    listener.close()
