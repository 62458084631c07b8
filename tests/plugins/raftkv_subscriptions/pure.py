"""State machines of regions, without any cluster or link around them: the pure half alone.

Every command is an entry of its own. After each one the plugin's invariants are checked, and here
once more, from the rows of messages alone, that a topic's vectors, blocks, counters and latest
messages are what they say. `Regions` has several, and carries by hand what links would.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
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
from raftkv_subscriptions import views
from raftkv_subscriptions.commands import (
    Ack,
    Acked,
    AckTo,
    Answered,
    Attach,
    Attached,
    Declared,
    DeclareTopic,
    DeleteTopic,
    Deliver,
    Delivered,
    Detach,
    Merge,
    Merged,
    Publish,
    Published,
    PutRegion,
    Release,
    Released,
    ReleaseDelivered,
    RemoveRegion,
    Report,
    Reported,
    Seek,
    SetRegion,
    SetReplicate,
    SnapshotAnswer,
    SnapshotAnswered,
    SnapshotStart,
    Sought,
    Started,
    Subscribe,
    Subscribed,
    Sweep,
    Swept,
    Take,
    Taken,
    Unsubscribe,
    Update,
)
from raftkv_subscriptions.plugin import Subscriptions
from raftkv_subscriptions.retention import free_to, is_due
from raftkv_subscriptions.rows import (
    BLOCK,
    Advance,
    Answer,
    Copy,
    Hole,
    Kind,
    Message,
    Meta,
    RegionState,
    Request,
    Stored,
    Sub,
    Topic,
    Vector,
    size_of,
)

T = TypeVar("T")

#: Sweeps after which there must be nothing left to sweep.
SWEEPS_MAX = 500


def message(body: bytes | str, key: str = "", **headers: str) -> Message:
    body = body.encode() if isinstance(body, str) else body
    return Message(body, key, tuple(headers.items()))


def copy(origin: str, seq: int, body: bytes | str = "", key: str = "", ms: int = 1) -> Copy:
    """A message on its way; its body says which it is, unless it is told."""
    return Copy(origin, seq, message(body or f"{origin}{seq}", key), ms)


def copies(origin: str, first: int, last: int) -> tuple[Copy, ...]:
    return tuple(copy(origin, seq) for seq in range(first, last + 1))


class RegionLog:
    """`now` is the log's clock. `nodes` are up cores; the topics exist, replicated, unlimited.

    `region`: its name; "": none was given. `others`: other regions that it knows.
    """

    def __init__(
        self,
        region: str = "a",
        *,
        others: tuple[str, ...] = (),
        topics: tuple[str, ...] = ("t",),
        nodes: tuple[str, ...] = ("n1", "n2", "n3"),
        plugin: Callable[[], Subscriptions] = Subscriptions,
        checks: bool = True,
    ) -> None:
        self.region = region
        self.checks = checks
        self._made = plugin
        self.plugin = plugin()
        self.machine = StateMachine([self.plugin])
        self.now = 1_000
        self.seqs = itertools.count(1)
        self.sessions: dict[str, int] = {}
        #: All entries, to feed them to another machine.
        self.entries: list[bytes] = []
        for name in nodes:
            self.node_up(name)
        if region:
            self.anywhere(SetRegion(region))
        for other in others:
            self.put_region(other)
        for topic in topics:
            self.declare(topic)

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
        violated = list(self.plugin.invariants(self.view()))
        assert violated == [], violated
        for name in self.table("topics"):
            self._check_topic(name)

    def _check_topic(self, name: str) -> None:
        """From the rows of messages and holes alone."""
        topic, view = self.topic(name), self.view()
        rows = [(k[1], v) for k, v in self.table("messages").items() if k[0] == topic.id]
        whole = [position for position, _ in rows if position >= topic.first]
        assert whole == list(range(topic.first, topic.next)), (name, whole)
        assert sum(size_of(stored.message) for _, stored in rows) == topic.bytes, name
        assert len(rows) - len(whole) == topic.kept, name
        numbers = dict(views.vector_before_first(view, topic))
        for position, stored in rows:
            if position < topic.first:
                assert stored.seq <= numbers[stored.origin], (name, position)
                continue
            block, at = divmod(position - 1, BLOCK)
            if at == 0:
                row = self.table("blocks")[topic.id, block]
                assert dict(row) == numbers, (name, position)
            assert stored.seq > numbers.get(stored.origin, 0), (name, position)
            numbers[stored.origin] = stored.seq
        ends = {k[1]: last for k, last in self.table("holes").items() if k[0] == topic.id}
        for origin, last in ends.items():
            numbers[origin] = max(last, numbers.get(origin, 0))
        assert dict(views.vector_of(view, name)) == numbers, name
        assert numbers.get(views.own_region(view), 0) == topic.seq, name
        self._check_latest(topic, rows)
        if whole:
            # What the leader asks is what a trim finds, at any age and size.
            small = msgspec.structs.replace(topic, retention_bytes=1, bytes=2)
            free = free_to(view, topic) >= topic.first
            assert is_due(view, name, small, self.now) == free, name

    def _check_latest(self, topic: Topic, rows: list[tuple[int, Stored]]) -> None:
        latest = {k[1]: v for k, v in self.table("latest").items() if k[0] == topic.id}
        assert len(latest) == topic.keys
        expected: dict[str, int] = {}
        if topic.compacted:
            for position, stored in rows:
                if stored.message.key:
                    expected.pop(stored.message.key, None)
                    if stored.message.body:
                        expected[stored.message.key] = position
        assert latest == expected

    def replay(self) -> StateMachine:
        """Another machine that has applied the same entries."""
        machine = StateMachine([self._made()])
        for index, entry in enumerate(self.entries, 1):
            machine.apply(index, entry)
        return machine

    # --- members ---

    def node_up(self, name: str, role: Literal["core", "replicant"] = "core") -> None:
        plugins = (("subscriptions", self.plugin.version),)
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
        self.run(self._any_up(), "core", SetSetting.of("subscriptions", key, value))

    def _any_up(self) -> int:
        return next(self.sessions[n] for n in self.sessions if self.machine.members[n].up)

    # --- commands ---

    def send(self, node: str, command: msgspec.Struct) -> Any:
        return self.run(self.sessions[node], "subscriptions", command)

    def anywhere(self, command: msgspec.Struct) -> Any:
        """By whichever node is up."""
        return self.run(self._any_up(), "subscriptions", command)

    def declare(self, topic: str, **limits: Any) -> Declared:
        return must(Declared, self.anywhere(DeclareTopic(topic, **limits)))

    def delete(self, topic: str) -> Any:
        return self.anywhere(DeleteTopic(topic))

    def publish(self, topic: str, *bodies: bytes | str | Message) -> Published:
        messages = tuple(b if isinstance(b, Message) else message(b) for b in bodies)
        return must(Published, self.anywhere(Publish(topic, messages)))

    def deliver(self, topic: str, source: str, *parts: Copy | Hole) -> Delivered:
        return must(Delivered, self.anywhere(Deliver(topic, source, parts)))

    def put_region(self, region: str, state: RegionState = "active", **more: Any) -> Declared:
        return must(Declared, self.anywhere(PutRegion(region, state, **more)))

    def remove_region(self, region: str) -> None:
        self.anywhere(RemoveRegion(region))

    def report(self, region: str, **topics: Vector) -> int:
        command = Report(region, tuple(sorted(topics.items())))
        return must(Reported, self.anywhere(command)).changed

    def subscribe(self, topic: str = "t", sub: str = "s", **more: Any) -> Subscribed:
        return must(Subscribed, self.anywhere(Subscribe(topic, sub, **more)))

    def unsubscribe(self, topic: str = "t", sub: str = "s", *, force: bool = False) -> None:
        self.anywhere(Unsubscribe(topic, sub, force))

    def set_replicate(self, replicate: bool, topic: str = "t", sub: str = "s") -> None:
        self.anywhere(SetReplicate(topic, sub, replicate))

    def ack(self, *positions: int, topic: str = "t", sub: str = "s", consumer: int = 0) -> Acked:
        return must(Acked, self.anywhere(Ack(topic, sub, positions, consumer)))

    def ack_to(self, position: int, topic: str = "t", sub: str = "s", consumer: int = 0) -> Acked:
        return must(Acked, self.anywhere(AckTo(topic, sub, position, consumer)))

    def seek(self, position: int, topic: str = "t", sub: str = "s") -> Sought:
        return must(Sought, self.anywhere(Seek(topic, sub, position)))

    def merge(
        self,
        *ranges: tuple[str, int, int],
        source: str = "b",
        topic: str = "t",
        sub: str = "s",
        kind: Kind = "exclusive",
        base: Vector = (),
    ) -> Merged:
        return must(Merged, self.anywhere(Merge(topic, source, sub, kind, base, ranges)))

    def attach(
        self, node: str = "n1", topic: str = "t", sub: str = "s", priority: int = 0
    ) -> Attached:
        return must(Attached, self.send(node, Attach(topic, sub, node, priority)))

    def detach(self, consumer: int) -> None:
        self.anywhere(Detach(consumer))

    def take(self, consumer: int, count: int = 1, bytes_max: int = 0) -> Taken:
        node = self.table("consumers")[consumer].node
        return must(Taken, self.send(node, Take(consumer, count, bytes_max)))

    def release(self, consumer: int, *positions: int, epoch: int | None = None) -> Released:
        node = self.table("consumers")[consumer].node
        command = Release(consumer, positions)
        if epoch is not None:
            command = ReleaseDelivered(consumer, positions, epoch)
        return must(Released, self.send(node, command))

    def complete_snapshot(self, *regions: str, position: int, topic: str = "t") -> None:
        """One round, or two: every region answers that it has got so far as `position`."""
        id = must(Started, self.anywhere(SnapshotStart(topic))).id
        assert id
        for round in (1, 2) if len(regions) > 1 else (1,):
            for region in regions:
                answer = SnapshotAnswered(topic, region, id, round, position, ())
                assert must(Answered, self.anywhere(answer)).counted

    def sweep(self, *topics: str, rows_max: int = 1_000) -> Swept:
        """One Sweep."""
        return must(Swept, self.anywhere(Sweep(topics, rows_max)))

    def sweep_all(self, *topics: str, rows_max: int = 1_000) -> int:
        """Sweep until nothing is left; the rows that were touched."""
        rows = 0
        for _ in range(SWEEPS_MAX):
            swept = self.sweep(*topics, rows_max=rows_max)
            rows += swept.rows
            if not swept.more:
                return rows
        raise AssertionError("it never ends")

    # --- state ---

    def view(self) -> Any:
        return self.machine.view("subscriptions")

    def table(self, name: str) -> dict[Any, Any]:
        return dict(self.view().table(name).scan())

    def topic(self, topic: str = "t") -> Topic:
        return views.topic_of(self.view(), topic)

    def sub(self, sub: str = "s", topic: str = "t") -> Sub:
        return views.sub_of(self.view(), topic, sub)

    def meta(self) -> Meta:
        return views.meta_of(self.view())

    def vector(self, topic: str = "t") -> dict[str, int]:
        return dict(views.vector_of(self.view(), topic))

    def bodies(self, topic: str = "t") -> list[str]:
        """What is in it, from the first kept position on, in order."""
        placed = views.read(self.view(), topic, 1, 1_000_000)
        return [one.stored.message.body.decode() for one in placed]

    def seqs_of(self, topic: str = "t") -> list[tuple[str, int]]:
        """(origin, seq) of what is in it, in order."""
        placed = views.read(self.view(), topic, 1, 1_000_000)
        return [(one.stored.origin, one.stored.seq) for one in placed]

    def wanted(self, sub: str = "s", topic: str = "t") -> list[tuple[str, int]]:
        """What the subscription still wants of what is here, from its set alone."""
        state = views.state_of(self.view(), topic, sub)
        base = dict(state.base)
        return [
            (origin, seq)
            for origin, seq in self.seqs_of(topic)
            if seq > base.get(origin, 0)
            and not any(o == origin and low <= seq <= high for o, low, high in state.ranges)
        ]

    def digest(self) -> str:
        return self.machine.digest()

    def digest_of_plugin(self) -> dict[str, dict[Any, Any]]:
        """All its rows: to compare before and after."""
        return {spec.name: self.table(spec.name) for spec in self.plugin.tables}


class Regions:
    """Several regions, each of which knows the others. Nothing goes by itself."""

    def __init__(self, *names: str, topics: tuple[str, ...] = ("t",), **more: Any) -> None:
        self.logs = {
            name: RegionLog(
                name, others=tuple(n for n in names if n != name), topics=topics, **more
            )
            for name in names
        }

    def __getitem__(self, name: str) -> RegionLog:
        return self.logs[name]

    def parts(
        self, source: str, target: str, topic: str = "t", only: tuple[str, ...] | None = None
    ) -> tuple[Copy | Hole, ...]:
        """What the target lacks of what the source has, in the order of the source; `only` these
        origins. What the source has no more is a hole."""
        have = self[target].vector(topic)
        parts: list[Copy | Hole] = []
        placed = views.read(self[source].view(), topic, 1, 1_000_000)
        for stored in (one.stored for one in placed):
            origin, seq = stored.origin, stored.seq
            known = have.get(origin, 0)
            if origin == target or seq <= known or (only is not None and origin not in only):
                continue
            if seq > known + 1:
                parts.append(Hole(origin, known + 1, seq - 1))
            parts.append(Copy(origin, seq, stored.message, stored.published_ms))
            have[origin] = seq
        for origin, seq in self[source].vector(topic).items():
            known = have.get(origin, 0)
            if origin != target and seq > known and (only is None or origin in only):
                parts.append(Hole(origin, known + 1, seq))
        return tuple(parts)

    def carry(
        self, source: str, target: str, topic: str = "t", only: tuple[str, ...] | None = None
    ) -> int:
        """Bring the target what it lacks, a thousand at a time; how many parts."""
        done = 0
        while True:
            parts = self.parts(source, target, topic, only)
            if not parts:
                return done
            self[target].deliver(topic, source, *parts[:1000])
            done += len(parts[:1000])

    def carry_all(self, topic: str = "t") -> None:
        """Until every region has what any has: each fetches from each."""
        while sum(
            self.carry(source, target, topic)
            for source, target in itertools.permutations(self.logs, 2)
        ):
            pass

    def say(self, source: str, target: str, topic: str = "t") -> None:
        """Tell the target all that the source has acknowledged (vector mode)."""
        view = self[source].view()
        for name, sub in views.subs_of(view, topic):
            if sub.replicate:
                state = views.state_of(view, topic, name)
                command = Merge(topic, source, name, sub.kind, state.base, state.ranges)
                self[target].anywhere(command)

    def say_all(self, topic: str = "t") -> None:
        for source, target in itertools.permutations(self.logs, 2):
            self.say(source, target, topic)

    def mark(self, source: str, target: str, topic: str = "t") -> None:
        """Bring the target the markers of the source (snapshot mode), behind all messages."""
        self.carry(source, target, topic, (source,))
        view, there = self[source].view(), self[target]
        for _, marker in views.markers_of(view, views.topic_of(view, topic).id):
            what = marker.what
            match what:
                case Request() if what.source == source:
                    there.anywhere(SnapshotAnswer(topic, source, what.id, what.round))
                case Answer() if what.source == target:
                    there.anywhere(
                        SnapshotAnswered(
                            topic, source, what.id, what.round, what.position, what.vector
                        )
                    )
                case Advance():
                    for region, position in what.positions:
                        if region == target:
                            there.anywhere(_update(topic, source, position, what))

    def mark_all(self, topic: str = "t", rounds: int = 1) -> None:
        for _ in range(rounds):
            for source, target in itertools.permutations(self.logs, 2):
                self.mark(source, target, topic)

    def report_all(self, topic: str = "t") -> None:
        """Every region tells every other one what it has."""
        self.report_all_but(topic=topic)

    def report_all_but(self, *silent: str, topic: str = "t") -> None:
        """These neither tell nor are told."""
        talking = [name for name in self.logs if name not in silent]
        for source, target in itertools.permutations(talking, 2):
            vector = views.vector_of(self[source].view(), topic)
            self[target].report(source, **{topic: vector})


def _update(topic: str, source: str, position: int, what: Advance) -> Update:
    return Update(topic, source, what.sub, what.kind, what.id, position, what.base, what.without)


def must(kind: type[T], value: Any) -> T:
    assert isinstance(value, kind), value
    return value
