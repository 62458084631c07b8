"""One engine alone on a bench: its links, its disk and its application are in the test's hands.

The log starts with the configuration as entry 2 of term 1, then the entries that the test gives;
all of it was recovered from a simulated disk, as after a restart.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from raftkv.config import Limits, RaftTimes
from raftkv.errors import NodeFault
from raftkv.raft import wire
from raftkv.raft.engine import Engine
from raftkv.raft.membership import Configuration, encode
from raftkv.raft.recovery import Recovered, recover
from raftkv.raft.snapshotting import Snapshotting
from raftkv.raft.wal import Wal
from raftkv.testing.disk import SimDisk
from tests.fakes import FakeRuntime

A, B, C, D, E = "a-1", "b-1", "c-1", "d-1", "e-1"
TIMES = RaftTimes()
MIN_S = TIMES.election_timeout_min_ms / 1000
MAX_S = TIMES.election_timeout_max_ms / 1000
BEAT_S = TIMES.heartbeat_ms / 1000
DIRECTORY = "data"


def batch(text: str) -> bytes:
    """The payload of a batch entry."""
    return b"\x00" + text.encode()


def configuration_entry(configuration: Configuration) -> bytes:
    return b"\x02" + encode(configuration)


class FakeLink:
    """A raft link that keeps what is sent."""

    unsent_bytes = 0

    def __init__(self, peer_id: str) -> None:
        self.peer_id = peer_id
        self.messages: list[wire.Message] = []
        self.delivered: Any = None
        self.closed = False

    def send_frame(self, frame: bytes) -> None:
        assert int.from_bytes(frame[:4], "little") == len(frame) - 4
        self.messages.append(wire.decode(frame[4:]))

    def send(self, message: wire.Message) -> None:
        self.send_frame(wire.encode(message))

    def close(self) -> None:
        self.closed = True


class FakeFrozen:
    def __init__(self, chunks: Sequence[bytes]) -> None:
        self._chunks = chunks
        self.closed = False

    def slices(self, rows_max: int, bytes_max: int = 0) -> Iterator[bytes]:
        yield from self._chunks

    def close(self) -> None:
        self.closed = True


class RecordingLoading:
    """A state being read beside that of the application."""

    def __init__(self, application: RecordingApplication) -> None:
        self.application = application
        self.chunks: list[bytes] = []

    def add(self, chunk: bytes) -> None:
        self.chunks.append(chunk)

    def adopt(self, index: int) -> None:
        self.application.restore(self.chunks, index)

    def discard(self) -> None:
        self.application.discarded += 1


class RecordingApplication:
    """Its state is the list of bodies that it has applied."""

    def __init__(self) -> None:
        self.state: list[bytes] = []
        self.core_format = 2
        self.index = 1
        self.applied: list[int] = []
        self.terms: dict[int, int] = {}
        self.restored: list[int] = []
        self.offices = 0
        self.discarded = 0
        self.confirmed: list[tuple[Any, int]] = []
        self.failed: list[Any] = []
        self.faults: list[NodeFault] = []
        self.core_format = 2

    def seal(self, commands: Sequence[bytes]) -> bytes:
        return b"|".join(commands)

    def frees_room(self, command: bytes) -> bool:
        return command.startswith(b"delete")

    costly_marks = ((b"costly",), 96)

    def estimate(self, command: bytes) -> int:
        """A costly command names its rows: costly-5000."""
        _, found, rows = command.partition(b"costly-")
        return int(rows) if found else 1

    def apply(self, index: int, body: bytes, term: int) -> None:
        self.skip(index)
        self.terms[index] = term
        self.state.append(body)

    def skip(self, index: int) -> None:
        assert index == self.index + 1, (index, self.index)
        self.index = index
        self.applied.append(index)

    def freeze(self) -> FakeFrozen:
        return FakeFrozen([b"state", *self.state])

    def loading(self) -> RecordingLoading:
        return RecordingLoading(self)

    def restore(self, chunks: Iterable[bytes], index: int) -> None:
        self.state = list(chunks)[1:]
        self.index = index
        self.restored.append(index)

    def office_changed(self) -> None:
        self.offices += 1

    def progressed(self) -> None:
        """Tests look at the engine."""

    def reads_confirmed(self, tokens: Sequence[Any], index: int) -> None:
        self.confirmed += [(token, index) for token in tokens]

    def reads_failed(self, tokens: Sequence[Any]) -> None:
        self.failed += tokens

    def faulted(self, fault: NodeFault) -> None:
        self.faults.append(fault)


def write_log(
    disk: SimDisk, configuration: Configuration, log: Sequence[tuple[int, bytes]], term: int
) -> None:
    """A synced log on disk: the configuration as entry 2 of term 1, then `log`."""
    disk.makedirs(f"{DIRECTORY}/wal")
    wal = Wal.open(disk, f"{DIRECTORY}/wal")
    wal.append(configuration_entry(configuration), 2, 1)
    for index, (entry_term, payload) in enumerate(log, 3):
        wal.append(payload, index, entry_term)
    wal.set_hard_state(max(term, wal.last_term), None)
    sync(wal)
    wal.close()


def sync(wal: Wal) -> None:
    pending = wal.take()
    if pending is not None:
        wal.write(pending)
        wal.written(pending)


class Bench:
    """An engine called `me` among `voters`. `connected` peers have links; None connects all."""

    def __init__(
        self,
        me: str = A,
        voters: Sequence[str] = (A, B, C),
        log: Sequence[tuple[int, bytes]] = (),
        *,
        learners: Sequence[str] = (),
        term: int = 1,
        limits: Limits | None = None,
        times: RaftTimes = TIMES,
        connected: Sequence[str] | None = None,
        disk: SimDisk | None = None,
        start: bool = True,
    ) -> None:
        self.limits = limits or Limits()
        self.voters = tuple(voters)
        if disk is None:
            disk = SimDisk(random.Random(1))
            write_log(disk, Configuration(self.voters, tuple(learners)), log, term)
        self.disk = disk
        self.runtime = FakeRuntime(disk)
        self.application = RecordingApplication()
        self.recovered = recover(disk, DIRECTORY, self.limits, fsync=True, belongs=False)
        self.engine = make_engine(
            me, self.recovered, self.application, self.runtime, self.limits, times
        )
        self.links: dict[str, FakeLink] = {}
        peers = [*voters, *learners] if connected is None else connected
        for peer in peers:
            if peer != me:
                self.connect(peer)
        if start:
            self.engine.start()
        self.runtime.run()

    @property
    def wal(self) -> Wal:
        return self.engine.wal

    def log(self) -> list[tuple[int, int, bytes]]:
        """(index, term, payload) of every entry behind the base."""
        return [(e.index, e.term, e.payload) for e in self.wal.entries(self.wal.first_index)]

    def connect(self, peer: str) -> FakeLink:
        link = self.links[peer] = FakeLink(peer)
        self.engine.link_up(link)  # type: ignore[arg-type]
        self.runtime.run()
        return link

    def disconnect(self, peer: str) -> None:
        self.engine.link_down(self.links.pop(peer))  # type: ignore[arg-type]
        self.runtime.run()

    def receive(self, peer: str, *messages: wire.Message) -> None:
        """Messages arrive in one read. A tick runs unless the disk is busy."""
        link = self.links.get(peer) or FakeLink(peer)
        for message in messages:
            self.engine.receive(link, message)  # type: ignore[arg-type]
        self.engine.kick()
        self.runtime.run()

    def deliver(self, peer: str, *messages: wire.Message) -> list[wire.Message]:
        """The same, then the disk catches up; what `peer` is sent because of it."""
        self.take(peer)
        self.receive(peer, *messages)
        self.runtime.settle()
        return self.take(peer)

    def take(self, peer: str, kind: type | None = None) -> list[Any]:
        """What was sent to `peer` since the last call; only messages of `kind` if it is given."""
        link = self.links[peer]
        messages, link.messages = link.messages, []
        return [m for m in messages if kind is None or isinstance(m, kind)]

    def tick(self, seconds: float = 0.0) -> None:
        self.engine.kick()
        self.runtime.advance(seconds)

    def ask_votes(self) -> int:
        """Let time pass until this node has asked for real votes (the pre-votes are granted)."""
        self.runtime.settle()
        self.runtime.advance(MAX_S + 0.001)
        self.runtime.settle()
        engine = self.engine
        for voter in self.voters:
            if voter != engine.me and voter in self.links and engine.role != 1:
                for request in self.take(voter, wire.Vote)[-1:]:
                    assert request.pre_vote
                    self.receive(voter, grant(request, engine.term))
        return engine.term

    def elect(self) -> int:
        """Win an election; the term. Its no-op is durable here, but not committed."""
        self.ask_votes()
        self.runtime.settle()
        for voter in self.voters:
            if voter != self.engine.me and voter in self.links and self.engine.leading is None:
                request = self.take(voter, wire.Vote)[-1]
                assert not request.pre_vote
                self.receive(voter, grant(request, self.engine.term))
        self.runtime.settle()
        assert self.engine.leading is not None
        return self.engine.term

    def lead(self) -> int:
        """Win an election and have its no-op committed by everybody."""
        term = self.elect()
        for voter in self.voters:
            if voter != self.engine.me and voter in self.links:
                self.receive(voter, accepted(term, self.wal.last_index))
        self.runtime.settle()
        assert self.engine.commit == self.wal.last_index
        for link in self.links.values():
            link.messages.clear()
        return term


def make_engine(
    me: str,
    recovered: Recovered,
    application: RecordingApplication,
    runtime: FakeRuntime,
    limits: Limits,
    times: RaftTimes = TIMES,
) -> Engine:
    snapshot = recovered.snapshot
    if snapshot is not None:
        application.restore(snapshot.chunks(), snapshot.meta.index)
    return Engine(
        me=me,
        wal=recovered.wal,
        configurations=recovered.configurations,
        snapshots=Snapshotting(recovered.store, "cluster"),
        application=application,
        runtime=runtime,  # type: ignore[arg-type]
        times=times,
        limits=limits,
        applied=recovered.applied,
    )


def grant(request: wire.Vote, term: int) -> wire.VoteReply:
    """The answer of a voter whose own term is `term`."""
    return wire.VoteReply(term, request.term, request.attempt, request.pre_vote, True)


def accepted(term: int, index: int, round_number: int = 0, lease_ms: int = 0) -> wire.AppendReply:
    return wire.AppendReply(term, True, index, round_number, 0, 0, lease_ms)


def rejected(
    term: int, prev: int, hint_term: int = 0, hint_index: int = 0, round_number: int = 0
) -> wire.AppendReply:
    return wire.AppendReply(term, False, prev, round_number, hint_term, hint_index)


def append(
    term: int,
    prev_index: int,
    prev_term: int,
    entries: Sequence[tuple[int, bytes]] = (),
    commit: int = 0,
    round_number: int = 0,
    lease_ms: int = 0,
) -> wire.Append:
    return wire.Append(term, prev_index, prev_term, commit, round_number, list(entries), lease_ms)


def chunk(
    term: int, data: bytes, whole: bytes, offset: int, *, index: int, snapshot_term: int, name: str
) -> wire.SnapshotChunk:
    """A piece of the snapshot file `whole`."""
    return wire.SnapshotChunk(
        term, name, index, snapshot_term, len(whole), offset, zlib.crc32(data), data
    )
