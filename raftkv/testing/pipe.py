"""One direction of a connection of the simulated network.

Bytes arrive in order, once, or not at all; what is lost is lost from the end, never from the
middle. What the receiver is given has nothing to do with how it was written: writes are joined and
split at random, so that mistakes in framing show.

A pipe carries chunks, each with the time it is ready at the far end, and has at most one timer. It
is silent while its link is blocked, and while the far end pauses reading or has no protocol yet;
whoever ends that calls `wake`. `Mark.END` behind the last chunk is the orderly end (close,
write_eof), `Mark.RESET` the news that the other side is gone.
"""

from __future__ import annotations

import enum
import zlib
from collections import deque
from typing import TYPE_CHECKING

from raftkv.testing.clock import SimHandle

if TYPE_CHECKING:
    from raftkv.testing.network import Link, SimNetwork
    from raftkv.testing.stream import SimTransport

__all__ = ["Mark", "Pipe"]


class Mark(enum.Enum):
    """What may stand behind the last byte of a pipe."""

    END = "end"
    RESET = "reset"


class Chunk:
    """Bytes, or a mark, that are at the far end from `ready_s` on."""

    __slots__ = ("content", "ready_s")

    def __init__(self, ready_s: float, content: list[bytes] | Mark) -> None:
        self.ready_s = ready_s
        self.content = content


class Pipe:
    """One direction of a connection."""

    __slots__ = (
        "_chunks",
        "_last_ready_s",
        "_network",
        "_source",
        "_target",
        "_timer",
        "_written_s",
        "link",
        "pending_bytes",
    )

    def __init__(
        self, network: SimNetwork, link: Link, source: SimTransport, target: SimTransport
    ) -> None:
        self.link = link
        self.pending_bytes = 0
        self._network = network
        self._source = source
        self._target = target
        self._chunks: deque[Chunk] = deque()
        self._timer: SimHandle | None = None
        self._last_ready_s = 0.0
        self._written_s = -1.0

    def send(self, data: bytes) -> None:
        self.pending_bytes += len(data)
        now = self._network.loop.now
        if now == self._written_s and self._chunks:
            tail = self._chunks[-1].content
            if isinstance(tail, list):
                tail.append(data)
                return
        self._written_s = now
        self._push([data])

    def send_mark(self, mark: Mark) -> None:
        self._push(mark)

    def _push(self, content: list[bytes] | Mark) -> None:
        ready_s = self._network.loop.now + self._network.delay_s()
        # Order within a connection: nobody overtakes.
        if ready_s < self._last_ready_s:
            ready_s = self._last_ready_s
        self._last_ready_s = ready_s
        self._chunks.append(Chunk(ready_s, content))
        self.wake()

    def wake(self) -> None:
        """Set the timer for the next chunk unless something holds the pipe."""
        target = self._target
        if self._timer is not None or not self._chunks or not target.accepts:
            return
        when = max(self._chunks[0].ready_s, self.link.blocked_until_s)
        if when != float("inf"):
            loop = self._network.loop
            self._timer = loop.call_at(when, self._arrive, context=target.context)

    def rearm(self) -> None:
        """As `wake`, after the link was opened earlier than its timer knew."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.wake()

    def lose(self) -> None:
        """Everything on its way is lost."""
        self._chunks.clear()
        self.pending_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def lose_tail(self) -> None:
        """A random part of what is on its way is lost, from the end."""
        keep = self._network.rng.randint(0, len(self._chunks))
        while len(self._chunks) > keep:
            content = self._chunks.pop().content
            if isinstance(content, list):
                self.pending_bytes -= sum(map(len, content))
        if not self._chunks:
            self.lose()

    def _arrive(self) -> None:
        """Hand over what has arrived by now. Runs in the context of the receiver."""
        self._timer = None
        target = self._target
        now = self._network.loop.now
        if self.link.blocked_until_s <= now and target.accepts:
            parts: list[bytes] = []
            mark: Mark | None = None
            chunks = self._chunks
            while chunks and chunks[0].ready_s <= now and mark is None:
                content = chunks[0].content
                if isinstance(content, Mark):
                    if parts:
                        break
                    mark = content
                else:
                    parts.extend(content)
                chunks.popleft()
            if parts:
                self._deliver(parts[0] if len(parts) == 1 else b"".join(parts))
            elif mark is Mark.END:
                target.end_received()
            elif mark is Mark.RESET:
                target.lost(ConnectionResetError("the connection was reset by the peer"))
        self.wake()

    def _deliver(self, data: bytes) -> None:
        network = self._network
        if len(data) > 1 and network.rng.random() < network.options.split_probability:
            cut = network.rng.randrange(1, len(data))
            rest_ready_s = network.loop.now + network.options.latency_min_s
            self._chunks.appendleft(Chunk(rest_ready_s, [data[cut:]]))
            data = data[:cut]
        self.pending_bytes -= len(data)
        source = self._source
        if source.write_paused and self.pending_bytes <= source.low_water_bytes:
            network.loop.call_soon(source.drained, context=source.context)
        target = self._target
        if network.record is not None and network.records_deliveries:
            network.record(target.host, f"< {source.host} {len(data)} bytes {zlib.crc32(data):08x}")
        target.received(data)
