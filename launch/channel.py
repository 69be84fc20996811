"""How an agent on another machine and its launcher find each other: TCP, and both prove that they know one secret.

What follows the handshake is neither encrypted nor signed: meant for the network inside a cluster.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field

from launch.wire import Message, Wire

SECRET = "LAUNCH_SECRET"  # environment variable of an agent; on a command line everybody could read it
PATIENCE = 10.0  # seconds that either side has to prove itself: the other may be busy
LONGEST = 4096  # bytes that it may have said by then
JOINING = 120.0  # seconds that an agent tries to reach its launcher
TRY = 3.0  # seconds for one address


def _proof(secret: str, *words: str) -> str:
    return hmac.new(secret.encode(), "\n".join(words).encode(), hashlib.sha256).hexdigest()


@dataclass(slots=True)
class _Stranger:
    """Has connected, and has proved nothing yet."""

    wire: Wire
    nonce: str = field(default_factory=lambda: secrets.token_hex(16))
    since: float = field(default_factory=time.monotonic)


class Listener:
    """Where agents connect to."""

    def __init__(self) -> None:
        self.secret = secrets.token_hex(32)
        self._socket = socket.create_server(("", 0), backlog=1024)
        self._socket.setblocking(False)
        self._strangers: list[_Stranger] = []

    @property
    def where(self) -> str:
        """``address,address:port``, to be tried in this order: those that other machines can reach first."""
        return f"{','.join(_addresses())}:{self._socket.getsockname()[1]}"

    @property
    def wires(self) -> list[int]:
        """File descriptors that something may arrive at."""
        return [self._socket.fileno(), *(stranger.wire.reading for stranger in self._strangers)]

    def joined(self) -> list[tuple[str, Wire]]:
        """Name and wire of each agent that has proved itself since the last call; never blocks."""
        with suppress(BlockingIOError):
            while True:
                connection, _ = self._socket.accept()
                stranger = _Stranger(wire_of(connection))
                stranger.wire.send({"nonce": stranger.nonce})
                self._strangers.append(stranger)
        strangers, self._strangers, joined = self._strangers, [], []
        for stranger in strangers:
            name = self._examine(stranger)
            if name:
                joined.append((name, stranger.wire))
            elif name is None and time.monotonic() < stranger.since + PATIENCE:
                self._strangers.append(stranger)
            else:
                stranger.wire.close()
        return joined

    def _examine(self, stranger: _Stranger) -> str | None:
        """Its name; None if it has not said anything yet; '' if it is to be sent away."""
        try:
            answers = stranger.wire.receive()
            if not stranger.wire.open:
                return ""  # an agent that has not waited, and is trying again
            if not answers:
                return None if stranger.wire.unread < LONGEST else ""
            name, nonce, proof = (str(answers[0][word]) for word in ("name", "nonce", "proof"))
        except (ValueError, LookupError, TypeError):
            return ""
        if not hmac.compare_digest(proof, _proof(self.secret, "agent", stranger.nonce, nonce, name)):
            return ""
        stranger.wire.send({"proof": _proof(self.secret, "launcher", stranger.nonce, nonce, name)})
        return name

    def close(self) -> None:
        for stranger in self._strangers:
            stranger.wire.close()
        self._strangers = []
        self._socket.close()


def connect(where: str, secret: str, name: str) -> tuple[Wire, str]:
    """The wire to the launcher that listens there, and the address of this machine that it sees.

    Raises ConnectionError if none of the addresses answers rightly for some minutes.
    """
    addresses, _, port = where.rpartition(":")
    until, reason = time.monotonic() + JOINING, ""
    while time.monotonic() < until:
        for address in addresses.split(","):
            try:
                connection = socket.create_connection((address, int(port)), timeout=TRY)
                wire = wire_of(connection)
            except OSError as error:
                reason = f"{address}: {error}"
                continue
            if _introduce(wire, secret, name):
                return wire, _own(wire)
            reason = f"{address}: who listens there does not know the secret"
            wire.close()
        time.sleep(0.5)
    raise ConnectionError(f"no launcher at {where}: {reason}")


def _introduce(wire: Wire, secret: str, name: str) -> bool:
    try:
        nonce, own = str(_hear(wire)["nonce"]), secrets.token_hex(16)
        wire.send({"name": name, "nonce": own, "proof": _proof(secret, "agent", nonce, own, name)})
        return hmac.compare_digest(str(_hear(wire)["proof"]), _proof(secret, "launcher", nonce, own, name))
    except (ValueError, LookupError, TypeError):
        return False


def _hear(wire: Wire) -> Message:
    until = time.monotonic() + PATIENCE
    while wire.open and time.monotonic() < until:
        wire.wait(until - time.monotonic())
        if messages := wire.receive():
            return messages[0]
    raise ValueError("no answer")


def wire_of(connection: socket.socket) -> Wire:
    """Takes the connection over. A peer whose machine is gone is noticed by the operating system, too."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    reading = os.dup(connection.fileno())
    return Wire(reading, connection.detach())


def _own(wire: Wire) -> str:
    with socket.socket(fileno=os.dup(wire.reading)) as connection:
        address: str = connection.getsockname()[0]
        return address


def _addresses() -> list[str]:
    """Of this machine: what other machines can reach, then its names, then what only processes here can."""
    found: list[str] = []
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing: asks which address would be used to go out
        found.append(probe.getsockname()[0])
    with suppress(OSError):
        found += [str(info[4][0]) for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)]
    near = [address for address in found if address.startswith("127.")]
    return list(dict.fromkeys([*(a for a in found if a not in near), socket.gethostname(), *near, "127.0.0.1"]))
