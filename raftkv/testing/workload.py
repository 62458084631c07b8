"""Clients of a simulated cluster: what they do, what they were answered, and what that proves.

Every client works at its own node with a mix of
- *single writes*: a key of its own, written once. One that took effect twice has version 2; one
  that was acknowledged must be there in the end; one that was "not applied" must not.
- *shared writes* and *compare-and-sets* of a few keys that all clients share;
- *linearizable reads* of these keys, together with the keyspace's revision;
- *local reads* of them. They may be stale, but one life of a node never goes back behind what it
  has shown or acknowledged, and shows only what was written.

Linearizability by revision. Every write has a revision of its own, and a read shows the keyspace at
some revision. That is a complete order of all operations, so the history is linearizable in it if
and only if it agrees with real time: a read shows at least the revision of everything that ended
before it began, a write gets a greater one. `done_revision` is that bound; it is taken when an
operation begins and compared when it ends. What a read shows of its key must fit that order too:
one value per (key, revision), and no older one than the last acknowledged write at or below the
read's revision. The history of the shared keys is recorded as well, for the checker that knows
nothing of revisions (linearizability.py).
"""

from __future__ import annotations

import asyncio
import bisect
import random
from collections.abc import Callable, Coroutine, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from raftkv.errors import NodeFault, NoSpace, NotApplied, OutcomeUnknown, Refused
from raftkv.kv.commands import Compare, DeleteRangeOp, LimitExceeded, PutOp, RangeOp
from raftkv.plugin import Consistency
from raftkv.testing.histories import Operation, Outcome
from raftkv.testing.host import HostCrashed
from raftkv.testing.marks import Marks

if TYPE_CHECKING:
    from raftkv.node import Node
    from raftkv.testing.world import World

__all__ = ["QUIET_S", "Heavy", "Workload"]

SHARED_KEYS = 6
SHARED = b"shared/"
# Every compare-and-set that succeeds also writes or deletes this one: revisions with two events.
LAST = SHARED + b"last"
TIMEOUT_S = 3.0
# A client's last operation has ended this long after the load stopped: one call and one question.
QUIET_S = 2 * TIMEOUT_S + 0.5
# Shares of what clients do; the rest are single writes.
READ_SHARE, SHARED_SHARE, COMPARE_SHARE, LOCAL_SHARE = 0.2, 0.15, 0.1, 0.05
# Of the reads, where leases are on.
LEASE_SHARE = 0.5
# Chance that a client asks for the outcome of a write that ended unknown.
ASK_PROBABILITY = 0.5
# What a heavy load has beside (see Heavy): keys of this prefix, written once before the clients
# start.
BULK = b"bulk/"
# A value that is larger than this share of the largest one is worth a mark.
LARGE_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Heavy:
    """`keys` are there before the clients start, written `fill_keys` at a time.

    Of the single writes `large_share` carry `value_bytes_min` to `value_bytes_max`, every power of
    two as likely as the next; `largest_share` of these have up to `largest_bytes` instead.
    `compare_share` of all operations compare a range of `compared_keys` before they write. With
    `snapshots`, every core writes one of the first keys (filling.py).
    """

    keys: int = 100_000
    value_bytes_max: int = 64 * 1024
    large_share: float = 1.0
    compare_share: float = 0.0005
    compared_keys: int = 10_000
    fill_keys: int = 100
    value_bytes_min: int = 1
    largest_share: float = 0.0
    largest_bytes: int = 0
    snapshots: bool = False


class Workload:
    """The clients of all nodes, together at `rate_per_s` operations a second."""

    def __init__(
        self,
        world: World,
        names: Sequence[str],
        node: Callable[[str], Node | None],
        violated: Callable[[str, str], NoReturn],
        marks: Marks,
        rate_per_s: float,
        heavy: Heavy | None = None,
    ) -> None:
        self._world = world
        self._names = names
        self._node = node
        self._violated = violated
        self._marks = marks
        # Every client's; more nodes bring more load.
        self._interval_s = len(names) / rate_per_s
        self._rng = random.Random(f"{world.seed}/clients")
        self._heavy = heavy
        self.running = False
        # So many times the rate, for now (bursts.py).
        self.speed = 1.0
        self.attempts = 0
        self.acknowledged: set[bytes] = set()
        self.refused: set[bytes] = set()
        # The highest revision that an operation which has ended was told.
        self.done_revision = 1
        self.acknowledged_at = 0.0
        # What is known of the shared keys: (key, revision) -> value, and back.
        self._values: dict[tuple[bytes, int], bytes] = {}
        self._revisions: dict[bytes, tuple[bytes, int]] = {}
        # Revisions of acknowledged writes, ascending, by key.
        self._written: dict[bytes, list[int]] = {}
        # The newest revision and value of each.
        self._seen: dict[bytes, tuple[int, bytes]] = {}
        # What was done with the shared keys, for the checker of linearizability.
        self.history: list[Operation] = []
        self._clients: dict[str, asyncio.Task[None]] = {}
        # Per life of a node, the newest revision that it has shown or acknowledged.
        self._shown: dict[Node, int] = {}

    def start(self) -> None:
        """A client at every node."""
        self.running = True
        for name in self._names:
            self.join(name)

    def begin_anew(self, node: Node, *, nothing_lost: bool, names: Sequence[str]) -> None:
        """The cluster goes on from one surviving core (disaster.py), on which `node` runs.

        What it holds is the truth from now on. With `nothing_lost`, all that was acknowledged is
        in it. What was answered "not applied" may have come to life with it.
        """
        rows = dict(node.machine.view("kv").table("keys").scan())
        lost = self.acknowledged - rows.keys()
        if lost and nothing_lost:
            self._violated(
                "acknowledged writes stay", f"{len(lost)} are lost by force, such as {min(lost)!r}"
            )
        self.acknowledged -= lost
        if lost:
            self._marks.hit("acknowledged writes lost by force")
        self.refused.clear()
        self.done_revision = 1
        for facts in (self._values, self._revisions, self._written, self._seen, self._shown):
            facts.clear()
        self.history.clear()
        now = self._now_us()
        for key in [key for key in rows if key.startswith(SHARED)]:
            given = Operation("survivor", "put", key, rows[key].value, None, now, now, "ok")
            self.history.append(given)
        self._clients.clear()
        self._names = names
        self.start()

    def join(self, name: str) -> None:
        """A client at this node, unless it has one."""
        if name not in self._clients:
            number = len(self._clients)
            self._clients[name] = self._world.spawn(self._client(name, number), f"client of {name}")

    async def _client(self, name: str, number: int) -> None:
        rate_per_s = 1 / self._interval_s
        while self.running:
            await asyncio.sleep(self._rng.expovariate(self.speed * rate_per_s))
            node = self._node(name)
            if node is not None:
                self.attempts += 1
                self._world.spawn(self._operation(name, node, number), "operation")

    def _operation(self, name: str, node: Node, number: int) -> Coroutine[Any, Any, None]:
        draw = self._rng.random()
        value = b"%d/%d" % (number, self.attempts)
        if self._heavy is not None and self._rng.random() < self._heavy.compare_share:
            return self._compare_range(name, node, value, self._heavy)
        key = SHARED + b"%d" % self._rng.randrange(SHARED_KEYS)
        if (draw := draw - READ_SHARE) < 0:
            return self._read(name, node, key)
        if (draw := draw - SHARED_SHARE) < 0:
            return self._put(name, node, key, value)
        if (draw := draw - COMPARE_SHARE) < 0:
            return self._compare(name, node, key, value)
        if draw < LOCAL_SHARE:
            return self._read_locally(name, node, key)
        return self._single(name, node, value)

    # -- operations

    async def _single(self, name: str, node: Node, key: bytes) -> None:
        begun = self.done_revision
        value = key if self._heavy is None else key + bytes(self._value_bytes(self._heavy))
        put = node.kv.put(key, value, timeout_s=TIMEOUT_S)
        try:
            result = await self._world.call(name, put)
        except (NotApplied, NoSpace, LimitExceeded):
            self.refused.add(key)
            self._marks.hit("write refused")
        except OutcomeUnknown as unknown:
            self._marks.hit("write unknown")
            await self._ask(name, node, key, unknown)
        except (HostCrashed, NodeFault):
            pass  # it may take effect once, now or later
        else:
            self.acknowledged.add(key)
            self._write_ended(begun, result.revision)
            self._shows(node, result.revision)

    def _value_bytes(self, heavy: Heavy) -> int:
        """Of a single write. A node with lower limits than others may refuse it (varied.py)."""
        if heavy.large_share < 1 and self._rng.random() >= heavy.large_share:
            return 0
        least, most = heavy.value_bytes_min, heavy.value_bytes_max
        if heavy.largest_share and self._rng.random() < heavy.largest_share:
            least, most = most, heavy.largest_bytes
        size = int(least * (most / least) ** self._rng.random())
        if size > LARGE_SHARE * max(heavy.value_bytes_max, heavy.largest_bytes):
            self._marks.hit("value near the limit")
        return size

    async def fill(self, name: str, node: Node) -> None:
        """Write the keys that a heavy load begins with."""
        keys = 0 if self._heavy is None else self._heavy.keys
        step = 1 if self._heavy is None else self._heavy.fill_keys
        for first in range(0, keys, step):
            numbers = range(first, min(keys, first + step))
            puts = [PutOp(BULK + b"%08d" % number, b"%d" % number) for number in numbers]
            await self._world.call(name, node.kv.txn([], puts, [], timeout_s=TIMEOUT_S))

    def compare_range(self, name: str, node: Node, key: bytes) -> None:
        """One more write that looks at many rows first, by another client (poison.py)."""
        if self._heavy is not None:
            work = self._compare_range(name, node, key, self._heavy)
            self._world.spawn(work, "operation")

    async def _compare_range(self, name: str, node: Node, key: bytes, heavy: Heavy) -> None:
        """A write that looks at many rows first; the comparison holds for all of them."""
        first = self._rng.randrange(max(1, heavy.keys - heavy.compared_keys))
        low, high = (BULK + b"%08d" % each for each in (first, first + heavy.compared_keys))
        compare = Compare(low, "version", "=", 1, high)
        txn = node.kv.txn([compare], [PutOp(key, key)], [], timeout_s=TIMEOUT_S)
        begun = self.done_revision
        try:
            result = await self._world.call(name, txn)
        except (NotApplied, Refused):
            self.refused.add(key)  # it looks at too many rows (costly.py), or there is no room
        except (OutcomeUnknown, HostCrashed, NodeFault):
            pass  # it may take effect once, now or later
        else:
            self._marks.hit("range of many keys compared")
            if not result.succeeded:
                self._violated("linearizable", f"a key behind {low!r} was written twice")
            self.acknowledged.add(key)
            self._write_ended(begun, result.revision)

    async def _ask(self, name: str, node: Node, key: bytes, unknown: OutcomeUnknown) -> None:
        """What became of a single write: the answer binds as its own would have."""
        if not unknown.seq or self._node(name) is not node or self._rng.random() > ASK_PROBABILITY:
            return
        asking = node.outcome(unknown.session, unknown.seq, timeout_s=TIMEOUT_S)
        try:
            outcome = await self._world.call(name, asking)
        except (NotApplied, OutcomeUnknown, Refused, HostCrashed, NodeFault):
            return
        if outcome.verdict == "applied":
            self.acknowledged.add(key)
            self._marks.hit("outcome asked: applied")
        elif outcome.verdict == "not_applied":
            self.refused.add(key)
            self._marks.hit("outcome asked: not applied")

    async def _put(self, name: str, node: Node, key: bytes, value: bytes) -> None:
        begun, put = self.done_revision, node.kv.put(key, value, timeout_s=TIMEOUT_S)
        result = await self._recorded(name, put, "put", key, value)
        if result is not None:
            self._write_ended(begun, result.revision)
            self._note_write(key, value, result.revision)

    async def _read_locally(self, name: str, node: Node, key: bytes) -> None:
        read = node.kv.read(RangeOp(key), consistency="local", timeout_s=TIMEOUT_S)
        try:
            result = await self._world.call(name, read)
        except (NotApplied, HostCrashed, NodeFault):
            return
        self._marks.hit("local read")
        if result.revision < self._shown.get(node, 0):
            self._violated(
                "local reads never go back",
                f"{name} shows revision {result.revision} after {self._shown[node]}",
            )
        self._shows(node, result.revision)
        self._read_ended(0, key, result.revision, result.kvs)

    def _shows(self, node: Node, revision: int) -> None:
        """The node has shown it, or acknowledged what it applied there."""
        self._shown[node] = max(revision, self._shown.get(node, 0))

    def copies_again(self, node: Node) -> None:
        """The node discards its state: what it shows next may be older."""
        self._shown.pop(node, None)

    async def _compare(self, name: str, node: Node, key: bytes, value: bytes) -> None:
        begun = self.done_revision
        known = self._seen.get(key)
        expected = None if known is None else known[1]
        compare = Compare(key, "version", "=", 0)
        if expected is not None:
            compare = Compare(key, "value", "=", expected)
        last = PutOp(LAST, value) if self.attempts % 3 else DeleteRangeOp(LAST)
        success = [PutOp(key, value), last]
        txn = node.kv.txn([compare], success, [RangeOp(key)], timeout_s=TIMEOUT_S)
        result = await self._recorded(name, txn, "cas", key, (expected, value))
        if result is None:
            return
        if result.succeeded:
            self._write_ended(begun, result.revision)
            self._note_write(key, value, result.revision)
        else:
            self._marks.hit("compare failed")
            self._read_ended(begun, key, result.revision, result.results[0].kvs)

    async def _read(self, name: str, node: Node, key: bytes) -> None:
        begun = self.done_revision
        consistency: Consistency = "linearizable"
        if node.config.raft.lease_ms and self._rng.random() < LEASE_SHARE:
            consistency = "lease"
            if node._part is not None and node._part.holds_lease:
                self._marks.hit("read under a lease")
        read = node.kv.read(RangeOp(key), consistency=consistency, timeout_s=TIMEOUT_S)
        result = await self._recorded(name, read, "get", key, None)
        if result is None:
            self._marks.hit("read failed")
        else:
            self._read_ended(begun, key, result.revision, result.kvs)

    async def _recorded(
        self, name: str, call: Coroutine[Any, Any, Any], op: str, key: bytes, given: Hashable
    ) -> Any:
        """The answer, or None; either way the operation goes into the history."""
        start = self._now_us()
        outcome: Outcome = "ok"
        output: Hashable = None
        result = None
        try:
            result = await self._world.call(name, call)
        except (NotApplied, NoSpace):
            outcome = "not_applied"
        except (OutcomeUnknown, HostCrashed, NodeFault):
            outcome = "unknown"
        if result is not None and op == "get":
            output = result.kvs[0].value if result.kvs else None
        elif result is not None and op == "cas":
            output = result.succeeded
        self.history.append(Operation(name, op, key, given, output, start, self._now_us(), outcome))
        return result

    def _now_us(self) -> int:
        return int(self._world.loop.now * 1e6)

    # -- what the answers prove

    def _write_ended(self, begun: int, revision: int) -> None:
        if revision <= begun:
            self._violated(
                "linearizable",
                f"a write got revision {revision}; revision {begun} was known before it began",
            )
        self.done_revision = max(self.done_revision, revision)
        self.acknowledged_at = self._world.loop.now

    def _read_ended(self, begun: int, key: bytes, revision: int, rows: Sequence[Any]) -> None:
        if revision < begun:
            self._violated(
                "linearizable",
                f"a read showed revision {revision}; revision {begun} was known before it began",
            )
        self.done_revision = max(self.done_revision, revision)
        shown = rows[0].mod_revision if rows else 0
        written = self._written.get(key, [])
        position = bisect.bisect_right(written, revision)
        if position and shown < written[position - 1]:
            self._violated(
                "linearizable",
                f"a read at revision {revision} showed {key!r} of {shown}; an acknowledged write "
                f"had set it at {written[position - 1]}",
            )
        if rows:
            self._note_value(key, rows[0].value, shown)

    def _note_write(self, key: bytes, value: bytes, revision: int) -> None:
        bisect.insort(self._written.setdefault(key, []), revision)
        self._note_value(key, value, revision)

    def _note_value(self, key: bytes, value: bytes, revision: int) -> None:
        """One value per key and revision, and one place per value: no write took effect twice."""
        if self._values.setdefault((key, revision), value) != value:
            self._violated("linearizable", f"{key!r} has two values at revision {revision}")
        if self._revisions.setdefault(value, (key, revision)) != (key, revision):
            self._violated(
                "exactly once",
                f"{value!r} was written at {self._revisions[value]} and at {(key, revision)}",
            )
        self._seen[key] = max((revision, value), self._seen.get(key, (0, value)))
