"""The copies of the old registry: a bag in memory on every node, spread without waiting.

- A **core** applies a write to its own bag, answers, and afterwards sends it to the other cores.
- A **replicant** sends a write to its core by a call and is content when that core has it.
- A core sends everything that it applies, its own writes and those of other cores, to the
  replicants that follow it. Each receiver applies what it gets from one sender in order, and
  what it gets from two senders as it comes.
- A node that starts, and a replicant that finds a new core, first takes a full copy and then what
  came in meanwhile.
- When a node is declared dead, every node removes its rows from its own bag.

Nothing here waits for a majority, and no read asks anybody: fast, available, and behind. `lag_s`
makes a node apply later what others send it; order and contents stay as they are. It stands for a
busy or distant node, and is what the benchmark injects.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable

import msgspec
from sortedcontainers import SortedDict

from raftkv.errors import NoLeader, Overloaded, PeerUnreachable, RaftkvError, RemoteFailed
from raftkv.plugin import Host, Member

from .commands import Channel
from .legacy_wire import (
    COPY,
    FOLLOW,
    SPREAD,
    WRITE,
    Answer,
    CopyPage,
    CopyRequest,
    FollowRequest,
    Operation,
    Spread,
    pack,
    unpack,
)

__all__ = ["Bag", "Copies", "RowKey", "row_key"]

# Of one client's rows: channel, node, incarnation.
RowKey = tuple[str, str, int]

# One message of operations, and one page of a copy: far below a frame, some milliseconds of work.
SPREAD_OPERATIONS_MAX = 500
COPY_CLIENTS_MAX = 500
# What may wait for one slow receiver. A core's writers are refused beyond it, a replicant is cut
# off and copies anew.
STREAM_OPERATIONS_MAX = 200_000
CALL_TIMEOUT_S = 2.0
# How often a replicant makes sure that its core still counts it as a follower.
FOLLOW_S = 1.0
RETRY_S = 0.1
# Clients looked at between two breaths while a dead node's rows are removed.
PURGE_SLICE = 2_000


def row_key(row: Channel) -> RowKey:
    """What names a channel among those of its client, however its row was versioned."""
    return (row.channel, row.node, row.incarnation)


class Bag:
    """client id -> the rows of its channels, in the order in which this node got them."""

    def __init__(self) -> None:
        self._clients: SortedDict[str, dict[RowKey, Channel]] = SortedDict()

    def __len__(self) -> int:
        return len(self._clients)

    def apply(self, operation: Operation) -> None:
        row = operation.channel
        key = row_key(row)
        if operation.add:
            self._clients.setdefault(row.client_id, {})[key] = row
            return
        rows = self._clients.get(row.client_id)
        if rows is not None and rows.pop(key, None) is not None and not rows:
            del self._clients[row.client_id]

    def of(self, client_id: str) -> list[Channel]:
        return list(self._clients.get(client_id, {}).values())

    def holds(self, row: Channel) -> bool:
        """Whether a row of this channel is here, however it was versioned."""
        rows = self._clients.get(row.client_id)
        return rows is not None and row_key(row) in rows

    def page(self, after: str, clients_max: int) -> CopyPage:
        """The next clients in order of their ids; "" starts, as no client id is empty."""
        found: list[Channel] = []
        last = None
        for count, client_id in enumerate(
            self._clients.irange(minimum=after, inclusive=(False, True)), 1
        ):
            found += self._clients[client_id].values()
            if count >= clients_max:
                last = client_id
                break
        return CopyPage(tuple(found), last)

    def replace(self, other: Bag) -> None:
        self._clients = other._clients


class Stream:
    """Operations on their way to one receiver, in order, sent again until they are received."""

    def __init__(self, host: Host, peer: Member, number: int) -> None:
        self._host = host
        self.peer = peer
        self.number = number
        self.closed = False
        self._first = 1
        self._waiting: deque[Operation] = deque()
        self._sending = False

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= STREAM_OPERATIONS_MAX

    def put(self, operation: Operation) -> None:
        self._waiting.append(operation)
        if not self._sending:
            self._sending = True
            self._host.spawn(self._send(), f"lcr-legacy-to-{self.peer.name}")

    async def _send(self) -> None:
        try:
            while self._waiting and not self.closed:
                count = min(len(self._waiting), SPREAD_OPERATIONS_MAX)
                batch = tuple(self._waiting[i] for i in range(count))
                if not await self._deliver(Spread(self.number, self._first, batch)):
                    return
                self._first += count
                for _ in batch:
                    self._waiting.popleft()
        finally:
            self._sending = False

    async def _deliver(self, message: Spread) -> bool:
        payload = pack(message)
        while not self.closed:
            try:
                await self._host.rpc.call(self.peer.name, SPREAD, payload, CALL_TIMEOUT_S)
                return True
            except RaftkvError:
                member = self._host.members.get(self.peer.name)
                if member is None or member.incarnation != self.peer.incarnation:
                    self.closed = True  # that life of the receiver is over; a new one copies
                    return False
                await self._host.runtime.sleep(RETRY_S)
        return False


class Arrival(msgspec.Struct, frozen=True):
    """Operations that were received, and when this node gets to see them."""

    due_s: float
    operations: tuple[Operation, ...]


class Copies:
    """This node's bag, and its part in spreading writes."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.bag = Bag()
        self.lag_s = 0.0
        # Told of every row that is added to this node's bag by a write, its own or another's.
        self.on_add: Callable[[Channel], None] | None = None
        self._streams: dict[str, Stream] = {}
        self._received: dict[str, tuple[int, int]] = {}
        self._arrivals: deque[Arrival] = deque()
        self._applying = False
        self._copying = False
        # The core that a replicant follows, and the stream it is on.
        self._core: str | None = None
        self._stream = 0

    # --- writing ---

    async def write(self, operation: Operation) -> None:
        """Return when one core has it.

        Raises `NoLeader` when none can be reached, `Overloaded` when one refuses, and `Timeout`
        when one that was reached does not answer: it may have it.
        """
        if self._host.role == "core":
            self._accept(operation)
            return
        for core in self._cores_by_preference():
            try:
                await self._host.rpc.call(core, WRITE, pack(operation), CALL_TIMEOUT_S)
                return
            except PeerUnreachable:
                continue
            except RemoteFailed as error:
                raise Overloaded(f"core {core} did not take the write: {error}") from error
        raise NoLeader("no core took the write: wait until a core can be reached, then retry")

    async def on_write(self, sender: str, payload: bytes) -> bytes:
        self._accept(unpack(payload, Operation))
        return pack(Answer(True))

    def _accept(self, operation: Operation) -> None:
        """A core's dirty write: into the own bag now, to everybody else when it gets there."""
        cores = [
            self._stream_to(member)
            for member in self._host.members.values()
            if member.role == "core" and member.up and member.name != self._host.name
        ]
        for stream in cores:
            if stream.is_full:
                raise Overloaded(f"core {stream.peer.name} is too far behind; retry later")
        self._apply(operation)
        for stream in cores:
            stream.put(operation)
        self._forward(operation)

    def _apply(self, operation: Operation) -> None:
        self.bag.apply(operation)
        if operation.add and self.on_add is not None:
            self.on_add(operation.channel)

    def _forward(self, operation: Operation) -> None:
        members = self._host.members
        for stream in list(self._streams.values()):
            peer = members.get(stream.peer.name)
            if peer is None or peer.role != "replicant" or stream.closed:
                continue  # a replicant that was promoted hears from each core itself
            if stream.is_full:
                stream.closed = True  # it notices within FOLLOW_S and copies anew
            else:
                stream.put(operation)

    def _stream_to(self, peer: Member) -> Stream:
        stream = self._streams.get(peer.name)
        if stream is None or stream.closed or stream.peer.incarnation != peer.incarnation:
            if stream is not None:
                stream.closed = True  # meant for a former life of the receiver, which has ended
            stream = Stream(self._host, peer, self._host.runtime.rng.getrandbits(62) + 1)
            self._streams[peer.name] = stream
        return stream

    # --- receiving ---

    async def on_spread(self, sender: str, payload: bytes) -> bytes:
        message = unpack(payload, Spread)
        stream, received = self._received.get(sender, (0, 0))
        if stream != message.stream:
            received = 0
        fresh = message.operations[max(0, received + 1 - message.first) :]
        received = max(received, message.first + len(message.operations) - 1)
        self._received[sender] = (message.stream, received)
        if fresh:
            due_s = self._host.runtime.monotonic() + self.lag_s
            self._arrivals.append(Arrival(due_s, fresh))
            self._apply_soon()
        return pack(Answer(True))

    def _apply_soon(self) -> None:
        if self._applying or self._copying or not self._arrivals:
            return
        if self._arrivals[0].due_s <= self._host.runtime.monotonic():
            self._apply_due()
        if self._arrivals:
            self._applying = True
            self._host.spawn(self._apply_later(), "lcr-legacy-apply")

    async def _apply_later(self) -> None:
        try:
            while self._arrivals and not self._copying:
                wait_s = self._arrivals[0].due_s - self._host.runtime.monotonic()
                if wait_s > 0:
                    await self._host.runtime.sleep(wait_s)
                else:
                    self._apply_due()
        finally:
            self._applying = False

    def _apply_due(self) -> None:
        now = self._host.runtime.monotonic()
        while self._arrivals and self._arrivals[0].due_s <= now and not self._copying:
            for operation in self._arrivals.popleft().operations:
                self._apply(operation)
                if self._host.role == "core":
                    self._forward(operation)

    # --- starting, following ---

    async def start(self) -> None:
        """Take a full copy from whoever has one."""
        if self._host.role == "core":
            for core in self._cores_by_preference():
                if core != self._host.name and await self._copy_from(core):
                    return
            return
        await self._follow_once()
        self._host.spawn(self._follow(), "lcr-legacy-follow")

    async def _follow(self) -> None:
        """Until this replicant is promoted: then it writes itself, and all cores spread to it."""
        while True:
            await self._host.runtime.sleep(FOLLOW_S)
            if self._host.role != "replicant":
                return
            await self._follow_once()

    async def _follow_once(self) -> None:
        for core in self._cores_by_preference():
            stream = self._stream if core == self._core else 0
            try:
                payload = pack(FollowRequest(stream))
                reply = await self._host.rpc.call(core, FOLLOW, payload, CALL_TIMEOUT_S)
            except RaftkvError:
                continue
            answer = unpack(reply, Answer)
            if answer.yes or await self._copy_from(core):
                self._core, self._stream = core, answer.stream
                return

    async def on_follow(self, sender: str, payload: bytes) -> bytes:
        """Yes: on that stream already. No: a new stream has begun, take a copy."""
        request = unpack(payload, FollowRequest)
        stream = self._streams.get(sender)
        if stream is not None and not stream.closed and stream.number == request.stream:
            return pack(Answer(True, stream.number))
        if stream is not None:
            stream.closed = True
        member = self._host.members.get(sender)
        if member is None or member.role != "replicant":
            return pack(Answer(False))
        return pack(Answer(False, self._stream_to(member).number))

    async def _copy_from(self, core: str) -> bool:
        """A full copy; what is spread meanwhile waits and is applied on top of it."""
        self._copying = True
        fresh, role = Bag(), self._host.role
        after: str | None = ""
        try:
            while after is not None:
                request = pack(CopyRequest(after, COPY_CLIENTS_MAX))
                reply = await self._host.rpc.call(core, COPY, request, CALL_TIMEOUT_S)
                page = unpack(reply, CopyPage)
                for channel in page.channels:
                    fresh.apply(Operation(True, channel))
                after = page.last
            if self._host.role != role:
                return False  # promoted meanwhile: it has written itself, and that is not in there
            self.bag.replace(fresh)
            return True
        except RaftkvError as error:
            self._host.log.debug("legacy: no copy from %s: %s", core, error)
            return False
        finally:
            self._copying = False
            self._apply_soon()

    async def on_copy(self, sender: str, payload: bytes) -> bytes:
        request = unpack(payload, CopyRequest)
        return pack(self.bag.page(request.after, min(request.clients_max, COPY_CLIENTS_MAX)))

    async def purge(self, node: str, incarnation: int) -> None:
        """Remove the rows of a dead node from this node's own bag, in slices."""
        after: str | None = ""
        while after is not None:
            page = self.bag.page(after, PURGE_SLICE)
            for row in page.channels:
                if row.node == node and row.incarnation <= incarnation:
                    self.bag.apply(Operation(False, row))
            after = page.last
            await self._host.runtime.sleep(0)

    def _cores_by_preference(self) -> list[str]:
        """The cores that are up, this node's own first: names spread nodes over them."""
        up = [m.name for m in self._host.members.values() if m.role == "core" and m.up]
        if not up:
            return []
        first = zlib.crc32(self._host.name.encode()) % len(up)
        return up[first:] + up[:first]
