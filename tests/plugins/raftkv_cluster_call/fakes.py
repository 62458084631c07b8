"""The fake cluster (raftkv.testing.plugin_cluster) with the calls and the keyspace.

    @story()
    async def test_all(cluster: Cluster) -> None:
        done = await cluster.calls("core1").call("note", Note("x"))
        assert cluster.ran("core2") == [done.id]

Each node has the functions of its `Seat`, which stands outside the node and outlives it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec

from raftkv.kv import KV, Put
from raftkv.testing.clock import run
from raftkv.testing.plugin_cluster import (
    NETWORK_S,
    FakeCluster,
    FakeHost,
    Mishap,
    Role,
    tag_of,
    until,
)
from raftkv_cluster_call.api import CallsApi
from raftkv_cluster_call.commands import Cursor, Record
from raftkv_cluster_call.functions import Call
from raftkv_cluster_call.options import CallsOptions
from raftkv_cluster_call.plugin import Calls
from raftkv_cluster_call.service import CallsService

__all__ = [
    "NETWORK_S",
    "Broken",
    "Cluster",
    "FakeNode",
    "Mishap",
    "Note",
    "Ran",
    "Seat",
    "story",
    "tag_of",
    "tell",
    "until",
]

# Longer than any pause between two tries, so that what can come to rest does.
REST_S = 15.0


class FakeNode(FakeHost[CallsApi]):
    """A node with the calls."""

    cluster: Cluster
    service: CallsService

    def __init__(self, cluster: Cluster, name: str, role: Role) -> None:
        super().__init__(cluster, name, role)
        self.calls = self.opened

    @property
    def proposed(self) -> list[str]:
        """Tags of the commands that it proposed."""
        return self.proposals


# --- what stands outside the nodes ----------------------------------------------------------------


class Note(msgspec.Struct, frozen=True):
    """What the functions are called with."""

    text: str = ""


class Ran(msgspec.Struct, frozen=True):
    """One run of a function, as it was told about it."""

    node: str
    function: str
    id: int
    kind: str
    initiator: str
    attempt: int
    token: str
    said: str


class Broken(Exception):
    """What functions raise where the test says that they fail."""


class Seat:
    """One node from outside: its functions and what they did, over all its lives."""

    def __init__(self, name: str) -> None:
        self.name = name
        #: Every run that was begun, and those that succeeded.
        self.tries: list[Ran] = []
        self.runs: list[Ran] = []
        #: What fails here: functions' names, or "*" for all.
        self.broken: set[str] = set()
        #: How long a run takes; told the call.
        self.takes_s: Callable[[Call], float] = lambda call: 0.0
        #: Called in the midst of each run, before it succeeds.
        self.during: Callable[[Call], None] = lambda call: None
        #: A run that is cancelled goes on for so long.
        self.stubborn_s = 0.0

    def take(self, calls: CallsApi) -> None:
        calls.function("note", version=1)(self.note)
        calls.function("quick", version=1)(self.quick)
        calls.function("count", version=1, effect=True)(self.count)

    async def note(self, args: Note, call: Call) -> str:
        """Takes its time, and may fail."""
        ran = self._begin("note", args, call)
        seconds = self.takes_s(call)
        if seconds:
            try:
                await asyncio.sleep(seconds)
            except asyncio.CancelledError:
                if not self.stubborn_s:
                    raise
                await asyncio.sleep(self.stubborn_s)
        self._end("note", ran, call)
        return f"{args.text}@{self.name}"

    def quick(self, args: Note, call: Call) -> str:
        ran = self._begin("quick", args, call)
        self._end("quick", ran, call)
        return args.text

    def count(self, args: Note, call: Call) -> Put:
        """Its only effect is on the keyspace, at a key of this node's own: how often it is set."""
        ran = self._begin("count", args, call)
        self._end("count", ran, call)
        return Put(f"count/{self.name}".encode(), str(call.id).encode())

    def _begin(self, function: str, args: Note, call: Call) -> Ran:
        ran = Ran(
            call.node,
            function,
            call.id,
            call.kind,
            call.initiator,
            call.attempt,
            call.token,
            args.text,
        )
        self.tries.append(ran)
        return ran

    def _end(self, function: str, ran: Ran, call: Call) -> None:
        self.during(call)
        if self.broken & {function, "*"}:
            raise Broken(f"as the test says, of {ran.said}")
        self.runs.append(ran)


# --- the cluster ----------------------------------------------------------------------------------


class Cluster(FakeCluster[FakeNode]):
    """Nodes with the calls, and their seats. `await cluster.start()` before use."""

    def __init__(
        self,
        cores: int = 3,
        replicants: int = 0,
        options: CallsOptions | None = None,
        register: Callable[[FakeNode], None] | None = None,
    ) -> None:
        super().__init__(Calls, cores, replicants, beside=[KV], options=options)
        self.seats: dict[str, Seat] = {}
        #: Called with each node that starts, before its service does.
        self.register = register

    def make_node(self, name: str, role: Role) -> FakeNode:
        return FakeNode(self, name, role)

    def prepare(self, node: FakeNode) -> None:
        self.seats.setdefault(node.name, Seat(node.name)).take(node.calls)
        if self.register is not None:
            self.register(node)

    async def start(self) -> Cluster:
        await super().start()
        names = [name for name, node in self.nodes.items() if node.role == "core"]
        await until(lambda: all(self.state(name) == "following" for name in names))
        return self

    def set(self, **settings: Any) -> None:
        """Set replicated settings of the calls."""
        self.configure(**settings)

    # --- looking ---

    def calls(self, name: str) -> CallsApi:
        return self.nodes[name].calls

    def ran(self, name: str) -> list[int]:
        """The ids that succeeded on this node, in their order."""
        return [run.id for run in self.seats[name].runs]

    def tried(self, name: str) -> list[int]:
        """The ids that were begun on this node, in their order."""
        return [run.id for run in self.seats[name].tries]

    def row(self, name: str) -> Cursor:
        row: Cursor = self.table("cursors")[name]
        return row

    def state(self, name: str) -> str:
        row: Cursor | None = self.table("cursors").get(name)
        return "" if row is None else row.state

    def record(self, id: int) -> Record:
        record: Record = self.table("records")[id]
        return record

    def cursors(self) -> dict[str, int]:
        return {name: row.id for name, row in self.table("cursors").items()}

    def count(self, name: str) -> int:
        """How often the key of this node's `count` was written."""
        kv = self.witness.view("kv").table("keys").get(f"count/{name}".encode())
        return 0 if kv is None else int(kv.version)

    def alarms(self, name: str) -> set[tuple[str, str, int]]:
        """(name, node, id) of every alarm of the cluster, as this node sees it."""
        return {(alarm.name, alarm.node, alarm.id) for alarm in self.calls(name).alarms()}

    async def at(self, id: int, names: Iterable[str] | None = None) -> None:
        """Wait until these nodes (all with a cursor) have executed the id."""
        wanted = list(self.cursors()) if names is None else list(names)
        await until(lambda: all(self.cursors().get(name, 0) >= id for name in wanted))

    # --- judging ---

    def check(self) -> None:
        """The invariants, equal digests, order, and nothing of an aborted call elsewhere."""
        super().check()
        records = self.table("records")
        for seat in self.seats.values():
            for earlier, later in zip(seat.runs, seat.runs[1:], strict=False):
                assert earlier.id <= later.id, f"{seat.name} ran {earlier.id} and then {later.id}"
            for ran in seat.tries:
                record = records.get(ran.id)
                if ran.kind == "replicate" and record is not None:
                    assert record.state == "committed", f"{seat.name} ran {ran} of {record.state}"


Story = Callable[[Cluster], Awaitable[None]]


def story(
    cores: int = 3,
    replicants: int = 0,
    options: CallsOptions | None = None,
    register: Callable[[FakeNode], None] | None = None,
) -> Callable[[Story], Callable[[], None]]:
    """A test on a cluster that has started; what must hold at its end is checked."""

    def wrap(body: Story) -> Callable[[], None]:
        def test() -> None:
            tell(body, cores, replicants, options, register)

        test.__name__ = body.__name__
        test.__doc__ = body.__doc__
        return test

    return wrap


def tell(
    body: Story,
    cores: int = 3,
    replicants: int = 0,
    options: CallsOptions | None = None,
    register: Callable[[FakeNode], None] | None = None,
) -> None:
    """Run one story in virtual time."""

    async def whole() -> None:
        cluster = await Cluster(cores, replicants, options, register).start()
        await body(cluster)
        await asyncio.sleep(REST_S)
        cluster.check()

    run(whole())
