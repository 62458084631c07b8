"""A cluster of real nodes whose every node has the test's functions: for the acceptance scenarios.

    async def body(cluster: CallsCluster) -> None:
        done = await cluster.calls("core1").call("note", Note("x"))
        assert cluster.seats["core2"].ids == [done.id]

    play(body, cores=3)

Consensus, sockets and files are real and inside this process; `LocalCluster` says how. A `Seat` is
what stands outside raftkv at one node: what its functions did, whether they fail, and its shelf.
It outlives the node, so that a run that is repeated after a restart is seen. Nothing here sleeps
for luck: `until` waits for a condition, and says what it waited for when it gives up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from raftkv.config import RaftTimes
from raftkv.kv import Put
from raftkv.node import Node
from raftkv.state.core import SetSetting
from raftkv.testing.local_cluster import LocalCluster
from raftkv_cluster_call import Call, Calls, CallsApi, CallStatus, NodeStatus

__all__ = [
    "DEADLINE_S",
    "CallsCluster",
    "Item",
    "Note",
    "Run",
    "Seat",
    "Shelf",
    "play",
    "until",
]

# Far more than anything here takes, and less than the time limit of a test.
DEADLINE_S = 60.0
# A killed node is declared dead after this time; the default of 10 s would only make tests long.
NODE_DOWN_MS = 3_000
# The shortest that the setting may be: failing functions are tried again so often.
RETRY_MS = 100


class Note(msgspec.Struct, frozen=True):
    """What `note` and `count` are called with."""

    text: str


class Item(msgspec.Struct, frozen=True):
    """What `store` and `add` are called with."""

    key: str
    value: str


class Run(msgspec.Struct, frozen=True):
    """One run of a function, as the function was told about it."""

    id: int
    kind: str
    initiator: str
    attempt: int
    token: str
    said: str


class Broken(Exception):
    """What a function raises where the test says that it fails."""


class AlreadyThere(Exception):
    """What `add` raises on the initiator for a key that exists."""


class Shelf:
    """A state that calls make on one node, kept with the id that it is as of; a `NodeState`.

    It lies outside the node, as a file would, and is there again when the node is.
    """

    name = "shelf"

    def __init__(self) -> None:
        self.items: dict[str, bytes] = {}
        self.at = 0
        # The ids of the full syncs that came in.
        self.loaded: list[int] = []
        # Runs when somebody asks for the items, before they are given.
        self.before_dump: Callable[[], Awaitable[None]] | None = None

    async def as_of(self) -> int | None:
        return self.at

    async def dump(self) -> Mapping[str, bytes]:
        if self.before_dump is not None:
            await self.before_dump()
        return dict(self.items)

    async def load(self, items: Mapping[str, bytes], as_of: int) -> None:
        self.items, self.at = dict(items), as_of
        self.loaded.append(as_of)

    async def passed(self, id: int) -> None:
        self.at = id


class Seat:
    """One node from outside: its functions and what they left behind."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.shelf = Shelf()
        # Every run that was begun, and those that succeeded, over all lives of the node.
        self.tries: list[Run] = []
        self.runs: list[Run] = []
        # From now on the functions fail here.
        self.broken = False
        # While it is there and not set, the next runs wait here, after they have begun.
        self.gate: asyncio.Event | None = None
        # How long the next run takes; told the call's id.
        self.pause_s: Callable[[int], float] = lambda id: 0.0

    def take(self, calls: CallsApi, *, shelf: bool) -> None:
        """Register everything with a node that has just started."""
        calls.function("note", version=1)(self.note)
        calls.function("store", version=1)(self.store)
        calls.function("add", version=1)(self.add)
        calls.function("count", version=1, effect=True)(self.count)
        if shelf:
            calls.state(self.shelf)

    @property
    def ids(self) -> list[int]:
        """What succeeded here, in the order in which it ran."""
        return [run.id for run in self.runs]

    async def note(self, args: Note, call: Call) -> str:
        run = self._begin(args.text, call)
        if self.gate is not None:
            await self.gate.wait()
        pause_s = self.pause_s(call.id)
        if pause_s:
            await asyncio.sleep(pause_s)
        self.runs.append(run)
        return f"{args.text} on {self.name}"

    async def store(self, args: Item, call: Call) -> str:
        run = self._begin(args.key, call)
        self.shelf.items[args.key] = args.value.encode()
        self.runs.append(run)
        return args.value

    async def add(self, args: Item, call: Call) -> str:
        """Scenario 14: what validates may fail on the initiator only."""
        run = self._begin(args.key, call)
        if args.key in self.shelf.items and call.kind == "initiate":
            raise AlreadyThere(f"{args.key} exists")
        self.shelf.items[args.key] = args.value.encode()
        self.runs.append(run)
        return args.value

    def count(self, args: Note, call: Call) -> Put:
        """Its only effect is on the keyspace, at a key of this node's own."""
        self._begin(args.text, call)
        return Put(f"count/{call.node}".encode(), str(call.id).encode())

    def _begin(self, said: str, call: Call) -> Run:
        assert call.node == self.name
        run = Run(call.id, call.kind, call.initiator, call.attempt, call.token, said)
        self.tries.append(run)
        if self.broken:
            raise Broken("as the test says")
        return run


class CallsCluster(LocalCluster):
    """See the module's text. `shelves`: every node has a `Shelf` that joiners get."""

    def __init__(
        self,
        cores: int = 3,
        replicants: int = 0,
        *,
        shelves: bool = False,
        raft: RaftTimes | None = None,
    ) -> None:
        raft = RaftTimes(node_down_ms=NODE_DOWN_MS) if raft is None else raft
        super().__init__(cores, replicants, plugins=[Calls()], raft=raft)
        self._shelves = shelves
        self.seats: dict[str, Seat] = {}

    async def start(self, name: str) -> Node:
        node = await super().start(name)
        # Nothing was awaited since the node began to run, so no call has found it without these.
        seat = self.seats.setdefault(name, Seat(name))
        seat.take(node.plugin(Calls), shelf=self._shelves)
        return node

    # -- doing

    def calls(self, name: str) -> CallsApi:
        return self.running[name].plugin(Calls)

    async def configure(self, **settings: Any) -> None:
        """Set replicated settings of the plugin."""
        for key, value in settings.items():
            await self.nodes[0].propose("core", SetSetting.of("calls", key, value))

    # -- looking; `at` is the node that is asked

    def _at(self, at: str | None) -> Node:
        return self.nodes[0] if at is None else self.running[at]

    def table(self, name: str, at: str | None = None) -> dict[Any, Any]:
        """The rows of one of the plugin's tables."""
        return dict(self._at(at).machine.view("calls").table(name).scan())

    def last(self, at: str | None = None) -> int:
        """The highest id."""
        last: int = self.table("meta", at).get("last", 0)
        return last

    def cursors(self, at: str | None = None) -> dict[str, int]:
        """Node -> cursor, of all that have one."""
        return {node: row.id for node, row in self.table("cursors", at).items()}

    def state_of(self, node: str, at: str | None = None) -> str:
        """following, joining, gap, or "" without a cursor."""
        row = self.table("cursors", at).get(node)
        return "" if row is None else str(row.state)

    def up(self, node: str, at: str | None = None) -> bool:
        """Whether the cluster counts the node as alive."""
        member = self._at(at).machine.members.get(node)
        return member is not None and member.up

    def status_of(self, node: str, at: str | None = None) -> NodeStatus:
        """The node's line of the status."""
        status = self.calls(at or self.nodes[0].name).status()
        [found] = [row for row in status.nodes if row.name == node]
        return found

    def committed(self, at: str | None = None) -> list[CallStatus]:
        """The calls that the status shows: committed ones, the newest first."""
        return list(self.calls(at or self.nodes[0].name).status().calls)

    def alarms(self, at: str | None = None) -> set[tuple[str, str, int]]:
        """(name, node, id) of every alarm of the cluster."""
        found = self.calls(at or self.nodes[0].name).alarms()
        return {(alarm.name, alarm.node, alarm.id) for alarm in found}

    # -- waiting

    async def following(self, names: Sequence[str] | None = None) -> None:
        """Wait until each of the nodes (all cores) takes part, as every running node sees it."""
        wanted = [node.name for node in self.cores] if names is None else names
        await until(
            lambda: all(
                self.state_of(name, node.name) == "following"
                for name in wanted
                for node in self.nodes
            ),
            lambda: f"{wanted} follow; cursors are {self.table('cursors')}",
        )

    async def reached(self, id: int, names: Sequence[str] | None = None) -> None:
        """Wait until the cursors of the nodes (all running that have one) are at `id` or above."""

        def behind() -> dict[str, int]:
            cursors = self.cursors()
            wanted = [n for n in self.running if n in cursors] if names is None else names
            return {name: cursors.get(name, -1) for name in wanted if cursors.get(name, -1) < id}

        await until(lambda: not behind(), lambda: f"cursors at {id}; behind are {behind()}")

    async def is_down(self, node: str) -> None:
        """Wait until the cluster has declared the node dead."""
        await until(lambda: not self.up(node), f"{node} is declared dead")

    # -- judging

    async def check(self) -> None:
        """The invariants hold; each node ran committed calls in the order of their ids, once.

        For tests in which no node dies between a run and its outcome: then once is at least once.
        """
        await self.converge()
        for node in self.nodes:
            assert list(Calls().invariants(node.machine.view("calls"))) == []
        records = self.table("records")
        for seat in self.seats.values():
            assert seat.ids == sorted(set(seat.ids)), seat.name
            for run in seat.runs:
                assert run.token == f"{run.id}@{seat.name}"
                assert run.kind == ("initiate" if run.initiator == seat.name else "replicate")
                if run.id in records and run.kind == "replicate":
                    assert records[run.id].state == "committed", run


def play(
    body: Callable[[CallsCluster], Awaitable[None]],
    cores: int = 3,
    replicants: int = 0,
    *,
    shelves: bool = False,
) -> None:
    """Run the story on a cluster whose cores all take part, and check the whole in the end."""

    async def whole() -> None:
        cluster = CallsCluster(cores, replicants, shelves=shelves)
        async with cluster:
            await cluster.following()
            await cluster.configure(retry_ms=RETRY_MS)
            await cluster.converge()
            await body(cluster)
            await cluster.check()

    asyncio.run(whole())


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
        await asyncio.sleep(0.01)
