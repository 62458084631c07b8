"""The network of the simulated world: streams between named hosts, and what goes wrong with them.

Streams, not messages: what the network does to a connection is what TCP lets through to a program:
delay, a stall of one direction or both, a reset. Nothing is lost inside a living stream.

- `stall(a, b, s)`: nothing gets from a to b for s seconds; then it all arrives.
- `cut(a, b)`: nothing passes until `heal`. Connections first look stalled and are reset after a
  while (TCP gives up); if the cut heals before that, they go on as if nothing had happened. New
  ones hang (the first packet is sent again and again) and fail with TimeoutError after
  `connect_timeout_s`.
- `swallow(a, b)`: nothing passes any more on the connections that there are, and neither end
  notices, as when a firewall has lost its state. New ones work. TCP gives up much later than a run
  lasts.
- `reset(a, b)`: the connections between the two break.
- `host_down(host)`: its process is gone. The kernel says goodbye: peers get a reset, connects are
  refused. With `silent` the machine has lost power: nobody is told, connects hang, and peers learn
  it when it is back or when TCP gives up.

All chance comes from the `rng` given; connections and links are kept in dicts in the order in which
they were made, never in sets.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable, Iterable
from contextvars import Context, copy_context
from dataclasses import dataclass

from raftkv.testing.clock import SimLoop
from raftkv.testing.handshake import Attempt
from raftkv.testing.stream import Connection, SimTransport

__all__ = ["NetworkOptions", "SimListener", "SimNetwork"]

FOREVER = float("inf")
EPHEMERAL_PORT_FIRST = 32_768


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """The defaults are a LAN, with TCP's patience shortened to fit a simulation."""

    # One way: minimum plus an exponential part. The minimum must be above zero.
    latency_min_s: float = 0.0001
    latency_mean_s: float = 0.0005
    # Chance that what arrives is cut in two at a random byte.
    split_probability: float = 0.1
    connect_timeout_s: float = 5.0
    connect_retry_s: float = 0.2
    # When TCP gives up on a peer that does not answer: uniform between these.
    give_up_min_s: float = 2.0
    give_up_max_s: float = 10.0

    def __post_init__(self) -> None:
        if not self.latency_min_s > 0:
            raise ValueError("latency_min_s must be above zero: nothing arrives before it is sent")


class Link:
    """The way from one host to another, one direction."""

    __slots__ = ("blocked_until_s", "cut_number")

    def __init__(self) -> None:
        self.blocked_until_s = 0.0
        # Counts cuts, so that the giving-up of an earlier cut does not break a healed connection.
        self.cut_number = 0


class SimListener:
    """An address that accepts; `runtime.Listener`."""

    def __init__(
        self,
        network: SimNetwork,
        host: str,
        port: int,
        factory: Callable[[], asyncio.Protocol],
    ) -> None:
        self._network = network
        self._host = host
        self._port = port
        self.factory = factory
        self.context = copy_context()

    @property
    def port(self) -> int:
        return self._port

    def close(self) -> None:
        self._network.stop_listening(self._host, self._port, self)


class SimNetwork:
    """All hosts' streams. `record(host, text)`, if set, is told of every event."""

    def __init__(
        self, loop: SimLoop, rng: random.Random, options: NetworkOptions | None = None
    ) -> None:
        self.loop = loop
        self.rng = rng
        self.options = options or NetworkOptions()
        self.record: Callable[[str, str], None] | None = None
        # Whether it is told of every arrival of bytes too, which is most of all events.
        self.records_deliveries = True
        self._hosts: dict[str, None] = {}
        self._silent: dict[str, None] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._listeners: dict[tuple[str, int], SimListener] = {}
        self._connections: dict[int, Connection] = {}
        self._connection_number = 0
        self._port_number = EPHEMERAL_PORT_FIRST
        # The network's own callbacks belong to no process.
        self._context = Context()
        self._latency_rate = 1 / self.options.latency_mean_s

    # -- for programs -----------------------------------------------------------------------------

    def listen(self, factory: Callable[[], asyncio.Protocol], host: str, port: int) -> SimListener:
        """Accept streams at (host, port); port 0 picks a free one. Raises OSError when taken."""
        self.add_host(host)
        if port == 0:
            port = self.ephemeral_port()
        if (host, port) in self._listeners:
            raise OSError(errno.EADDRINUSE, f"address {host}:{port} is already in use")
        listener = self._listeners[host, port] = SimListener(self, host, port, factory)
        return listener

    def stop_listening(self, host: str, port: int, listener: SimListener) -> None:
        if self._listeners.get((host, port)) is listener:
            del self._listeners[host, port]

    async def connect(
        self, source: str, factory: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> SimTransport:
        """A stream from `source` to (host, port); raises ConnectionRefusedError, TimeoutError."""
        self.add_host(source)
        attempt = Attempt(self, source, host, port)
        attempt.start()
        try:
            transport = await attempt.answer
        except asyncio.CancelledError:
            attempt.abandon()
            raise
        if transport.gone:
            raise ConnectionResetError(errno.ECONNRESET, f"{host}:{port} reset the connection")
        transport.open(factory())
        return transport

    # -- faults -----------------------------------------------------------------------------------

    def stall(self, source: str, target: str, seconds: float) -> None:
        """Nothing gets from `source` to `target` (that direction only) for `seconds`."""
        link = self.link(source, target)
        link.blocked_until_s = max(link.blocked_until_s, self.loop.now + seconds)
        self.note(source, f"stall to {target} {seconds:.3f} s")

    def cut(self, a: str, b: str, *, one_way: bool = False) -> None:
        """Nothing passes between the two (`one_way`: from `a` to `b`) until `heal`."""
        self.note(a, f"cut {'to' if one_way else 'from'} {b}")
        links = [self.link(a, b)] if one_way else [self.link(a, b), self.link(b, a)]
        for link in links:
            link.cut_number += 1
            link.blocked_until_s = FOREVER
        for connection in list(self._connections.values()):
            if connection.joins(a, b):
                self.later(
                    self._give_up_s(), self._give_up, connection, links[0], links[0].cut_number
                )

    def isolate(self, host: str) -> None:
        """Cut `host` from every other host."""
        for other in list(self._hosts):
            if other != host:
                self.cut(host, other)

    def partition(self, *groups: Iterable[str]) -> None:
        """Cut every pair of hosts that stand in different groups."""
        lists = [list(group) for group in groups]
        for position, group in enumerate(lists):
            for others in lists[position + 1 :]:
                for a in group:
                    for b in others:
                        self.cut(a, b)

    def heal(self, a: str | None = None, b: str | None = None) -> None:
        """End cuts and stalls: between two hosts, of one host, or all of them."""
        for (source, target), link in self._links.items():
            if (a is None or a in (source, target)) and (b is None or b in (source, target)):
                link.cut_number += 1
                link.blocked_until_s = min(link.blocked_until_s, self.loop.now)
        self.note(a or "*", f"heal {b or '*'}")
        for connection in list(self._connections.values()):
            connection.rearm()

    def reset(self, a: str, b: str) -> int:
        """Break all connections between two hosts; returns how many there were."""
        broken = [c for c in self._connections.values() if c.joins(a, b) and not c.broken]
        self.note(a, f"reset {len(broken)} connections with {b}")
        for connection in broken:
            connection.reset()
        return len(broken)

    def swallow(self, a: str, b: str) -> int:
        """The connections between two hosts carry nothing any more; returns how many there were."""
        swallowed = [c for c in self._connections.values() if c.joins(a, b) and not c.broken]
        self.note(a, f"swallow {len(swallowed)} connections with {b}")
        for connection in swallowed:
            hole = Link()
            hole.blocked_until_s = FOREVER
            for end in connection.ends:
                end.out.link = hole
            connection.rearm()
        return len(swallowed)

    def host_down(self, host: str, *, silent: bool = False) -> None:
        """The process on `host` is gone; `silent`: the machine as well, so that nobody is told."""
        for address in [address for address in self._listeners if address[0] == host]:
            del self._listeners[address]
        if silent:
            self._silent[host] = None
        for connection in list(self._connections.values()):
            for end in connection.ends:
                if end.host == host:
                    connection.end_died(end, silent=silent)
                    if silent:
                        self.later(self._give_up_s(), connection.reset)

    def host_up(self, host: str) -> None:
        """The machine answers again: it knows nothing of its former connections."""
        self.add_host(host)
        self._silent.pop(host, None)
        for connection in list(self._connections.values()):
            for end in connection.ends:
                if end.host == host and end.gone:
                    self.later(self.delay_s(), connection.reset)

    # -- shared with streams ----------------------------------------------------------------------

    def add_host(self, name: str) -> None:
        """Make a host known; listening and connecting do so too."""
        self._hosts[name] = None

    @property
    def hosts(self) -> list[str]:
        return list(self._hosts)

    @property
    def connections(self) -> list[Connection]:
        """Those not yet over at both ends, oldest first."""
        return list(self._connections.values())

    def link(self, source: str, target: str) -> Link:
        link = self._links.get((source, target))
        if link is None:
            link = self._links[source, target] = Link()
        return link

    def is_blocked(self, source: str, target: str) -> bool:
        return self.link(source, target).blocked_until_s > self.loop.now

    def delay_s(self) -> float:
        """How long the next thing sent is on its way."""
        return self.options.latency_min_s + self.rng.expovariate(self._latency_rate)

    def _give_up_s(self) -> float:
        return self.rng.uniform(self.options.give_up_min_s, self.options.give_up_max_s)

    def _give_up(self, connection: Connection, link: Link, cut_number: int) -> None:
        if link.cut_number == cut_number:
            connection.reset()

    def listener(self, host: str, port: int) -> SimListener | None:
        return self._listeners.get((host, port))

    def is_silent(self, host: str) -> bool:
        return host in self._silent

    def add_connection(
        self, client: tuple[str, int, Context], server: tuple[str, int, Context]
    ) -> Connection:
        self._connection_number += 1
        connection = Connection(self, self._connection_number, (client, server), self._forget)
        self._connections[connection.number] = connection
        return connection

    def _forget(self, number: int) -> None:
        self._connections.pop(number, None)

    def ephemeral_port(self) -> int:
        self._port_number += 1
        return self._port_number

    def later(self, delay_s: float, callback: Callable[..., object], *args: object) -> None:
        self.loop.call_later(delay_s, callback, *args, context=self._context)

    def note(self, host: str, text: str) -> None:
        if self.record is not None:
            self.record(host, text)
