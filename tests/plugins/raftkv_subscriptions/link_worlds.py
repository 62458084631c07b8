"""Several regions in virtual time: each a cluster without consensus, real links between them.

    @links("a", "b")
    async def test_it(world: World) -> None:
        await world.declare("a", "orders")
        await world.publish("a", "orders", "x", "y")
        await world.until(lambda: world.bodies("b", "orders") == ["x", "y"])

Real are the plugin, its services, the frames and every byte of their lines. Between regions there
is a `Way` per direction: a delay, a cut (connections end), a silence (nothing passes, nothing
ends), and a bound on what is under way. A link asks the nodes of its source in turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import msgspec

from raftkv.errors import RaftkvError
from raftkv.plugin import Host
from raftkv.testing.clock import run
from raftkv.testing.plugin_cluster import NETWORK_S, FakeCluster, FakeHost, tag_of, until
from raftkv_subscriptions.commands import (
    AckTo,
    DeclareTopic,
    Publish,
    Seek,
    Subscribe,
)
from raftkv_subscriptions.links.errors import LinkBroken
from raftkv_subscriptions.links.frames import (
    Frame,
    LinkReport,
    LinkRequest,
    MessagesFrame,
    decode,
)
from raftkv_subscriptions.links.pulling import Pull
from raftkv_subscriptions.links.serving import Serving
from raftkv_subscriptions.options import LinkOptions, SubscriptionsOptions
from raftkv_subscriptions.plugin import Subscriptions
from raftkv_subscriptions.rows import Message, Sub, Topic
from raftkv_subscriptions.scope import meta_of
from raftkv_subscriptions.views import state_of

__all__ = ["NETWORK_S", "Region", "Way", "World", "links", "tag_of"]

# On its way in one stream; then the source is not read.
WAY_BYTES = 512 * 1024

Node = FakeHost[Any]


class Way:
    """From a source to a target."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        self.is_cut = False
        self.is_mute = False
        self.streams: list[_Stream] = []
        #: Every frame that was handed to the target, and requests and reports that were made.
        self.frames: list[Frame] = []
        self.requests: list[LinkRequest] = []
        self.reports: list[LinkReport] = []
        #: So many reports are not answered.
        self.refuses_reports = 0
        #: So many frames of messages get lost on their way.
        self.loses = 0
        #: The target takes no line while this is not set.
        self.taking = asyncio.Event()
        self.taking.set()

    def cut(self) -> None:
        self.is_cut = True
        for stream in list(self.streams):
            stream.close()

    def mute(self) -> None:
        self.is_mute = True

    def heal(self) -> None:
        self.is_cut = self.is_mute = False
        for stream in list(self.streams):
            stream.news.set()

    def kinds(self) -> list[str]:
        return [type(frame).__name__ for frame in self.frames]


class _Stream:
    """Lines under way, each with the time of its arrival."""

    def __init__(self, way: Way, node: Node, lines: AsyncGenerator[bytes, None]) -> None:
        self.endpoint = node.name
        self.way = way
        self.news = asyncio.Event()
        self.room = asyncio.Event()
        self._lines: deque[tuple[float, bytes]] = deque()
        self._size = 0
        self._ended = False
        self._pump = node.runtime.spawn(self._run(lines), "pump")
        self._pump.add_done_callback(self._over)
        way.streams.append(self)

    async def _run(self, lines: AsyncGenerator[bytes, None]) -> None:
        loop = asyncio.get_running_loop()
        try:
            async for line in lines:
                self._lines.append((loop.time() + self.way.delay_s, line))
                self._size += len(line)
                self.news.set()
                while self._size > WAY_BYTES:
                    self.room.clear()
                    await self.room.wait()
        finally:
            await lines.aclose()

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._ended = True
        self.news.set()

    async def next(self) -> bytes:
        loop = asyncio.get_running_loop()
        while True:
            await self.way.taking.wait()
            self.news.clear()
            if self._lines and not self.way.is_mute:
                due, line = self._lines[0]
                if due <= loop.time():
                    self._lines.popleft()
                    self._size -= len(line)
                    self.room.set()
                    frame = decode(line)
                    if self.way.loses and isinstance(frame, MessagesFrame):
                        self.way.loses -= 1
                        continue
                    self.way.frames.append(frame)
                    return line
                await asyncio.sleep(due - loop.time())
                continue
            if self._ended and not self.way.is_mute:
                raise LinkBroken(f"{self.endpoint} hung up")
            await self.news.wait()

    def close(self) -> None:
        self._pump.cancel()
        if self in self.way.streams:
            self.way.streams.remove(self)


class _Transport:
    """From the region `target` to the region `source`."""

    def __init__(self, world: World, target: str, source: str) -> None:
        self._world = world
        self._source = source
        self._way = world.way(source, target)
        self._turn = 0
        self._serves: Node | None = None

    def _node(self) -> Node:
        nodes = list(self._world.regions[self._source].nodes.values())
        node = nodes[self._turn % len(nodes)]
        if self._way.is_cut or not node.alive or not node.started:
            self._turn += 1
            raise LinkBroken(f"{node.name} cannot be reached")
        return node

    async def open(self, request: LinkRequest) -> _Stream:
        self._way.requests.append(request)
        await asyncio.sleep(2 * self._way.delay_s)
        while self._way.is_mute:
            await asyncio.sleep(0.1)
        node = self._node()
        try:
            lines = await node.service.serving.open(request)  # type: ignore[attr-defined]
        except RaftkvError as error:
            self._turn += 1
            raise LinkBroken(str(error)) from None
        self._turn += 1
        self._serves = node
        return _Stream(self._way, node, lines)

    async def report(self, report: LinkReport) -> None:
        await asyncio.sleep(2 * self._way.delay_s)
        while self._way.is_mute:
            await asyncio.sleep(0.1)
        node = self._serves
        if self._way.is_cut or node is None or not node.alive or not node.started:
            raise LinkBroken("it cannot be reached")
        if self._way.refuses_reports:
            self._way.refuses_reports -= 1
            raise LinkBroken("the report was lost")
        self._way.reports.append(report)
        try:
            serving = node.service.serving  # type: ignore[attr-defined]
            await serving.report(report)
        except RaftkvError as error:
            raise LinkBroken(str(error)) from None

    async def close(self) -> None:
        pass


class Region(FakeCluster[Node]):
    """One region."""

    @property
    def service(self) -> Any:
        """The leader's."""
        assert self.leader is not None
        return self.nodes[self.leader].service

    def pull(self, source: str) -> Pull:
        found: Pull = self.service.links.pulls[source]
        return found

    def serving(self, node: str) -> Serving:
        """What a node serves to other regions."""
        service: Any = self.nodes[node].service
        found: Serving = service.serving
        return found

    def proposals(self, tag: str) -> int:
        return sum(node.proposals.count(tag) for node in self.nodes.values())


class World:
    """The regions, by name; `shape`: region -> its sources -> how it links to them."""

    def __init__(
        self, shape: dict[str, dict[str, LinkOptions]], cores: int, **options: Any
    ) -> None:
        self._ways: dict[tuple[str, str], Way] = {}
        self.regions: dict[str, Region] = {}
        for name, sources in shape.items():
            made = SubscriptionsOptions(region=name, links=sources, **options)
            self.regions[name] = Region(self._plugin_of(name), cores, options=made)

    def _plugin_of(self, target: str) -> Callable[[], Subscriptions]:
        def factory(host: Host, source: str, link: LinkOptions) -> _Transport:
            return _Transport(self, target, source)

        return lambda: Subscriptions(factory)

    def __getitem__(self, name: str) -> Region:
        return self.regions[name]

    def way(self, source: str, target: str) -> Way:
        return self._ways.setdefault((source, target), Way())

    async def start(self, **settings: Any) -> None:
        for region in self.regions.values():
            await region.start()
            region.configure(**settings)
        for name in self.regions:
            await self.until(lambda n=name: meta_of(self.view(n)).region == n)  # type: ignore[misc]

    async def rebuild(self, name: str) -> None:
        """A new, empty cluster in the place of the region."""
        old = self.regions[name]
        for node in list(old.nodes):
            await old.stop(node)
        made = self.regions[name] = Region(old.make_plugin, len(old.nodes), options=old.options)
        await made.start()

    def check(self) -> None:
        for name, region in self.regions.items():
            region.check()
            for source, pull in region.service.links.pulls.items():
                assert pull.faults == 0, (name, source, pull.last_error)

    # --- what users do ---

    async def propose(self, region: str, command: Any, node: str = "") -> Any:
        cluster = self.regions[region]
        return await cluster.nodes[node or cluster.leader or "core1"].propose(command)

    async def declare(self, region: str, topic: str, **limits: Any) -> None:
        await self.propose(region, DeclareTopic(topic, **limits))

    async def publish(self, region: str, topic: str, *texts: str) -> None:
        messages = tuple(Message(text.encode()) for text in texts)
        await self.propose(region, Publish(topic, messages))

    async def subscribe(self, region: str, topic: str, sub: str, **more: Any) -> None:
        more = {"initial": "earliest", "replicate": True, **more}
        await self.propose(region, Subscribe(topic, sub, **more))

    async def ack_to(self, region: str, topic: str, sub: str, position: int) -> None:
        await self.propose(region, AckTo(topic, sub, position))

    async def seek(self, region: str, topic: str, sub: str, position: int) -> None:
        await self.propose(region, Seek(topic, sub, position))

    # --- looking ---

    def view(self, region: str) -> Any:
        return self.regions[region].witness.view("subscriptions")

    def topic(self, region: str, topic: str) -> Topic | None:
        found: Topic | None = self.view(region).table("topics").get(topic)
        return found

    def bodies(self, region: str, topic: str) -> list[str]:
        row = self.topic(region, topic)
        if row is None:
            return []
        rows = self.view(region).table("messages").scan((row.id, 0), (row.id + 1, 0))
        return [stored.message.body.decode() for _, stored in rows]

    def vector(self, region: str, topic: str) -> dict[str, int]:
        row = self.topic(region, topic)
        if row is None:
            return {}
        rows = self.view(region).table("vectors").scan((row.id, ""), (row.id + 1, ""))
        return {key[1]: seq for key, seq in rows}

    def sub(self, region: str, topic: str, sub: str) -> Sub | None:
        row = self.topic(region, topic)
        found: Sub | None = None
        if row is not None:
            found = self.view(region).table("subs").get((row.id, sub))
        return found

    def acked(self, region: str, topic: str, sub: str) -> tuple[tuple[str, int, int], ...]:
        if self.sub(region, topic, sub) is None:
            return ()
        return state_of(self.view(region), topic, sub).ranges

    async def until(self, condition: Callable[[], bool], timeout_s: float = 60.0) -> float:
        """Virtual seconds until it is true."""
        began = asyncio.get_running_loop().time()
        await until(condition, timeout_s)
        return asyncio.get_running_loop().time() - began

    async def connected(self) -> None:
        """Until every link that is to be is there."""
        await self.until(
            lambda: all(
                len(region.service.links.pulls) == len(region.options.links)
                and all(pull.is_up() for pull in region.service.links.pulls.values())
                for region in self.regions.values()
            )
        )

    def lengths(self) -> dict[str, int]:
        return {name: len(region.log) for name, region in self.regions.items()}


Story = Callable[[World], Awaitable[None]]


def links(
    *names: str,
    shape: dict[str, dict[str, str]] | None = None,
    cores: int = 1,
    options: dict[str, Any] | None = None,
    connected: bool = True,
    **settings: Any,
) -> Callable[[Story], Callable[[], None]]:
    """A test on regions that all link to each other, or as `shape` says: region -> source -> want.

    It ends with the checks of all clusters.
    """
    wants = shape or {name: {o: "own" for o in names if o != name} for name in names}

    def wrap(body: Story) -> Callable[[], None]:
        async def whole() -> None:
            made = {
                name: {
                    source: msgspec.convert(
                        {"endpoints": ["http://x:1"], "want": want}, LinkOptions
                    )
                    for source, want in sources.items()
                }
                for name, sources in wants.items()
            }
            world = World(made, cores, **(options or {}))
            await world.start(**settings)
            if connected:
                await world.connected()
            await body(world)
            await asyncio.sleep(8.0)
            world.check()

        def test() -> None:
            run(whole())

        test.__name__ = body.__name__
        test.__doc__ = body.__doc__
        return test

    return wrap
