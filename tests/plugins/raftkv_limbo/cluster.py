"""A cluster of real nodes with the limbo, for the acceptance scenarios.

    async def body(cluster: LimboCluster) -> None:
        done = await cluster.put("core1", b"k", b"v")
        assert cluster.row("core2", b"k") == b"v"

    play(body, cores=3, quorum="N")

Consensus, sockets and files are real and inside this process; `LocalCluster` says how. There are
the spaces "sync" and "async", and core1 owns the queue, unless the test says otherwise.

A `Seat` stands outside the node: it hears the callbacks of all its lives, and has its validators.
What a node proposes is noted in `proposed`, and may be *held* by its kind: a held `Ack` is a node
that has not answered yet, a held `Promote` one that is on its way. Nothing here sleeps for luck:
`until` waits for a condition, and says what it waited for when it gives up.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from raftkv.config import Limits, RaftTimes
from raftkv.node import Node
from raftkv.state.core import SetSetting
from raftkv.testing.local_cluster import LocalCluster
from raftkv_limbo.api import LimboApi
from raftkv_limbo.commands import Ack, State, Write
from raftkv_limbo.hooks import Confirmed, Restored, Undone
from raftkv_limbo.plugin import Limbo
from raftkv_limbo.submission import Receipt, Submission
from raftkv_limbo.validators import Validator
from raftkv_limbo.views import pending_row, state_of

__all__ = ["DEADLINE_S", "LimboCluster", "Seat", "play", "until"]

# Far more than anything here takes, and less than the time limit of a test.
DEADLINE_S = 60.0
# A killed node is declared dead after this time; the default of 10 s would only make tests long.
NODE_DOWN_MS = 3_000

Event = Confirmed | Undone | Restored


class Seat:
    """One node from outside: what its callbacks heard, and its validators.

    A process that starts may hear again what an earlier one has heard: it applies the log anew.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        #: What each process of it heard.
        self.lives: list[list[Event]] = []
        self.validators: dict[str, Validator] = {}

    def take(self, limbo: LimboApi) -> None:
        """Register everything with a node that has just started."""
        self.lives.append([])
        limbo.on_confirm(self.events.append)
        limbo.on_rollback(self.events.append)
        limbo.on_restored(self.events.append)
        for name, validator in self.validators.items():
            limbo.validator(name, validator)

    @property
    def events(self) -> list[Event]:
        """What the present process heard."""
        return self.lives[-1]

    @property
    def confirmed(self) -> list[int]:
        """Positions, in the order in which they were told."""
        return [event.position for event in self.events if isinstance(event, Confirmed)]

    @property
    def undone(self) -> list[int]:
        return [event.position for event in self.events if isinstance(event, Undone)]


class LimboCluster(LocalCluster):
    """See the module's text. `zones`: node -> its zone."""

    def __init__(
        self,
        cores: int = 3,
        replicants: int = 0,
        *,
        zones: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        node_down_ms: int = NODE_DOWN_MS,
    ) -> None:
        raft = RaftTimes(node_down_ms=node_down_ms)
        super().__init__(cores, replicants, plugins=[Limbo()], raft=raft, limits=limits)
        for name, zone in (zones or {}).items():
            self.configs[name] = msgspec.structs.replace(
                self.configs[name], options={"limbo": {"zone": zone}}
            )
        self.seats = {name: Seat(name) for name in self.configs}
        #: (node, kind of command) of everything that was proposed, by all lives.
        self.proposed: Counter[tuple[str, str]] = Counter()
        self._gates: dict[tuple[str, str], asyncio.Event] = {}
        # (node, kind) -> how many are waiting at that gate
        self.held: Counter[tuple[str, str]] = Counter()

    async def start(self, name: str) -> Node:
        node = await super().start(name)
        self.seats.setdefault(name, Seat(name)).take(node.plugin(Limbo))
        host = node.hosting.hosts["limbo"]
        propose = host.propose

        async def noted(command: msgspec.Struct, *, timeout_s: float | None = None) -> Any:
            key = name, type(command).__name__
            self.proposed[key] += 1
            gate = self._gates.get(key)
            if gate is not None:
                self.held[key] += 1
                try:
                    await gate.wait()
                finally:
                    self.held[key] -= 1
            return await propose(command, timeout_s=timeout_s)

        host.propose = noted  # type: ignore[method-assign]
        return node

    # -- doing

    def limbo(self, name: str) -> LimboApi:
        return self.running[name].plugin(Limbo)

    async def put(
        self, at: str, key: bytes, value: bytes = b"v", space: str = "sync", **more: Any
    ) -> Receipt:
        """Write one key and wait for the verdict, unless `wait` says otherwise."""
        more = {"timeout_s": DEADLINE_S, **more}
        receipt = await self.limbo(at).submit([Write(space, key, value)], **more)
        assert isinstance(receipt, Receipt)
        return receipt

    async def enter(self, at: str, key: bytes, value: bytes = b"v", space: str = "sync") -> int:
        """Bring one key into the queue; its position."""
        return (await self.put(at, key, value, space, wait="submit")).position

    async def hand(
        self, at: str, key: bytes, value: bytes = b"v", space: str = "sync"
    ) -> Submission:
        """Submit one key without any waiting; the handle."""
        handle = await self.limbo(at).submit(
            [Write(space, key, value)], wait="none", timeout_s=None
        )
        assert isinstance(handle, Submission)
        return handle

    async def raw(self, at: str, command: msgspec.Struct) -> Any:
        """Propose a command of the limbo, as a node of any mind might."""
        return await self.running[at].propose("limbo", command, timeout_s=DEADLINE_S)

    async def configure(self, **settings: Any) -> None:
        """Set replicated settings of the plugin."""
        for key, value in settings.items():
            await self.nodes[0].propose("core", SetSetting.of("limbo", key, value))

    def hold(self, kind: type[msgspec.Struct], *names: str) -> Callable[[], None]:
        """From now on these nodes' commands of this kind wait, until the result is called."""
        gates = []
        for name in names:
            gate = self._gates[name, kind.__name__] = asyncio.Event()
            gates.append((name, gate))

        def release() -> None:
            for name, gate in gates:
                gate.set()
                if self._gates.get((name, kind.__name__)) is gate:
                    del self._gates[name, kind.__name__]

        return release

    def open_gates(self) -> None:
        """Let everything go that is held, whoever holds it."""
        for gate in self._gates.values():
            gate.set()
        self._gates.clear()

    async def is_held(self, kind: type[msgspec.Struct], name: str) -> None:
        """Wait until that node has something of this kind to say and cannot."""
        key = name, kind.__name__
        await until(lambda: self.held[key] > 0, lambda: f"{key} is held; there are {self.held}")

    # -- looking; `at` is the node that is asked

    def _view(self, at: str | None) -> Any:
        node = self.nodes[0] if at is None else self.running[at]
        return node.machine.view("limbo")

    def table(self, name: str, at: str | None = None) -> dict[Any, Any]:
        """The rows of one of the plugin's tables."""
        return dict(self._view(at).table(name).scan())

    def state(self, at: str | None = None) -> State:
        return state_of(self._view(at))

    def row(self, at: str, key: bytes, space: str = "sync") -> bytes | None:
        """What a confirmed read of that node's copy sees."""
        row = self.table("rows", at).get((self.table("spaces", at)[space].id, key))
        return None if row is None else bytes(row.value)

    def pending_value(self, at: str, key: bytes, space: str = "sync") -> bytes | None:
        """What a pending read of that node's copy sees."""
        row = pending_row(self._view(at), space, key)
        return None if row is None else row.value

    def fates(self, *positions: int, at: str | None = None) -> list[str]:
        name = self.nodes[0].name if at is None else at
        return [self.limbo(name).verdict(position).fate for position in positions]

    def fates_everywhere(self, *positions: int) -> list[str]:
        """The fates, which all running nodes see alike."""
        seen = {tuple(self.fates(*positions, at=node.name)) for node in self.nodes}
        assert len(seen) == 1, seen
        return list(seen.pop())

    def acks(self) -> int:
        """How many acknowledgements all nodes have proposed."""
        return sum(count for (_, kind), count in self.proposed.items() if kind == Ack.__name__)

    def acked(self, name: str, at: str | None = None) -> int:
        row = self.table("nodes", at).get(name)
        return 0 if row is None else int(row.acked)

    # -- waiting

    async def acked_upto(self, position: int, *names: str) -> None:
        """Wait until these nodes' acknowledgements have arrived."""
        await until(
            lambda: all(self.acked(name) >= position for name in names),
            lambda: f"{names} acknowledged {position}; there is {self.table('nodes')}",
        )

    async def is_down(self, name: str) -> None:
        """Wait until the cluster has declared the node dead."""

        def down() -> bool:
            member = self.nodes[0].machine.members.get(name)
            return member is None or not member.up

        await until(down, f"{name} is declared dead")

    # -- judging

    async def check(self) -> None:
        """Invariants, the same rows and verdicts on all nodes, and callbacks that fit them."""
        await self.converge()
        first = self.nodes[0].machine
        for node in self.nodes:
            assert list(Limbo().invariants(node.machine.view("limbo"))) == [], node.name
            assert node.machine.digest() == first.digest(), node.name
        for seat in self.seats.values():
            for events in seat.lives:
                self._check_callbacks(seat.name, events)

    def _check_callbacks(self, name: str, events: list[Event]) -> None:
        """Once per position, ordered confirmed ones rising, and as the log has it."""
        entries = self.table("entries")
        heard: set[int] = set()
        last = 0
        for event in events:
            if isinstance(event, Restored):
                continue
            position = event.position
            assert position not in heard, f"{name} heard of {position} twice"
            heard.add(position)
            expected = "confirmed" if isinstance(event, Confirmed) else "rolled back"
            assert self.fates(position)[0] in (expected, "forgotten"), (name, event)
            entry = entries.get(position)
            if isinstance(event, Confirmed) and not (entry is not None and entry.independent):
                assert last < position == event.confirmed, (name, event)
                last = position


def play(
    body: Callable[[LimboCluster], Awaitable[None]],
    cores: int = 3,
    replicants: int = 0,
    *,
    zones: Mapping[str, str] | None = None,
    limits: Limits | None = None,
    node_down_ms: int = NODE_DOWN_MS,
    owner: str = "core1",
    prepare: Callable[[LimboCluster], None] | None = None,
    **settings: Any,
) -> None:
    """Run the story on a cluster with these settings, and check the whole in the end.

    `owner` "": nobody owns the queue. `prepare` is called before any node starts.
    """

    async def whole() -> None:
        cluster = LimboCluster(
            cores, replicants, zones=zones, limits=limits, node_down_ms=node_down_ms
        )
        if prepare is not None:
            prepare(cluster)
        async with cluster:
            limbo = cluster.limbo("core1")
            await limbo.create_space("sync", sync=True)
            await limbo.create_space("async", sync=False)
            await cluster.configure(**settings)
            if owner:
                promoted = await cluster.limbo(owner).promote(DEADLINE_S)
                assert promoted.term == 1
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
        await asyncio.sleep(0.005)
