"""The network between the nodes: a TCP proxy that knows who speaks to whom.

The address that a node gives others is this proxy's, so nobody reaches a node but through it. Who
dials is seen from where the connection comes from: each node dials from a loopback address of its
own (node.py). So every connection belongs to one ordered pair (dialler, target), and each of its
two directions to one `Flow` (sender, receiver). Who dials from another address is not known by
name, and is treated as badly as the worst-treated one of its target.

What a flow can do:

    open     deliver, after `delay_s` and at `rate_bytes_s` if those are set
    silent   deliver nothing and say nothing: what is sent is kept and arrives after healing, as
             with TCP over a network that drops packets. Both ends believe in their connection.
             No new connection is made while either direction is silent.
    cut      reset the connections, and every new one at once

Order within a connection is kept always; nothing is lost but by a reset, as with TCP.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Literal, cast

__all__ = ["ANYBODY", "Flow", "Network"]

HOST = "127.0.0.1"

ANYBODY = "?"
"""The dialler of a connection from an address that belongs to no node."""

HELD_BYTES_MAX = 1 << 20
"""A silent direction takes so much, then reads no more, and the sender's buffers fill."""

State = Literal["open", "silent", "cut"]


class Flow:
    """What one node sends to another, over whichever connections."""

    def __init__(self, sender: str, receiver: str) -> None:
        self.sender = sender
        self.receiver = receiver
        self.state: State = "open"
        self.delay_s = 0.0
        self.rate_bytes_s = 0.0
        # Evidence: what the states above have met.
        self.bytes = 0
        self.bytes_held = 0
        self.bytes_delayed = 0
        self.resets = 0
        self.refusals = 0
        self.lanes: set[_Lane] = set()

    @property
    def evidence(self) -> int:
        """Grows whenever a fault of this flow met traffic."""
        return self.bytes_held + self.bytes_delayed + self.resets + self.refusals


class _Lane:
    """One direction of one connection: a queue with due times."""

    def __init__(self, flow: Flow, pair: _Pair) -> None:
        self.flow = flow
        self._pair = pair
        self._queue: deque[tuple[float, bytes]] = deque()
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None
        self._last_due = 0.0
        self._ended = False
        self._paused = False
        self.source: asyncio.Transport | None = None
        self.target: asyncio.Transport | None = None
        flow.lanes.add(self)

    def move(self, flow: Flow) -> None:
        """It is known now whose lane this is."""
        self.flow.lanes.discard(self)
        self.flow = flow
        flow.lanes.add(self)

    def push(self, data: bytes) -> None:
        flow, now = self.flow, asyncio.get_running_loop().time()
        flow.bytes += len(data)
        due = now + flow.delay_s
        if flow.delay_s or flow.rate_bytes_s:
            flow.bytes_delayed += len(data)
            if flow.rate_bytes_s:
                due = max(due, self._last_due) + len(data) / flow.rate_bytes_s
        if flow.state == "silent":
            flow.bytes_held += len(data)
        self._last_due = max(due, self._last_due)
        self._queue.append((self._last_due, data))
        self._size += len(data)
        self.pump()

    def end(self) -> None:
        """The sender has closed: the receiver learns it behind all that was sent before."""
        self._ended = True
        self.pump()

    def pump(self) -> None:
        """Deliver what is due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._deliver()
        self._throttle()

    def _deliver(self) -> None:
        target = self.target
        if target is None or self.flow.state != "open":
            return
        if target.is_closing():
            self._queue.clear()
            self._size = 0
            return
        now = asyncio.get_running_loop().time()
        while self._queue and self._queue[0][0] <= now:
            _, data = self._queue.popleft()
            self._size -= len(data)
            target.write(data)
        if self._queue:
            wait_s = self._queue[0][0] - now
            self._timer = asyncio.get_running_loop().call_later(wait_s, self.pump)
        elif self._ended:
            target.close()

    def _throttle(self) -> None:
        full = self._size > HELD_BYTES_MAX
        if full is self._paused or self.source is None or self.source.is_closing():
            return
        self._paused = full
        if full:
            self.source.pause_reading()
        else:
            self.source.resume_reading()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.flow.lanes.discard(self)

    def reset(self) -> None:
        self._pair.reset()


class _End(asyncio.Protocol):
    """One of the two connections of a pair."""

    def __init__(self, pair: _Pair, lane: _Lane, back: _Lane) -> None:
        self._pair = pair
        self._lane = lane
        self._back = back
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._lane.source = self.transport
        self._back.target = self.transport
        self._pair.made(self)

    def data_received(self, data: bytes) -> None:
        self._lane.push(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._lane.source = None
        self._pair.lost(self._lane)


class _Pair:
    """One proxied connection: `near` to the node that dialled, `far` to the node it wants."""

    def __init__(self, network: Network, target: str) -> None:
        self._network = network
        self._target = target
        self.there = _Lane(network.flow(ANYBODY, target), self)
        self.back = _Lane(network.flow(target, ANYBODY), self)
        self.near = _End(self, self.there, self.back)
        self.far = _End(self, self.back, self.there)
        self._dialling: asyncio.Task[None] | None = None
        self._ends = 0

    def made(self, end: _End) -> None:
        self._ends += 1
        if end is self.far:
            self.there.pump()
            return
        assert end.transport is not None
        dialler = self._network.who(end.transport.get_extra_info("peername")[0])
        self.there.move(self._network.flow(dialler, self._target))
        self.back.move(self._network.flow(self._target, dialler))
        if "cut" in (self.there.flow.state, self.back.flow.state):
            self.there.flow.refusals += 1
            self.reset()
        else:
            self._dialling = asyncio.get_running_loop().create_task(self._dial())

    async def _dial(self) -> None:
        await self._network.passable(self.there.flow, self.back.flow)
        if self.near.transport is None or self.near.transport.is_closing():
            return
        host, port = self._network.addresses[self._target]
        try:
            await asyncio.get_running_loop().create_connection(lambda: self.far, host, port)
        except OSError:
            self.reset()  # nobody listens there: the dialler is to learn that

    def lost(self, lane: _Lane) -> None:
        self._ends -= 1
        lane.end()
        if not self._ends:
            if self._dialling is not None:
                self._dialling.cancel()
            self.there.close()
            self.back.close()

    def reset(self) -> None:
        for end in (self.near, self.far):
            if end.transport is not None and not end.transport.is_closing():
                end.transport.abort()


class Network:
    """All links of a cluster.

    `addresses` are where the nodes listen in truth, `sources` the hosts that they dial from.
    """

    def __init__(self) -> None:
        self.addresses: dict[str, tuple[str, int]] = {}
        self.sources: dict[str, str] = {}
        self._flows: dict[tuple[str, str], Flow] = {}
        self._servers: list[asyncio.Server] = []
        self._healed = asyncio.Event()

    def flow(self, sender: str, receiver: str) -> Flow:
        """The flow between two nodes; `ANYBODY` stands for an unknown one."""
        key = sender, receiver
        if key not in self._flows:
            self._flows[key] = Flow(sender, receiver)
        return self._flows[key]

    def who(self, host: str) -> str:
        """The node that dials from this host."""
        names = [name for name, source in self.sources.items() if source == host]
        return names[0] if names else ANYBODY

    async def listen(self, target: str) -> str:
        """Open the port at which others reach `target`; its address."""
        server = await asyncio.get_running_loop().create_server(
            lambda: _Pair(self, target).near, HOST, 0, backlog=256
        )
        self._servers.append(server)
        return f"{HOST}:{server.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        for server in self._servers:
            server.close()
        for flow in self._flows.values():
            for lane in list(flow.lanes):
                lane.reset()

    # -- faults

    def set_state(self, sender: str, receiver: str, state: State) -> None:
        """Cut or silence what `sender` sends to `receiver`, or open it again."""
        for flow in self._touched(sender, receiver):
            flow.state = state
            for lane in list(flow.lanes):
                if state == "cut":
                    flow.resets += 1
                    lane.reset()
                else:
                    lane.pump()
        self._healed.set()
        self._healed = asyncio.Event()

    def slow_down(
        self, sender: str, receiver: str, delay_s: float, rate_bytes_s: float = 0.0
    ) -> None:
        """Delay what `sender` sends to `receiver`, and bound its rate (0: not)."""
        for flow in self._touched(sender, receiver):
            flow.delay_s, flow.rate_bytes_s = delay_s, rate_bytes_s

    def separate(
        self, ones: Iterable[str], others: Iterable[str], state: State, *, both: bool = True
    ) -> None:
        """No message from any of `ones` to any of `others`, and with `both` none back."""
        others = list(others)
        for one in ones:
            for other in others:
                self.set_state(one, other, state)
                if both:
                    self.set_state(other, one, state)

    def heal(self) -> None:
        """Everything flows again, at once."""
        for sender, receiver in list(self._flows):
            self.slow_down(sender, receiver, 0.0)
            self.set_state(sender, receiver, "open")

    def evidence(self) -> int:
        """Grows whenever a fault met traffic."""
        return sum(flow.evidence for flow in self._flows.values())

    async def passable(self, *flows: Flow) -> None:
        """Return once none of the flows is silent."""
        while any(flow.state == "silent" for flow in flows):
            await self._healed.wait()

    def _touched(self, sender: str, receiver: str) -> list[Flow]:
        """The flow itself, and those of connections of which only the target is known."""
        pairs = [(sender, receiver)]
        if ANYBODY not in pairs[0]:
            pairs += [(ANYBODY, receiver), (sender, ANYBODY)]
        return [self.flow(*pair) for pair in pairs]
