"""Several regions of real nodes, with a distance between them, for the acceptance scenarios.

    async def body(world: Regions) -> None:
        await world.topic("orders")
        await world.publish("a", "orders", 3)
        await world.same("orders")
        assert world.log("b", "orders") == ["a1", "a2", "a3"]

    play(body, "ab", mode="vector")

Each region is a cluster of its own (`Region`): consensus, files, doors and the connections between
the regions are real, and inside this process. A region reaches each node of another one through a
`Distance` of its own, so that a way can be slow, cut or silent for one region and one direction of
pulling only (`world.way("a", "b")`: how a reaches b).

What is published says where and as what: the n-th message that region a publishes in a topic is
"a<n>". So whatever is found anywhere can be checked by itself. Who acknowledges does it by `ack`
(or `consume`, `drain`), which writes it down first: `audit.py` compares the regions with that
account. In the end of each story everything is judged (`Regions.check`).

Nothing here sleeps for luck: `until` waits for a condition, and says what it waited for when it
gives up.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from raftkv.config import Limits
from raftkv.errors import AddressInUse
from raftkv.node import Node
from raftkv.plugin import ABSENT, Change
from raftkv.state.core import SetSetting
from raftkv_subscriptions import LinkStatus, Message, Subscriptions
from raftkv_subscriptions.rows import FRESH, Meta
from tests.plugins.raftkv_subscriptions.audit import Account, judge, texts_of
from tests.plugins.raftkv_subscriptions.region import (
    DEADLINE_S,
    Region,
    Tls,
    Way,
    node_names,
    until,
)

__all__ = ["DEADLINE_S", "Region", "Regions", "Tls", "Way", "link", "play", "says", "until"]


class Regions:
    """See the module's text. `pulls`: target -> the regions that it pulls from."""

    def __init__(
        self,
        names: str,
        cores: int | Mapping[str, int] = 1,
        replicants: int = 0,
        *,
        pulls: Mapping[str, str] | None = None,
        want: str = "own",
        tls: Mapping[str, Tls] | None = None,
        limits: Limits | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.names = list(names)
        self.account = Account()
        #: (region, table) -> what became of its rows, at the region's first node.
        self.history: defaultdict[tuple[str, str], list[Change]] = defaultdict(list)
        #: Acknowledgements that a region has, and nobody had given when it got them.
        self.wrongs: list[object] = []
        self._published: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._tls = dict(tls or {})
        self._want = want
        # Retention waits for reports: so do tests.
        self._options = {"report_s": 0.1, **(options or {})}
        self.pulls = dict(pulls or {name: names.replace(name, "") for name in names})
        self._shapes = {
            name: (cores if isinstance(cores, int) else cores.get(name, 1), replicants)
            for name in names
        }
        self._limits = limits
        self.regions: dict[str, Region] = {}
        self.ways = {
            (target, source): Way(
                node_names(*self._shapes[source]), "https" if source in self._tls else "http"
            )
            for target, sources in self.pulls.items()
            for source in sources
        }

    def __getitem__(self, name: str) -> Region:
        return self.regions[name]

    # -- life

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Regions]:
        async with AsyncExitStack() as stack:
            for way in self.ways.values():
                stack.push_async_callback(way.close)
                await way.start()
            # A port that was free a moment ago may be somebody else's now: then with others.
            for last in (False, False, True):
                made = [self._region(name) for name in self.names]
                told = await asyncio.gather(
                    *(region.__aenter__() for region in made), return_exceptions=True
                )
                failed = [each for each in told if isinstance(each, BaseException)]
                if not failed:
                    break
                await asyncio.gather(*(region.close() for region in made))
                if last or not isinstance(failed[0], AddressInUse):
                    raise failed[0]
            self.regions = {region.name: region for region in made}
            stack.push_async_callback(self._close)
            yield self

    async def _close(self) -> None:
        await asyncio.gather(*(region.close() for region in self.regions.values()))

    def _region(self, name: str) -> Region:
        made = Region(name, *self._shapes[name], self._tls.get(name), self._limits)
        made.ways = [way for (_, source), way in self.ways.items() if source == name]
        made.heard = self._heard
        made.give(self.options(name))
        return made

    def options(self, name: str) -> dict[str, Any]:
        """What the nodes of a region are configured with."""
        links: dict[str, Any] = {}
        for source in self.pulls.get(name, ""):
            link = {"endpoints": self.way(name, source).endpoints, "want": self._want}
            tls = self._tls.get(name)
            if tls is not None:
                link |= {"ca": tls.ca, "cert": tls.certificate, "key": tls.key}
            links[source] = link
        return {"region": name, "links": links, **self._options}

    async def configure(self, *names: str, **settings: Any) -> None:
        """Set replicated settings of the plugin in these regions (none named: in all)."""
        for name in names or self.names:
            for key, value in settings.items():
                node = self[name].nodes[0]
                await node.propose(
                    "core", SetSetting.of("subscriptions", key, value), timeout_s=DEADLINE_S
                )

    def _heard(self, region: Region, node: Node, changes: Sequence[Change]) -> None:
        """Rows were changed: note the history, and whether nobody can know what they say."""
        for change in changes:
            if node is region.nodes[0]:
                self.history[region.name, change.table].append(change)
            if change.table in ("floors", "acks") and change.new is not ABSENT:
                self.wrongs += self.account.wrongs(region.name, node, change)

    # -- ways

    def way(self, target: str, source: str) -> Way:
        """How `target` reaches `source`, to pull from it and to report to it."""
        return self.ways[target, source]

    def around(self, name: str) -> list[Way]:
        """All ways from and to a region."""
        return [way for pair, way in self.ways.items() if name in pair]

    # -- doing

    def api(self, region: str, at: str | None = None) -> Any:
        """The plugin's API at a node of the region (none named: the first that runs)."""
        node = self[region].nodes[0] if at is None else self[region].running[at]
        return node.plugin(Subscriptions)

    async def topic(self, name: str, **more: Any) -> None:
        """Declare it in the first region; return when links have brought it everywhere."""
        await self.api(self.names[0]).declare(name, **more)
        await until(
            lambda: all(name in region.table("topics") for region in self.regions.values()),
            f"{name} is known everywhere",
        )

    async def publish(
        self, region: str, topic: str, count: int = 1, *, at: str | None = None, key: str = ""
    ) -> list[str]:
        """The region's next `count` messages of the topic, in one command; their bodies."""
        done = self._published[region, topic]
        texts = [f"{region}{number}" for number in range(done + 1, done + count + 1)]
        self._published[region, topic] += count
        messages = [Message(text.encode(), key) for text in texts]
        told = await self.api(region, at).publish(topic, messages, timeout_s=DEADLINE_S)
        assert (told.origin, told.seq, told.last - told.first) == (region, done + 1, count - 1)
        return texts

    def sent(self, topic: str, regions: str | None = None) -> set[str]:
        """All that was published in the topic (by these regions)."""
        return {
            f"{name}{number}"
            for name in regions or self.names
            for number in range(1, self._published[name, topic] + 1)
        }

    async def subscribe(
        self, region: str, topic: str, sub: str, *, initial: str = "earliest", **more: Any
    ) -> None:
        """Make a replicated subscription; what it does not want there is written down."""
        more.setdefault("replicate", True)
        await self.api(region).subscribe(topic, sub, initial=initial, **more)
        self.account.begins(self[region], topic, sub)

    async def ack(self, consumer: Any, sub: str, *messages: Any) -> None:
        self.account.acknowledges(sub, messages)
        await consumer.ack(*messages)

    async def receive(self, consumer: Any, count: int) -> list[Any]:
        """Exactly so many; they are there, or come soon."""
        got: list[Any] = []
        while len(got) < count:
            more = await consumer.receive(count=count - len(got), wait_s=DEADLINE_S)
            assert more, f"{len(got)} of {count} came: {texts_of(got)}"
            got.extend(more)
        return got

    def consumer(self, region: str, topic: str, sub: str, *, at: str | None = None) -> Any:
        """A consumer of the subscription as it is: it must be there."""
        return self.api(region, at).consumer(topic, sub, subscribe=False, timeout_s=DEADLINE_S)

    async def consume(self, region: str, topic: str, sub: str, count: int) -> list[str]:
        """A consumer comes, takes exactly so many, acknowledges each, and goes."""
        async with self.consumer(region, topic, sub) as consumer:
            got = await self.receive(consumer, count)
            await self.ack(consumer, sub, *got)
        return texts_of(got)

    async def drain(self, region: str, topic: str, sub: str) -> list[str]:
        """A consumer comes, takes and acknowledges all that there is, and goes."""
        drained: list[str] = []
        async with self.consumer(region, topic, sub) as consumer:
            while got := await consumer.receive(count=100, wait_s=0.0):
                await self.ack(consumer, sub, *got)
                drained += texts_of(got)
        return drained

    # -- looking, at each region's own copy

    def topic_id(self, region: str, topic: str) -> int:
        return int(self[region].table("topics")[topic].id)

    def log(self, region: str, topic: str, at: str | None = None) -> list[str]:
        """The bodies, in the order of the region's positions."""
        topic_id = self.topic_id(region, topic)
        rows = self[region].table("messages", at)
        return [row.message.body.decode() for (each, _), row in rows.items() if each == topic_id]

    def sub(self, region: str, topic: str, sub: str) -> Any:
        """The row; None: the subscription is not there."""
        return self[region].table("subs").get((self.topic_id(region, topic), sub))

    def mark(self, region: str, topic: str, sub: str) -> int:
        row = self.sub(region, topic, sub)
        return -1 if row is None else int(row.mark)

    def meta(self, region: str) -> Meta:
        row: Meta
        [row] = self[region].table("meta").values() or [FRESH]
        return row

    def snapshots(self, region: str, topic: str) -> dict[int, Any]:
        """position -> the completed snapshots that are kept."""
        topic_id = self.topic_id(region, topic)
        rows = self[region].table("snapshots")
        return {position: row for (each, position), row in rows.items() if each == topic_id}

    def pending(self, region: str, topic: str) -> Any:
        """The snapshot that is being built, or None."""
        return self[region].table("pending").get(self.topic_id(region, topic))

    # -- waiting and judging

    async def same(self, topic: str, regions: Iterable[str] | None = None) -> None:
        """Wait until these regions have all that all regions have published."""
        names = list(regions or self.names)
        wanted = self.sent(topic)
        await until(
            lambda: all(set(self.log(name, topic)) == wanted for name in names),
            lambda: {name: sorted(wanted - set(self.log(name, topic))) for name in names},
        )

    async def snapped(self, region: str, topic: str) -> int:
        """Wait until the region's last snapshot has all that it has now; its position."""

        def done() -> bool:
            row = self[region].table("topics")[topic]
            taken = max(self.snapshots(region, topic), default=0)
            return bool(
                taken == row.next - 1
                and row.snapshot_next == row.next
                and self.pending(region, topic) is None
            )

        await until(
            done, lambda: (self[region].table("topics")[topic], self.pending(region, topic))
        )
        return max(self.snapshots(region, topic))

    async def marked(self, region: str, topic: str, sub: str, mark: int) -> None:
        """Wait until the region's mark is there; it must not have gone beyond."""
        await until(
            lambda: self.mark(region, topic, sub) >= mark,
            lambda: (region, self.mark(region, topic, sub), mark),
        )
        assert self.mark(region, topic, sub) == mark, (region, topic, sub)

    async def has(self, region: str, topic: str, count: int) -> None:
        """Wait until the region has exactly so many messages of the topic."""
        await until(
            lambda: len(self.log(region, topic)) >= count,
            lambda: (region, topic, len(self.log(region, topic)), count),
        )
        assert len(self.log(region, topic)) == count, (region, topic)

    async def settled(self, still_s: float = 0.3) -> None:
        """Wait until no region's log has grown for so long: whoever is idle is silent."""
        loop = asyncio.get_running_loop()
        seen: list[int] = []
        since = loop.time()

        def still() -> bool:
            nonlocal seen, since
            now = [node.machine.index for each in self.regions.values() for node in each.nodes]
            if now != seen:
                seen, since = now, loop.time()
            return loop.time() - since > still_s

        await until(still, lambda: f"the logs stand still; they are at {seen}")

    async def agree(self, topic: str, sub: str, regions: Iterable[str] | None = None) -> None:
        """Wait until these regions know the same acknowledgements of the subscription."""
        names = list(regions or self.names)
        account = self.account

        def known() -> list[Any]:
            return [account.known(self[name], topic, sub) for name in names]

        await until(lambda: all(each == known()[0] is not None for each in known()), known)

    async def check(self) -> None:
        """The whole: every node lawful and like the others of its region, the account kept."""
        assert not self.wrongs, self.wrongs[0]
        for region in self.regions.values():
            if not region.running:
                continue
            await region.converge(DEADLINE_S)
            first = region.nodes[0].machine
            for node in region.nodes:
                assert node.machine.digest() == first.digest(), (region.name, node.name)
                view = node.machine.view("subscriptions")
                assert list(Subscriptions().invariants(view)) == [], (region.name, node.name)
                assert not node.machine.faults, node.machine.faults[0].detail
        judge(self.regions, self.account)


class _Alarms(logging.Handler):
    """Errors that the nodes log: in these stories there are none."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(self.format(record))


def play(
    body: Callable[[Regions], Awaitable[None]],
    names: str = "ab",
    cores: int | Mapping[str, int] = 1,
    replicants: int = 0,
    *,
    mode: str = "vector",
    period_ms: int = 50,
    settings: Mapping[str, Any] | None = None,
    **more: Any,
) -> None:
    """Run the story on regions of these names with these settings, and judge the whole in the end.

    `period_ms`: of snapshots; one second, the default, would only make tests long.
    """

    async def whole() -> None:
        made = Regions(names, cores, replicants, **more)
        # They meet when all are set up: a region hears of a change of another one's mode only
        # within a second.
        for way in made.ways.values():
            way.cut()
        async with made.running() as world:
            await world.configure(mode=mode, period_ms=period_ms, **(settings or {}))
            for way in world.ways.values():
                way.heal()
            await body(world)
            await world.check()

    heard = _Alarms()
    logging.getLogger().addHandler(heard)
    try:
        asyncio.run(whole())
    finally:
        logging.getLogger().removeHandler(heard)
    assert not heard.told, "\n".join(heard.told)


async def link(world: Regions, region: str, other: str) -> LinkStatus | None:
    """What the region says of its link to the other one."""
    [row] = [row for row in await world.api(region).regions() if row.name == other]
    return row.link


async def says(world: Regions, region: str, other: str, word: str) -> LinkStatus:
    """Wait until the last error of the link has this word; the link then."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE_S
    while True:
        row = await link(world, region, other)
        if row is not None and row.last_error and word in row.last_error:
            return row
        assert loop.time() < deadline, row
        await asyncio.sleep(0.01)
