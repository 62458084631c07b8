"""One state machine and the sessions of its nodes: the pure half without any cluster around it.

Every command is an entry of its own. After each one the plugin's invariants are checked, and here
once more, from the rows alone, that each queue's counters are what is in it.
"""

from __future__ import annotations

import itertools
from typing import Any, Literal, TypeVar

import msgspec

from raftkv.errors import Refused
from raftkv.state import (
    Envelope,
    NodeDown,
    NodeRole,
    NodeUp,
    SetSetting,
    SetVoters,
    StateMachine,
    encode_batch,
)
from raftkv.state import OpenSession as OpenClient
from raftkv_txqueue.commands import (
    AcceptOf,
    Acquire,
    Acquired,
    CloseSession,
    Commit,
    DeclareQueue,
    DeleteQueue,
    Kind,
    Message,
    OpenSession,
    Operation,
    Publish,
    Published,
    PublishTo,
    PutBack,
    Queue,
    SessionClosed,
    SessionRow,
    Settle,
    Settled,
    Settling,
    Stage,
    Sweep,
    Swept,
    ToBack,
    TransactionRow,
    size_of,
)
from raftkv_txqueue.plugin import TxQueue
from raftkv_txqueue.views import Browsed, browse, message_of, where

T = TypeVar("T")

TIME_TABLES = ("delayed", "expiring", "timers", "gaps", "staged_times")

#: Sweeps after which there must be nothing left to sweep.
SWEEPS_MAX = 200


def message(body: bytes | str, **headers: str) -> Message:
    body = body.encode() if isinstance(body, str) else body
    return Message(body, tuple(headers.items()))


def publish_to(queue: str, *bodies: bytes | str) -> PublishTo:
    return PublishTo(queue, tuple(message(body) for body in bodies))


def accept_of(queue: str, *seqs: int) -> AcceptOf:
    return AcceptOf(queue, seqs)


class TxLog:
    """`now` is the log's clock. `nodes` are up cores; the queue "q" exists, without any limit."""

    def __init__(
        self,
        nodes: tuple[str, ...] = ("n1", "n2", "n3"),
        *,
        plugin: type[TxQueue] = TxQueue,
        checks: bool = True,
        queues: tuple[str, ...] = ("q",),
    ) -> None:
        self.checks = checks
        self.plugin = plugin()
        #: What nodes announce that come up.
        self.plugin_format = self.plugin.version
        self.machine = StateMachine([self.plugin])
        self.now = 1_000
        self.seqs = itertools.count(1)
        self.sessions: dict[str, int] = {}
        #: All entries, to feed them to another machine.
        self.entries: list[bytes] = []
        for name in nodes:
            self.node_up(name)
        for queue in queues:
            self.declare(queue)

    # --- entries ---

    def run(self, session: int, plugin: str, command: msgspec.Struct, seq: int = 0) -> Any:
        """Apply one command; its result. Raises its refusal."""
        data = msgspec.msgpack.encode(command)
        envelope = Envelope(session, seq or next(self.seqs), 1, plugin, data)
        self.entries.append(encode_batch(self.now, [envelope]))
        [(_, _, outcome)] = self.machine.apply(self.machine.index + 1, self.entries[-1])
        assert not self.machine.faults, self.machine.faults[0].detail
        if self.checks:
            self.check()
        if isinstance(outcome, Refused):
            raise outcome
        return outcome

    def check(self) -> None:
        view = self.view()
        violated = list(self.plugin.invariants(view))
        assert violated == [], violated
        for name, queue in self.table("queues").items():
            self._check_queue(name, queue)

    def _check_queue(self, name: str, queue: Queue) -> None:
        view = self.view()
        places = where(view, queue.id)
        gaps = view.table("gaps")
        for seq in range(queue.cursor, queue.next):
            if (queue.id, seq) not in gaps:
                assert seq not in places, (name, seq)
                places[seq] = ("available", 0)
        size = 0
        for seq in places:
            stored = message_of(view, queue.id, seq)
            assert stored is not None, (name, seq)
            size += size_of(stored.message)
        available = sum(place == "available" for place, _ in places.values())
        assert (queue.depth, queue.bytes, queue.ready) == (len(places), size, available), name

    def replay(self) -> StateMachine:
        """Another machine that has applied the same entries."""
        machine = StateMachine([type(self.plugin)()])
        for index, entry in enumerate(self.entries, 1):
            machine.apply(index, entry)
        return machine

    # --- members ---

    def node_up(self, name: str, role: Literal["core", "replicant"] = "core") -> None:
        plugins = (("txqueue", self.plugin_format),)
        command = NodeUp(next(self.seqs), name, role, name, "", None, plugins)
        self.sessions[name] = self.run(0, "core", command, command.nonce).session
        known = self.machine.voters[1]
        if role == "core" and name not in known:
            self.set_voters(*known, name)

    def set_voters(self, *names: str) -> None:
        """What the leader announces; a node's raft id is its name here."""
        self.run(self._any_up(), "core", SetVoters(names, self.machine.voters[0]))

    def node_down(self, name: str) -> None:
        other = next(n for n in self.sessions if n != name and self.machine.members[n].up)
        incarnation = self.machine.members[name].incarnation
        self.run(self.sessions[other], "core", NodeDown(name, incarnation))

    def node_role(self, name: str, role: Literal["core", "replicant"]) -> None:
        incarnation = self.machine.members[name].incarnation
        self.run(self.sessions[name], "core", NodeRole(name, incarnation, role))

    def client(self) -> int:
        """The exactly-once session of a client that is no node."""
        nonce = next(self.seqs)
        session: int = self.run(0, "core", OpenClient(nonce), nonce).session
        return session

    def set(self, key: str, value: Any) -> None:
        self.run(self._any_up(), "core", SetSetting.of("txqueue", key, value))

    def _any_up(self) -> int:
        return next(self.sessions[n] for n in self.sessions if self.machine.members[n].up)

    # --- commands ---

    def send(self, node: str, command: msgspec.Struct) -> Any:
        return self.run(self.sessions[node], "txqueue", command)

    def anywhere(self, command: msgspec.Struct) -> Any:
        """By a client: whatever needs no session of a node."""
        return self.run(self._any_up(), "txqueue", command)

    def declare(self, queue: str, **limits: Any) -> Any:
        return self.anywhere(DeclareQueue(queue, **limits))

    def delete(self, queue: str, **conditions: bool) -> Any:
        return self.anywhere(DeleteQueue(queue, **conditions))

    def publish(self, queue: str, *bodies: bytes | str | Message) -> Published:
        messages = tuple(b if isinstance(b, Message) else message(b) for b in bodies)
        return must(Published, self.anywhere(Publish(queue, messages)))

    def open(self, node: str = "n1", kind: Kind = "plain") -> int:
        session: int = self.send(node, OpenSession(kind)).session
        return session

    def of(self, session: int, command: msgspec.Struct) -> Any:
        """A command of a session, sent by its node."""
        return self.send(self.session(session).node, command)

    def close(self, session: int) -> SessionClosed:
        return must(SessionClosed, self.of(session, CloseSession(session)))

    def get(self, session: int, queue: str = "q", count: int = 1, bytes_max: int = 0) -> Acquired:
        return must(Acquired, self.of(session, Acquire(session, queue, count, bytes_max)))

    def settle(self, session: int, settling: Settling, queue: str, *seqs: int) -> Settled:
        return must(Settled, self.of(session, Settle(session, queue, settling, seqs)))

    def accept(self, session: int, queue: str, *seqs: int) -> Settled:
        return self.settle(session, "accept", queue, *seqs)

    def release(self, session: int, queue: str, *seqs: int) -> Settled:
        return self.settle(session, "release", queue, *seqs)

    def to_back(self, session: int, queue: str, *seqs: int) -> Settled:
        return must(Settled, self.of(session, ToBack(session, queue, seqs)))

    def put_back(self, session: int, queue: str, *seqs: int) -> Settled:
        return must(Settled, self.of(session, PutBack(session, queue, seqs)))

    def reject(self, session: int, queue: str, *seqs: int) -> Settled:
        return self.settle(session, "reject", queue, *seqs)

    def stage(self, session: int, *operations: Operation, counter: int | None = None) -> Any:
        """Of the TX that runs, or of the branch (counter 0)."""
        if counter is None:
            counter = self.session(session).decided + 1
        return self.of(session, Stage(session, counter, operations))

    def commit(self, session: int, *operations: Operation, counter: int | None = None) -> Any:
        if counter is None:
            counter = self.session(session).decided + 1
        return self.of(session, Commit(session, counter, operations))

    def sweep(self, rows_max: int = 1_000) -> Swept:
        """One Sweep."""
        return must(Swept, self.anywhere(Sweep(rows_max)))

    def sweep_all(self, rows_max: int = 1_000) -> int:
        """Sweep until nothing is left; the rows that were touched."""
        rows = 0
        for _ in range(SWEEPS_MAX):
            swept = self.sweep(rows_max)
            rows += swept.rows
            if not swept.more:
                return rows
        raise AssertionError("it never ends")

    # --- state ---

    def view(self) -> Any:
        return self.machine.view("txqueue")

    def table(self, name: str) -> dict[Any, Any]:
        return dict(self.view().table(name).scan())

    def queue(self, name: str = "q") -> Queue:
        queue: Queue = self.view().table("queues")[name]
        return queue

    def session(self, session: int) -> SessionRow:
        row: SessionRow = self.view().table("sessions")[session]
        return row

    def transaction(self, number: int) -> TransactionRow | None:
        row: TransactionRow | None = self.view().table("transactions").get(number)
        return row

    def browse(self, queue: str = "q", **more: Any) -> tuple[Browsed, ...]:
        return browse(self.view(), queue, **more)

    def bodies(self, queue: str = "q", **more: Any) -> list[str]:
        """What is available in it, in order."""
        return [found.message.body.decode() for found in self.browse(queue, **more)]

    def places(self, queue: str = "q") -> dict[str, str]:
        """Everything in it: body -> where it is."""
        rows = self.browse(queue, everything=True)
        return {row.message.body.decode(): row.state for row in rows}

    def places_of(self, first: int, last: int, queue: str = "q") -> dict[str, str]:
        """`places` of the seqs `first` to `last`."""
        rows = self.browse(queue, everything=True, first=first, limit=last - first + 1)
        return {row.message.body.decode(): row.state for row in rows if row.seq <= last}

    def residue(self, *but: str) -> dict[str, int]:
        """Rows of messages and their times that are left: how many, by table."""
        tables = ("messages", "returned", "locks", "accepts", "staged", *TIME_TABLES)
        counts = {name: len(self.table(name)) for name in tables if name not in but}
        return {name: count for name, count in counts.items() if count}

    def digest(self) -> str:
        return self.machine.digest()

    def digest_of_plugin(self) -> dict[str, dict[Any, Any]]:
        """All its rows: to compare before and after."""
        return {spec.name: self.table(spec.name) for spec in self.plugin.tables}


def must(kind: type[T], value: Any) -> T:
    assert isinstance(value, kind), value
    return value
