"""A cluster of real nodes with transactional queues, for the acceptance scenarios.

    async def body(cluster: TxCluster) -> None:
        await cluster.queue("a", "x", "y")
        assert await cluster.everywhere("a") == ["x", "y"]

    play(body, cores=3)

Consensus, sockets and files are real and inside this process; `LocalCluster` says how. When a story
is over, `check` demands that nothing is left of any transaction, that all nodes have the same state
and that it is a lawful one, and that no plugin code has raised what it should not.

What a node proposes may be *held* by its kind: a held `Commit` is one that is on its way. A node's
*store* (`Store`) is what takes part in transactions there: it can be slow, broken or late. Nothing
here sleeps for luck: `until` waits for a condition, and says what it waited for when it gives up.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import msgspec

from raftkv.config import Limits, RaftTimes
from raftkv.node import Node
from raftkv.parts import CorePart
from raftkv.state.core import DeclareDead, SetSetting
from raftkv.testing.local_cluster import LocalCluster
from raftkv_txqueue.api import TxQueueApi
from raftkv_txqueue.commands import Message, Queue
from raftkv_txqueue.consuming import Delivery
from raftkv_txqueue.observers import Opened, TransactionObserver
from raftkv_txqueue.plugin import TxQueue
from raftkv_txqueue.session import Session
from raftkv_txqueue.views import Browsed, browse
from raftkv_txqueue.xa import Xid
from tests.plugins.raftkv_txqueue.residue import RESIDUE

__all__ = [
    "DEADLINE_S",
    "NODE_DOWN_MS",
    "Shared",
    "Store",
    "TxCluster",
    "bodies",
    "body_of",
    "both",
    "new_xid",
    "play",
    "take",
    "until",
]

# Far more than anything here takes, and less than the time limit of a test.
DEADLINE_S = 60.0
# A killed node is declared dead after this time; the default of 10 s would only make tests long.
NODE_DOWN_MS = 3_000
#: Longer than all other tests take together.
STANDSTILL_MS = 3_600_000


def body_of(text: str) -> bytes:
    return text.encode()


def bodies(deliveries: Iterable[Delivery]) -> list[str]:
    return [delivery.body.decode() for delivery in deliveries]


def new_xid(name: str, branch: str = "") -> Xid:
    return Xid(7, name.encode(), branch.encode())


async def both(*awaited: Awaitable[object]) -> list[object]:
    """Await all at once; exceptions are among the results."""
    return list(await asyncio.gather(*awaited, return_exceptions=True))


async def take(session: Session, queue: str, count: int) -> list[Delivery]:
    """Acquire exactly so many; they must be there, or come soon."""
    taken: list[Delivery] = []
    while len(taken) < count:
        got = await session.get(queue, count=min(1_000, count - len(taken)), wait_s=DEADLINE_S)
        assert got, f"{len(taken)} of {count} in {queue}"
        taken.extend(got)
    return taken


class Store:
    """What takes part in transactions at one node, as a program's own store would.

    `script`: what `prepare` does, by default nothing. `told`: what it heard, per transaction, in
    order, in the present process.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.told: dict[str, list[str]] = {}
        self.participants: dict[str, tuple[str, ...]] = {}
        self.preparing = 0
        self.script: Callable[[str], Awaitable[None]] | None = None
        self.detach: Callable[[], Any] | None = None

    def factory(self, opened: Opened) -> TransactionObserver:
        name = str(opened.txid or opened.xid)
        self.told[name] = []
        return _Watching(self, name)

    def of(self, name: object) -> list[str]:
        """What it heard of this transaction (a txid, or a xid)."""
        return self.told.get(str(name), [])


class _Watching(TransactionObserver):
    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name
        self._say = store.told[name].append

    def publish(self, queue: str, messages: Sequence[Message]) -> None:
        self._say(f"publish {queue} {','.join(message.body.decode() for message in messages)}")

    def accept(self, queue: str, seqs: Sequence[int]) -> None:
        self._say(f"accept {queue} {','.join(map(str, seqs))}")

    def closed(self, participants: Sequence[Any]) -> None:
        names = tuple(getattr(each, "node", each) for each in participants)
        self._store.participants[self._name] = names
        self._say("closed")

    async def prepare(self) -> None:
        self._store.preparing += 1
        try:
            if self._store.script is not None:
                await self._store.script(self._name)
        finally:
            self._store.preparing -= 1
        self._say("prepared")

    def commit(self) -> None:
        self._say("commit")

    def rollback(self, cause: str, reason: str) -> None:
        self._say(f"rollback {cause}")

    def deleted(self) -> None:
        self._say("deleted")


class Measured(TxQueue):
    """The plugin, and how many rows the largest command of each kind has written."""

    def __init__(self) -> None:
        super().__init__()
        self.rows_max: Counter[str] = Counter()

    def apply(self, command: msgspec.Struct, ctx: Any) -> Any:
        done = super().apply(command, ctx)
        # What is written is noted, so that it can be undone, until the command has succeeded.
        written = len(ctx.table("meta")._undo)
        kind = type(command).__name__
        self.rows_max[kind] = max(self.rows_max[kind], written)
        return done


class TxCluster(LocalCluster):
    """See the module's text."""

    def __init__(
        self,
        cores: int = 3,
        replicants: int = 0,
        *,
        limits: Limits | None = None,
        node_down_ms: int = NODE_DOWN_MS,
    ) -> None:
        raft = RaftTimes(node_down_ms=node_down_ms)
        self.measured = Measured()
        super().__init__(cores, replicants, plugins=[self.measured], raft=raft, limits=limits)
        #: Who takes part in transactions: node -> its store, given anew to each life of the node.
        self.stores: dict[str, Store] = {}
        #: (node, kind of command) of everything that was proposed, by all lives.
        self.proposed: Counter[tuple[str, str]] = Counter()
        # (node, kind) -> how many are waiting at that gate
        self.held: Counter[tuple[str, str]] = Counter()
        self._gates: dict[tuple[str, str], asyncio.Event] = {}
        # (node, kind) -> how many that gate lets through first
        self._passing: Counter[tuple[str, str]] = Counter()
        self._starting: set[str] = set()

    def leader(self) -> Node | None:
        """As `LocalCluster` says; a node that is only being started has nothing to say yet."""
        leaders = [
            node
            for node in self.cores
            if node.name not in self._starting and node.status().role == "leader"
        ]
        return max(leaders, key=lambda node: node.status().term, default=None)

    async def start(self, name: str) -> Node:
        self._starting.add(name)
        try:
            node = await super().start(name)
        finally:
            self._starting.discard(name)
        if name in self.stores:
            store = self.stores[name]
            store.told.clear()
            store.detach = node.plugin(TxQueue).observe(store.factory)
        host = node.hosting.hosts["txqueue"]
        propose = host.propose

        async def noted(command: msgspec.Struct, *, timeout_s: float | None = None) -> Any:
            key = name, type(command).__name__
            self.proposed[key] += 1
            gate = self._gates.get(key)
            if gate is not None and self._passing[key] > 0:
                self._passing[key] -= 1
            elif gate is not None:
                self.held[key] += 1
                try:
                    await gate.wait()
                finally:
                    self.held[key] -= 1
            return await propose(command, timeout_s=timeout_s)

        host.propose = noted  # type: ignore[method-assign]
        return node

    # -- doing

    def txq(self, name: str) -> TxQueueApi:
        return self.running[name].plugin(TxQueue)

    async def queue(self, name: str, *texts: str, at: str = "", **limits: Any) -> None:
        """Declare it and put these messages into it."""
        txq = self.txq(at or self.nodes[0].name)
        await txq.declare(name, **limits)
        if texts:
            await txq.publish(name, [Message(body_of(text)) for text in texts])

    async def put(self, name: str, *texts: str, at: str = "") -> None:
        """Publish these, one after the other, outside any transaction."""
        txq = self.txq(at or self.nodes[0].name)
        for text in texts:
            await txq.publish(name, body_of(text), timeout_s=DEADLINE_S)

    async def raw(self, at: str, command: msgspec.Struct) -> Any:
        """Propose a command of the plugin, as a node of any mind might."""
        return await self.running[at].propose("txqueue", command, timeout_s=DEADLINE_S)

    async def configure(self, **settings: Any) -> None:
        """Set replicated settings of the plugin."""
        for key, value in settings.items():
            await self.nodes[0].propose("core", SetSetting.of("txqueue", key, value))

    async def store(self, *names: str) -> list[Store]:
        """From now on these nodes take part in transactions; wait until the log knows it."""
        for name in names:
            self.stores[name] = made = Store(name)
            made.detach = self.txq(name).observe(made.factory)
        await self.takes_part(*names)
        return [self.stores[name] for name in names]

    async def takes_part(self, *names: str) -> None:
        """Wait until these nodes, in their present lives, are participants in the log."""

        def known() -> bool:
            rows = self.table("observers")
            return all(
                rows.get(name) == self.running[name].hosting.hosts["txqueue"].incarnation != 0
                for name in names
            )

        await until(known, lambda: f"{names} take part; there is {self.table('observers')}")

    async def declare_dead(self, name: str) -> None:
        """The cluster gives up on the node's present life, though it runs: a pause too long."""
        other = next(node for node in self.nodes if node.name != name)
        member = other.machine.members[name]
        answer = None
        while answer is None:  # it is passed over when the leader changes meanwhile
            part = other._part
            term = part.engine.term if isinstance(part, CorePart) else 0
            dead = DeclareDead(name, member.incarnation, term)
            answer = await other.propose("core", dead, timeout_s=DEADLINE_S)

        def anew() -> bool:
            now = self.running[name].machine.members.get(name)
            return now is not None and now.up and now.incarnation > member.incarnation

        await until(anew, f"{name} begins a new life")

    async def new_leader(self, name: str) -> str:
        """Kill the leader's node, wait until one of the others leads; its name."""
        await self.kill(name)
        await until(lambda: self.leader() is not None, f"somebody leads after {name}")
        leader = self.leader()
        assert leader is not None
        return leader.name

    async def has_leader(self) -> str:
        await until(lambda: self.leader() is not None, "somebody leads")
        leader = self.leader()
        assert leader is not None
        return leader.name

    def follower(self) -> str:
        """A running core that does not lead, now."""
        leader = self.leader()
        return next(node.name for node in self.cores if node is not leader)

    async def all_restart(self) -> None:
        """All nodes are killed, then all are started from their directories."""
        names = list(self.running)
        for name in names:
            await self.kill(name)
        await asyncio.gather(*(self.start(name) for name in names))
        await self.wait_ready(DEADLINE_S)
        await self.has_leader()

    def hold(self, kind: type[msgspec.Struct], *names: str, passing: int = 0) -> Callable[[], None]:
        """From now on these nodes' commands of this kind wait, until the result is called.

        `passing` of each node go through first.
        """
        gates = []
        for name in names:
            self._passing[name, kind.__name__] = passing
            gate = self._gates[name, kind.__name__] = asyncio.Event()
            gates.append((name, gate))

        def release() -> None:
            for name, gate in gates:
                gate.set()
                if self._gates.get((name, kind.__name__)) is gate:
                    del self._gates[name, kind.__name__]

        return release

    async def is_held(self, kind: type[msgspec.Struct], name: str) -> None:
        """Wait until that node has something of this kind to say and cannot."""
        key = name, kind.__name__
        await until(lambda: self.held[key] > 0, lambda: f"{key} is held; there are {self.held}")

    # -- looking; `at` is the node that is asked, its own copy answers

    def table(self, name: str, at: str | None = None) -> dict[Any, Any]:
        """The rows of one of the plugin's tables."""
        node = self.nodes[0] if at is None else self.running[at]
        return dict(node.machine.view("txqueue").table(name).scan())

    def row(self, queue: str, at: str | None = None) -> Queue:
        found: Queue = self.table("queues", at)[queue]
        return found

    def browsed(self, queue: str, at: str | None = None) -> tuple[Browsed, ...]:
        """All that is in the queue, acquired ones too."""
        node = self.nodes[0] if at is None else self.running[at]
        view = node.machine.view("txqueue")
        return tuple(browse(view, queue, limit=1_000_000, everything=True))

    def available(self, queue: str, at: str | None = None) -> list[str]:
        return [
            each.message.body.decode()
            for each in self.browsed(queue, at)
            if each.state == "available"
        ]

    def stored(self, queue: str, at: str | None = None) -> list[str]:
        return [each.message.body.decode() for each in self.browsed(queue, at)]

    async def everywhere(self, queue: str, *, everything: bool = False) -> list[str]:
        """What is available (or all that is) in the queue, which all running nodes see alike."""
        await self.converge(DEADLINE_S)
        look = self.stored if everything else self.available
        seen = {node.name: look(queue, node.name) for node in self.nodes}
        first = seen[self.nodes[0].name]
        assert all(each == first for each in seen.values()), seen
        if not everything:
            assert self.row(queue).ready == len(first), self.row(queue)
        return first

    async def drained(self, queue: str, at: str = "") -> list[str]:
        """What a consumer gets until the queue is empty; it is accepted."""
        got: list[str] = []
        async with self.txq(at or self.nodes[0].name).session("plain") as session:
            while True:
                some = await session.get(queue, count=1_000, wait_s=0.0)
                if not some:
                    return got
                got.extend(bodies(some))
                await session.accept(*some)

    # -- waiting and judging

    async def is_down(self, name: str) -> None:
        """Wait until the cluster has declared the node dead."""

        def down() -> bool:
            member = self.nodes[0].machine.members.get(name)
            return member is None or not member.up

        await until(down, f"{name} is declared dead")

    def residue(self, at: str) -> dict[str, int]:
        """Rows that are left of transactions on the node; there should be none."""
        view = self.running[at].machine.view("txqueue")
        counts = {name: len(view.table(name)) for name in RESIDUE}
        return {name: count for name, count in counts.items() if count}

    async def clean(self) -> None:
        """Wait until nothing is left of any transaction, on any node."""
        await until(
            lambda: not any(self.residue(node.name) for node in self.nodes),
            lambda: f"nothing is left; there is {self.residue(self.nodes[0].name)}",
        )
        await self.converge(DEADLINE_S)
        for queue, row in self.table("queues").items():
            assert (row.reserved, row.reserved_bytes, row.uses) == (0, 0, 0), (queue, row)

    def lawful(self) -> None:
        """Invariants hold on every node, and no command of the plugin has ever failed badly."""
        for node in self.nodes:
            assert list(TxQueue().invariants(node.machine.view("txqueue"))) == [], node.name
            assert not node.machine.faults, node.machine.faults[0].detail

    async def empty(self) -> None:
        """Close all sessions, delete all queues, and let nobody take part in transactions."""
        for name, store in self.stores.items():
            if store.detach is not None:
                store.detach()
            self.stores[name].detach = None
        self.stores.clear()
        for node in self.nodes:
            for session in self.txq(node.name).sessions.all():
                await session.close(timeout_s=DEADLINE_S)
        for queue in list(self.table("queues")):
            await self.txq(self.nodes[0].name).delete(queue, timeout_s=DEADLINE_S)
        await until(lambda: not self.table("observers"), "nobody takes part")
        await self.clean()
        for name in ("messages", "locks", "returned", "accepts", "owners"):
            assert self.table(name) == {}

    async def check(self, *, clean: bool = True) -> None:
        """The whole: see the module's text."""
        await self.converge(DEADLINE_S)
        if clean:
            await self.clean()
        self.lawful()
        await self.converge(DEADLINE_S)
        first = self.nodes[0].machine
        for node in self.nodes:
            assert node.machine.digest() == first.digest(), node.name


class _Alarms(logging.Handler):
    """Errors that the nodes log: in these stories there are none."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(self.format(record))


def play(
    body: Callable[[TxCluster], Awaitable[None]],
    cores: int = 3,
    replicants: int = 0,
    *,
    limits: Limits | None = None,
    node_down_ms: int = NODE_DOWN_MS,
    alarms: int = 0,
    **settings: Any,
) -> None:
    """Run the story on a cluster with these settings, and check the whole in the end.

    `alarms`: how many errors the nodes are to have logged.
    """

    async def whole() -> None:
        async with TxCluster(
            cores, replicants, limits=limits, node_down_ms=node_down_ms
        ) as cluster:
            assert isinstance(cluster, TxCluster)
            await cluster.configure(**settings)
            await cluster.converge(DEADLINE_S)
            await body(cluster)
            await cluster.check()

    heard = _Alarms()
    logging.getLogger().addHandler(heard)
    try:
        asyncio.run(whole())
    finally:
        logging.getLogger().removeHandler(heard)
    assert len(heard.told) == alarms, "\n".join(heard.told)


class Shared:
    """One cluster of three for many stories, one after the other, each of which it must outlive.

    After each the whole is checked and emptied: its sessions, queues and stores go. A story that
    fails takes the cluster with it. Between the stories the nodes stand still, for as long as other
    tests take: so nobody is declared dead here (STANDSTILL_MS). A story of such a death has a
    cluster of its own (`play`).
    """

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None
        self._cluster: TxCluster | None = None

    def play(self, body: Callable[[TxCluster], Awaitable[None]]) -> None:
        """Run the story, and check the whole."""
        heard = _Alarms()
        logging.getLogger().addHandler(heard)
        try:
            self._play(body)
        finally:
            logging.getLogger().removeHandler(heard)
        assert not heard.told, "\n".join(heard.told)

    def _play(self, body: Callable[[TxCluster], Awaitable[None]]) -> None:
        if self._runner is None:
            self._runner = asyncio.Runner()
        try:
            if self._cluster is None:
                self._cluster = TxCluster(node_down_ms=STANDSTILL_MS)
                self._runner.run(self._cluster.__aenter__())
            self._runner.run(self._whole(self._cluster, body))
        except BaseException:
            self.close()
            raise

    async def _whole(
        self, cluster: TxCluster, body: Callable[[TxCluster], Awaitable[None]]
    ) -> None:
        await cluster.has_leader()
        await body(cluster)
        await cluster.check()
        await cluster.empty()

    def close(self) -> None:
        """End the cluster; the next story begins with another one."""
        runner, self._runner = self._runner, None
        cluster, self._cluster = self._cluster, None
        if runner is not None:
            if cluster is not None:
                runner.run(cluster.close())
            runner.close()


async def until(
    condition: Callable[[], bool],
    what: str | Callable[[], object],
    timeout_s: float = DEADLINE_S,
) -> None:
    """Wait for the condition. Raises AssertionError with `what` when it does not come true."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while not condition():
        if loop.time() > deadline:
            told = what if isinstance(what, str) else what()
            raise AssertionError(f"not within {timeout_s:g} s: {told}")
        await asyncio.sleep(0.005)
