"""One state machine and the sessions of its nodes: the pure half without any cluster around it.

Every command is an entry of its own. After each one the invariants are checked, and what must hold
from one entry to the next: no cursor goes back, no decided id is decided again. (That walks all
records; while there are many, it is done now and then only.)
"""

from __future__ import annotations

import itertools
from typing import Any, Literal, TypeVar

import msgspec

from raftkv.errors import Refused
from raftkv.kv import KV
from raftkv.state import (
    Envelope,
    NodeDown,
    NodeUp,
    OpenSession,
    SetSetting,
    StateMachine,
    encode_batch,
)
from raftkv_cluster_call.commands import (
    STALE_TRIES,
    Abort,
    Advance,
    Commit,
    Committed,
    Cursor,
    Effect,
    Failing,
    Granted,
    Join,
    Joined,
    Queued,
    Record,
    Reserve,
)
from raftkv_cluster_call.plugin import Calls
from raftkv_cluster_call.views import (
    cursor_of,
    last_id,
    next_for,
    participants,
    record_of,
    reserved,
)

T = TypeVar("T")

FUNCTION = "counter.add"
MANY = 200
RARELY = 100


class CallLog:
    """`now` is the log's clock. `nodes` are up cores; they follow at 0, unless `join` is False."""

    def __init__(
        self,
        nodes: tuple[str, ...] = ("n1", "n2", "n3"),
        *,
        join: bool = True,
        plugin: type[Calls] = Calls,
    ) -> None:
        self.plugin = plugin()
        self.machine = new_machine(self.plugin)
        self.now = 1_000
        self.seqs = itertools.count(1)
        self.sessions: dict[str, int] = {}
        #: All entries, to feed them to another machine.
        self.entries: list[bytes] = []
        self.seen: dict[int, Record] = {}
        self.cursors: dict[str, int] = {}
        for name in nodes:
            self.node_up(name)
        if join:
            for name in nodes:
                assert self.send(name, Join()) == Joined("following", 0, 0)

    # --- entries ---

    def run(self, session: int, plugin: str, command: msgspec.Struct, seq: int = 0) -> Any:
        """Apply one command; its result. Raises its refusal."""
        data = msgspec.msgpack.encode(command)
        envelope = Envelope(session, seq or next(self.seqs), 1, plugin, data)
        self.entries.append(encode_batch(self.now, [envelope]))
        [(_, _, outcome)] = self.machine.apply(self.machine.index + 1, self.entries[-1])
        assert not self.machine.faults, self.machine.faults[0].detail
        if len(self.view().table("records")) < MANY or self.machine.index % RARELY == 0:
            self.check()
        if isinstance(outcome, Refused):
            raise outcome
        return outcome

    def check(self) -> None:
        assert list(self.plugin.invariants(self.view())) == []
        view = self.view()
        for id, old in self.seen.items():
            new = record_of(view, id)
            if old.state != "reserved":
                assert new in (None, old), f"{id} was {old} and is {new}"
            elif new is not None:
                assert (new.ticket, new.initiator) == (old.ticket, old.initiator)
        self.seen = dict(view.table("records").scan())
        cursors = {name: cursor.id for name, cursor in view.table("cursors").scan()}
        for name, id in self.cursors.items():
            assert cursors.get(name, id) >= id, f"the cursor of {name} went from {id} back"
        self.cursors = cursors

    # --- members ---

    def node_up(self, name: str, role: Literal["core", "replicant"] = "core") -> None:
        plugins = (("calls", self.plugin.version), ("kv", KV.version))
        command = NodeUp(next(self.seqs), name, role, name, "", None, plugins)
        self.sessions[name] = self.run(0, "core", command, command.nonce).session

    def node_down(self, name: str) -> None:
        other = next(n for n in self.sessions if n != name and self.machine.members[n].up)
        incarnation = self.machine.members[name].incarnation
        self.run(self.sessions[other], "core", NodeDown(name, incarnation))

    def client(self) -> int:
        """The session of a client that is no node."""
        nonce = next(self.seqs)
        session: int = self.run(0, "core", OpenSession(nonce), nonce).session
        return session

    def set(self, key: str, value: Any) -> None:
        up = next(name for name in self.sessions if self.machine.members[name].up)
        self.run(self.sessions[up], "core", SetSetting.of("calls", key, value))

    # --- commands ---

    def send(self, node: str, command: msgspec.Struct) -> Any:
        return self.run(self.sessions[node], "calls", command)

    def ask(self, node: str, *, expected: int | None = None, ttl_ms: int = 60_000) -> Any:
        """Reserve, as a node that has run all that it knows of."""
        expected = self.last if expected is None else expected
        return self.send(node, Reserve(FUNCTION, 1, b"args", expected, ttl_ms, self.now))

    def granted(self, node: str, *, ttl_ms: int = 60_000) -> Granted:
        return must(Granted, self.ask(node, ttl_ms=ttl_ms))

    def queued(self, node: str, *, ttl_ms: int = 60_000) -> Queued:
        return must(Queued, self.ask(node, ttl_ms=ttl_ms))

    def commit(self, node: str, granted: Granted, effect: Effect | None = None) -> Committed:
        return must(Committed, self.send(node, Commit(granted.id, granted.ticket, effect)))

    def abort(self, node: str, granted: Granted, cause: str = "ValueError at f.py:1") -> None:
        self.send(node, Abort(granted.id, granted.ticket, cause))

    def call(self, node: str, effect: Effect | None = None) -> int:
        """One call that its initiator commits; the id."""
        self.catch_up(node)
        granted = self.granted(node)
        self.commit(node, granted, effect)
        return granted.id

    def fail(self, node: str) -> int:
        """One call that fails on its initiator; the id."""
        self.catch_up(node)
        granted = self.granted(node)
        self.abort(node, granted)
        return granted.id

    def catch_up(self, *nodes: str) -> None:
        """Execute everything that is committed, on these nodes, or on all that follow."""
        for node in nodes or participants(self.view()):
            while (id := self.next_of(node)) is not None:
                self.send(node, Advance(id))

    def stick(self, node: str) -> int:
        """The node fails at its next id until it counts as stuck; the id."""
        id = self.next_of(node)
        assert id is not None
        self.send(node, Failing(id, 1, "OSError at g.py:2"))
        self.send(node, Failing(id, STALE_TRIES, "OSError at g.py:2"))
        return id

    # --- state ---

    def view(self) -> Any:
        return self.machine.view("calls")

    def table(self, name: str) -> dict[Any, Any]:
        return dict(self.view().table(name).scan())

    @property
    def last(self) -> int:
        return last_id(self.view())

    def cursor(self, node: str) -> Cursor:
        return must(Cursor, cursor_of(self.view(), node))

    def record(self, id: int) -> Record:
        return must(Record, record_of(self.view(), id))

    def next_of(self, node: str) -> int | None:
        found = next_for(self.view(), node)
        return None if found is None else found[0]

    @property
    def running(self) -> tuple[int, str] | None:
        """The id that runs, and where."""
        found = reserved(self.view())
        return None if found is None else (found[0], found[1].initiator)

    def answer(self, ticket: int) -> str | None:
        return self.table("answers").get(ticket)

    def kv(self, key: bytes) -> bytes | None:
        row = self.machine.view("kv").table("keys").get(key)
        return None if row is None else row.value

    def digest(self) -> str:
        return self.machine.digest()


def new_machine(plugin: Calls | None = None) -> StateMachine:
    return StateMachine([Calls() if plugin is None else plugin, KV()])


def must(kind: type[T], value: Any) -> T:
    assert isinstance(value, kind), value
    return value
