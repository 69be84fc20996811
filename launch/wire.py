"""JSON lines both ways between a launcher and an agent, over any pair of file descriptors, without ever blocking."""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
from typing import Any

Message = dict[str, Any]


class Wire:
    """One end of a conversation.

    What cannot be sent at once is kept and sent by `flush`: neither side may wait for the other, because an agent must
    keep its deadlines while its launcher is busy, and a launcher must outlive an agent that hangs.
    """

    def __init__(self, reading: int, writing: int) -> None:
        """Takes over two file descriptors."""
        assert reading != writing, reading
        self.reading, self.writing = reading, writing
        self.open = True  # False once the other side is gone
        self._incoming = b""
        self._outgoing = bytearray()
        for fd in (reading, writing):
            os.set_blocking(fd, False)

    @property
    def pending(self) -> bool:
        """Something is left to be sent by `flush`."""
        return self.open and bool(self._outgoing)

    @property
    def unread(self) -> int:
        """Bytes of a message that has not arrived whole."""
        return len(self._incoming)

    def wait(self, timeout: float, *others: int) -> None:
        """Returns when there is something to do, on this wire or on other file descriptors, or after some seconds."""
        poll = select.poll()
        for fd in (*others, *([self.reading] if self.open else [])):
            poll.register(fd, select.POLLIN)
        if self.pending:
            poll.register(self.writing, select.POLLOUT)
        poll.poll(max(0.0, math.ceil(timeout * 1000)))

    def send(self, message: Message) -> None:
        self._outgoing += json.dumps(message).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Sends what the other side has room for."""
        try:
            while self.open and self._outgoing:
                del self._outgoing[: os.write(self.writing, self._outgoing)]
        except BlockingIOError:
            pass
        except OSError:  # reset, broken pipe
            self.open = False

    def receive(self) -> list[Message]:
        """Every whole message that has arrived."""
        with contextlib.suppress(BlockingIOError):
            while self.open:
                try:
                    data = os.read(self.reading, 1 << 16)
                except ConnectionError:
                    data = b""
                self.open = bool(data)
                self._incoming += data
        *lines, self._incoming = self._incoming.split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        self.open = False
        for fd in (self.reading, self.writing):
            os.close(fd)
