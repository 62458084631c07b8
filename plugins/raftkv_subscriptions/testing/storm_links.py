"""The network between the regions of a storm: what a link is when there are no sockets.

A `Network` makes the transports with which the leaders' `Pull`s fetch. To open a stream is to call
`Serving.open` on a node of the source, in its process; what it gives is carried over by a task of
that process, line by line, with the delay of the wire. So everything above the sockets is the
product's own code, on both sides, and dies with its node.

What is promised is what TCP promises: a stream is in order and without gaps until it breaks.
Streams and reports overtake one another. What may happen to the wire between two regions, each
direction of fetching for itself:

- *cut*: all streams break at once, nothing can be opened until it heals;
- *mute*: half-open. Nothing arrives and nobody is told. What was sent arrives when it ends, if
  somebody still reads;
- *slow*: the delay is another one from now on.

A node that dies breaks its streams, or (a power cut that nobody hears of) leaves them silent.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from raftkv.errors import NodeFault, RaftkvError
from raftkv.plugin import Host
from raftkv.testing.host import HostCrashed
from raftkv.testing.world import World
from raftkv_subscriptions.links.errors import LinkBroken, LinkRefused
from raftkv_subscriptions.links.frames import (
    Hello,
    LinkReport,
    LinkRequest,
    MessagesFrame,
    TopicFrame,
    decode,
)
from raftkv_subscriptions.options import LinkOptions
from raftkv_subscriptions.rows import Copy, Hole

if TYPE_CHECKING:
    from raftkv_subscriptions.links.serving import Serving

__all__ = ["Network", "SimTransport"]

#: Lines that are on their way in one stream: beyond it the source waits, as with full buffers.
LINES_MAX = 8
OPEN_S = 5.0
#: How often it is looked whether somebody at an end has died.
LOOK_S = 0.05
#: Of the deaths of nodes, the share that the other end does not hear of.
SILENT = 0.4
#: Reasons of one node, not of its region.
OF_A_NODE = frozenset(("overloaded", "not_ready", "stopped", "no_leader", "read_timeout"))


#: The topic of which a second link claims more than came, and how often when a link is opened.
CLAIMED = "plain"
CLAIM_CHANCE = 0.3


class Source(Protocol):
    """One life of a node, as links see it."""

    boots: int
    host: Host

    @property
    def serving(self) -> Serving: ...


class _Wire:
    """From one region to another one that fetches."""

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s
        self.is_cut = False
        self.is_mute = False


class _Stream:
    """Lines on their way. `next` and `close` are the target's, the rest is the source's."""

    def __init__(self, network: Network, wire: _Wire, endpoint: str, ends: tuple[Any, ...]) -> None:
        self.endpoint = endpoint
        #: (host, its boots) of the target's and the source's life.
        self.ends = ends
        self.wire = wire
        self._network = network
        self._lines: deque[tuple[float, bytes]] = deque()
        self._newest = 0.0
        self._waiter: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        #: Why there are no more lines; those on their way still come, but for a reset.
        self.ended: str | None = None

    # --- the target's end ---

    async def next(self) -> bytes:
        loop = self._network.world.loop
        while True:
            if self._lines and self._lines[0][0] <= loop.now and not self.wire.is_mute:
                _, line = self._lines.popleft()
                _wake(self._room)
                return line
            if self.ended is not None and not self._lines:
                raise LinkBroken(self.ended)
            self._waiter = loop.create_future()
            await self._waiter

    def close(self) -> None:
        self.reset("closed by the target")

    # --- the source's end ---

    async def put(self, line: bytes) -> None:
        """Send a line. Waits while too many are on their way. Raises LinkBroken."""
        while len(self._lines) >= LINES_MAX and self.ended is None:
            self._room = self._network.world.loop.create_future()
            await self._room
        if self.ended is not None:
            raise LinkBroken(self.ended)
        now = self._network.world.loop.now
        self._newest = due = max(self._newest, now + self._network.jitter(self.wire))
        self._lines.append((due, bytes(line)))
        self._network.later(due - now, self.wake)

    def end(self, why: str) -> None:
        """No more lines: after those on their way the target hears of it."""
        if self.ended is None:
            self.ended = why
        self._network.later(self._network.jitter(self.wire), self.wake)

    # --- the network's ---

    def reset(self, why: str) -> None:
        """The connection is broken: nothing arrives any more."""
        self._lines.clear()
        self.ended = self.ended or why
        self.wake()
        _wake(self._room)
        self._network.forget(self)

    def wake(self) -> None:
        _wake(self._waiter)


def _last(part: Copy | Hole) -> int:
    return part.seq if isinstance(part, Copy) else part.last


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


class SimTransport:
    """The way from the leader of `target` to the region `source`."""

    def __init__(self, network: Network, host: Host, target: str, source: str) -> None:
        self._network = network
        self._host = host
        self._target = target
        self._source = source
        self._turn = 0
        # The node of the stream that was opened last.
        self._serves: str | None = None

    async def open(self, request: LinkRequest) -> _Stream:
        network = self._network
        wire = network.wire(self._target, self._source)
        # What is sent is bytes.
        asked = msgspec.json.decode(msgspec.json.encode(request), type=LinkRequest)
        name = await self._reach(wire)
        me = (self._host.name, network.world.host(self._host.name).boots)
        stream = _Stream(network, wire, name, (me, (name, network.world.host(name).boots)))
        network.add(stream)
        try:
            await self._call(name, network.serve(name, asked, stream))
            await self._delay(wire)
        except BaseException:
            stream.reset("it was not opened")
            raise
        self._serves = name
        return stream

    async def report(self, report: LinkReport) -> None:
        wire = self._network.wire(self._target, self._source)
        said = msgspec.json.decode(msgspec.json.encode(report), type=LinkReport)
        name = await self._reach(wire, self._serves)
        await self._call(name, self._network.take_report(name, said))
        await self._delay(wire)

    async def close(self) -> None:
        """Streams are closed by those who have them."""

    async def _reach(self, wire: _Wire, wanted: str | None = None) -> str:
        """A node of the source that runs, the `wanted` one if given, after the way there."""
        names = self._network.nodes_of(self._source)
        name = names[self._turn % len(names)] if wanted is None else wanted
        self._turn += wanted is None
        await self._delay(wire)
        if not self._network.is_up(name):
            raise LinkBroken(f"{name} does not answer")
        return name

    async def _delay(self, wire: _Wire) -> None:
        if wire.is_cut:
            raise LinkBroken("no route")
        await asyncio.sleep(self._network.jitter(wire))
        if wire.is_mute:
            await asyncio.sleep(OPEN_S)
            raise LinkBroken("no answer in time")
        if wire.is_cut:
            raise LinkBroken("connection reset")

    async def _call(self, name: str, work: Any) -> Any:
        """Let the source's node do it. Raises LinkRefused, LinkBroken, as a door would."""
        try:
            return await self._network.world.call(name, work)
        except LinkRefused as refusal:
            if refusal.reason in OF_A_NODE:
                raise LinkBroken(f"{name}: {refusal}") from None
            raise
        except HostCrashed:
            raise LinkBroken(f"{name} died") from None
        except (RaftkvError, NodeFault) as error:
            raise LinkBroken(f"{name}: {type(error).__name__}") from None


class Network:
    """All wires. `seat_of` gives a node's present life, None: it has none."""

    def __init__(
        self,
        world: World,
        regions: dict[str, list[str]],
        seat_of: Callable[[str], Source | None],
        violated: Callable[[str, Sequence[str]], None],
        delays_s: Callable[[str, str], float],
        sent: dict[tuple[str, str, str], int],
    ) -> None:
        self.world = world
        #: (source, target, topic) -> the last of the source's own messages that any link has sent.
        self.sent = sent
        self.counts: Counter[str] = Counter()
        #: Open streams now, and what they carried.
        self.lines = 0
        self._regions = regions
        self._seat_of = seat_of
        self._violated = violated
        self._rng = random.Random(f"{world.seed}/links")
        self._claims = random.Random(f"{world.seed}/claims")
        self._wires = {
            (target, source): _Wire(delays_s(target, source))
            for target in regions
            for source in regions
            if target != source
        }
        self._streams: dict[_Stream, None] = {}

    def start(self) -> None:
        """Look for ends that died from now on."""
        self.world.spawn(self._look(), "links")

    # --- for transports ---

    def transport(self, host: Host, source: str, options: LinkOptions) -> SimTransport:
        """A `TransportFactory`: the region of a node is the first part of its name."""
        return SimTransport(self, host, host.name.partition("-")[0], source)

    def wire(self, target: str, source: str) -> _Wire:
        return self._wires[target, source]

    def nodes_of(self, region: str) -> list[str]:
        return self._regions[region]

    def is_up(self, name: str) -> bool:
        return self._seat_of(name) is not None

    def jitter(self, wire: _Wire) -> float:
        """One way, this time."""
        return wire.delay_s * self._rng.uniform(0.8, 1.6)

    def later(self, delay_s: float, callback: Callable[[], object]) -> None:
        self.world.loop.call_later(delay_s, callback, context=self.world.context.copy())

    def add(self, stream: _Stream) -> None:
        self._streams[stream] = None
        self.counts["link opened"] += 1

    def forget(self, stream: _Stream) -> None:
        self._streams.pop(stream, None)

    # --- in the source's process ---

    async def serve(self, name: str, request: LinkRequest, stream: _Stream) -> None:
        """Begin to carry what the node has for the target."""
        seat = self._seat_of(name)
        runtime = self.world.host(name).runtime
        if seat is None or runtime is None:
            raise LinkBroken(f"{name} does not answer")
        lines = await seat.serving.open(request)
        ends = (name.partition("-")[0], request.region)
        runtime.spawn(self._carry(lines, stream, ends), "a link is served")
        row = seat.host.view().table("topics").get(CLAIMED)
        if row is not None and row.seq and self._claims.random() < CLAIM_CHANCE:
            runtime.spawn(self._forge(seat.serving, *ends, row.seq), "a link is forged")

    async def _carry(
        self, lines: AsyncGenerator[bytes, None], stream: _Stream, ends: tuple[str, str]
    ) -> None:
        try:
            async for line in lines:
                self.lines += 1
                self._note_sent(line, *ends)
                await stream.put(line)
            stream.end("the source has ended the stream")
        except LinkBroken:
            self.counts["link broken at the source"] += 1
        except RaftkvError as error:
            stream.end(f"the source: {type(error).__name__}")
        except Exception as error:
            text = f"serving {stream.endpoint}: {type(error).__name__}: {error}"
            stream.reset(text)
            self._violated("no exception escapes", [text])
        finally:
            await lines.aclose()

    async def take_report(self, name: str, report: LinkReport) -> None:
        seat = self._seat_of(name)
        if seat is None:
            raise LinkBroken(f"{name} does not answer")
        await seat.serving.report(report)

    async def _forge(self, serving: Serving, source: str, target: str, seq: int) -> None:
        """A program opens a link for the target, claims to have everything, and reports that.

        Of a topic without a retention: what is on its way counts as sent, and must not be removed.
        """
        vector = ((source, seq),)
        request = LinkRequest(region=target, topics={CLAIMED: vector}, paused=(CLAIMED,))
        lines = None
        try:
            lines = await serving.open(request)
            link = ""
            async for line in lines:
                frame = decode(line)
                if isinstance(frame, Hello):
                    link = frame.link
                elif isinstance(frame, TopicFrame) and frame.topic == CLAIMED:
                    break
            await serving.report(LinkReport(target, {CLAIMED: vector}, link))
            self.counts["claim counted"] += 1
        except LinkRefused as refusal:
            self.counts[f"claim refused: {refusal.reason}"] += 1
        except RaftkvError:
            self.counts["claim without an answer"] += 1
        finally:
            if lines is not None:
                await lines.aclose()

    def _note_sent(self, line: bytes, source: str, target: str) -> None:
        """The source's own messages, whether they arrive or not."""
        frame = decode(line)
        if isinstance(frame, MessagesFrame):
            last = max((_last(part) for part in frame.parts if part.origin == source), default=0)
            key = (source, target, frame.topic)
            self.sent[key] = max(last, self.sent.get(key, 0))

    # --- faults ---

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            for stream in list(self._streams):
                for name, boots in stream.ends:
                    host = self.world.host(name)
                    if host.is_up and host.boots == boots:
                        continue
                    if self._rng.random() < SILENT:
                        # Nobody is told: whoever is left has to find out.
                        self.counts["link left silent"] += 1
                        self.forget(stream)
                        self.later(3 * OPEN_S, partial(stream.reset, "timed out"))
                    else:
                        stream.reset(f"{name} has gone")
                    break

    def cut(self, target: str, source: str) -> None:
        """Break what is open; nothing is opened until it heals."""
        self.counts["link cut"] += 1
        wire = self.wire(target, source)
        wire.is_cut = True
        for stream in [each for each in self._streams if each.wire is wire]:
            stream.reset("connection reset")

    def reset(self, target: str, source: str) -> None:
        """Break what is open; it can be opened again."""
        self.counts["link reset"] += 1
        wire = self.wire(target, source)
        for stream in [each for each in self._streams if each.wire is wire]:
            stream.reset("connection reset")

    def mute(self, target: str, source: str) -> None:
        """Half-open: nothing arrives, and nobody is told."""
        self.counts["link mute"] += 1
        self.wire(target, source).is_mute = True

    def slow(self, target: str, source: str, delay_s: float) -> None:
        """The way takes that long from now on."""
        self.counts["link slow"] += 1
        self.wire(target, source).delay_s = delay_s

    def heal(self, target: str, source: str) -> None:
        """The wire is well."""
        wire = self.wire(target, source)
        wire.is_cut = wire.is_mute = False
        for stream in list(self._streams):
            stream.wake()

    def heal_all(self) -> None:
        for target, source in self._wires:
            self.heal(target, source)

    async def storm(self, interval_s: tuple[float, float], duration_s: tuple[float, float]) -> None:
        """Faults of wires until it is cancelled; each ends by itself."""
        rng = self._rng
        while True:
            await asyncio.sleep(rng.uniform(*interval_s))
            wire = rng.choice(list(self._wires))
            kind = rng.choices(("cut", "reset", "mute", "slow", "partition"), (3, 3, 2, 1, 2))[0]
            for_s = rng.uniform(*duration_s)
            if kind == "slow":
                self.slow(*wire, rng.choice((0.001, 0.02, 0.1, 0.3)))
            elif kind == "reset":
                self.reset(*wire)
            else:
                pairs = [wire] if kind != "partition" else [wire, (wire[1], wire[0])]
                for pair in pairs:
                    if kind == "mute":
                        self.mute(*pair)
                    else:
                        self.cut(*pair)
                    self.later(for_s, partial(self.heal, *pair))
