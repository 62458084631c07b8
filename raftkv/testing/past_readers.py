"""Clients of the simulated cluster that read the keyspace as it was, beside compactions.

Now and then many clients come to one node at the same moment, for a few revisions of the past, and
in half of the cases a compaction comes with them. Some ask for pages: the rest of a range at the
revision of the first page. Every answer is compared with what the log has made of the keyspace by
then (watchers.py notes it); `Compacted` and `FutureRevision` only a node may answer for which they
are true.

A callback runs in no virtual time, so such reads would end before anything else happens; and the
history of a simulated keyspace is short. While entered, `long_reads` gives each turn of a node's
work budget some time, and lets reads wait for few changes already.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from sortedcontainers import SortedDict

from raftkv.errors import (
    NodeFault,
    NotApplied,
    OutcomeUnknown,
    Overloaded,
    ReadTimeout,
    Refused,
)
from raftkv.kv import compaction, past_reads
from raftkv.kv.commands import (
    FROM_KEY,
    Compact,
    Compacted,
    Event,
    FutureRevision,
    KeyValue,
    RangeOp,
    RangeResult,
    prefix_end,
)
from raftkv.kv.history import lowest_revision, revision_of
from raftkv.kv.work_budget import WorkBudget
from raftkv.testing.host import HostCrashed
from raftkv.testing.patching import around, replaced

if TYPE_CHECKING:
    from raftkv.node import Node
    from raftkv.plugin import View
    from raftkv.testing.simulated import SimulatedCluster

SHARED: Final = b"shared/"
# One key, the keys that all clients write, all keys.
RANGES: Final = ((SHARED + b"0", b""), (SHARED, prefix_end(SHARED)), (b"\0", FROM_KEY))
# Between two bursts of reads, on average; how many reads each has, of how many revisions.
BURST_S: Final = 1.0
READERS: Final = (1, 8, 40)
REVISIONS: Final = 2
COMPACTED_SHARE: Final = 0.5
# In so many bursts all of them ask for the same.
SAME_SHARE: Final = 0.5
# Keys of a page; 0 are all.
LIMITS: Final = (0, 0, 3, 20)
PAGES_MAX: Final = 4
# From one page to the next.
PAUSES_S: Final = (0.0, 0.0, 0.1)
TIMEOUTS_S: Final = (None, 0.05, 1.0)
COMPACT_TIMEOUT_S: Final = 3.0
# A turn of the work budget takes five times as long as in production, and a read looks at few
# changes in it: so a read takes tens of milliseconds, in which others write and compact.
TURN_S: Final = 0.02
FEW_EVENTS: Final = 5
TURN_EVENTS: Final = 5


@contextlib.contextmanager
def long_reads() -> Iterator[None]:
    """While this is entered, a turn in which a node did work for callers takes TURN_S.

    Reads that look at more than FEW_EVENTS changes wait for a place, and take a turn for every
    TURN_EVENTS of them. Compacted rows go without grace.
    """
    with (
        around(WorkBudget, "_next", _late),
        replaced(past_reads, "FEW_EVENTS", FEW_EVENTS),
        replaced(past_reads, "PAST_EVENTS", TURN_EVENTS),
        replaced(compaction, "GRACE_ROWS", 0),
    ):
        yield


def _late(following: Callable[[WorkBudget], None]) -> Callable[[WorkBudget], None]:
    def late(budget: WorkBudget) -> None:
        asyncio.get_running_loop().call_later(TURN_S, following, budget)

    return late


class _Pasts:
    """What every key was after each revision that has changed it."""

    def __init__(self) -> None:
        self.revision = 1
        self._keys: SortedDict[bytes, list[tuple[int, KeyValue | None]]] = SortedDict()

    def add(self, revision: int, events: Iterable[Event]) -> None:
        """Note the events of the next revision."""
        for event in events:
            kv = event.kv
            now = None if kv.version == 0 else kv
            self._keys.setdefault(kv.key, []).append((revision, now))
        self.revision = revision

    def of(self, operation: RangeOp) -> list[KeyValue]:
        """All key-values of the range as of `operation.revision`."""
        key, end = operation.key, operation.range_end
        if not end:
            keys = [key] if key in self._keys else []
        else:
            last = None if end == FROM_KEY else end
            keys = list(self._keys.irange(key, last, inclusive=(True, False)))
        found = []
        for each in keys:
            versions = self._keys[each]
            number = bisect_right(versions, operation.revision, key=lambda version: version[0])
            kv = versions[number - 1][1] if number else None
            if kv is not None:
                found.append(kv)
        return found


class PastReaders:
    """All such clients of a cluster."""

    def __init__(self, cluster: SimulatedCluster, rng: random.Random) -> None:
        self._cluster = cluster
        self._rng = rng
        self._histories = 0
        self._pasts = _Pasts()

    async def storm(self) -> None:
        """Bursts of reads, until it is cancelled."""
        cluster, rng = self._cluster, self._rng
        while True:
            await asyncio.sleep(rng.expovariate(1 / BURST_S))
            found = cluster.some_node(rng)
            if found is None:
                continue
            name, node = found
            view = node.machine.view("kv")
            lowest, newest = lowest_revision(view), revision_of(view)
            if newest <= max(lowest, 1):
                continue
            revisions = [rng.randint(max(lowest, 2), newest) for _ in range(REVISIONS)]
            same = rng.random() < SAME_SHARE
            operation = self._operation(revisions[0])
            for _ in range(rng.choice(READERS)):
                if not same:
                    operation = self._operation(rng.choice(revisions))
                timeout_s = rng.choice(TIMEOUTS_S)
                cluster.world.spawn(self._read_pages(name, node, operation, timeout_s), "reader")
            if rng.random() < COMPACTED_SHARE:
                compact = self._compact(name, node, rng.randint(max(lowest, 2), newest))
                cluster.world.spawn(compact, "reader's compactor")

    def _operation(self, revision: int) -> RangeOp:
        rng = self._rng
        key, range_end = rng.choice(RANGES)
        return RangeOp(
            key,
            range_end,
            rng.choice(LIMITS),
            count_only=rng.random() < 0.1,
            revision=revision,
        )

    async def _compact(self, name: str, node: Node, revision: int) -> None:
        compacting = node.propose("kv", Compact(revision), timeout_s=COMPACT_TIMEOUT_S)
        with contextlib.suppress(NotApplied, OutcomeUnknown, Refused, HostCrashed, NodeFault):
            await self._cluster.world.call(name, compacting)

    async def _read_pages(
        self, name: str, node: Node, operation: RangeOp, timeout_s: float | None
    ) -> None:
        for _ in range(PAGES_MAX):
            reading = node.kv.read(operation, consistency="local", timeout_s=timeout_s)
            try:
                result = await self._cluster.world.call(name, reading)
            except (Compacted, FutureRevision) as error:
                self._judge_refusal(name, node, operation, error)
                return
            except (ReadTimeout, Overloaded):
                self._cluster.marks.hit("read of the past ended")
                return
            except (NotApplied, HostCrashed, NodeFault):
                return
            if not self._is_right(name, operation, result):
                return
            if not result.more or not result.kvs:
                return
            await asyncio.sleep(self._rng.choice(PAUSES_S))
            if self._cluster.nodes.get(name) is not node or not self._cluster.is_up(name):
                return
            operation = RangeOp(
                result.kvs[-1].key + b"\0",
                operation.range_end,
                operation.limit,
                revision=operation.revision,
            )

    def _judge_refusal(
        self, name: str, node: Node, operation: RangeOp, error: Compacted | FutureRevision
    ) -> None:
        view: View = node.machine.view("kv")
        self._cluster.marks.hit("read of the past refused")
        if lowest_revision(view) <= operation.revision <= revision_of(view):
            self._cluster.violated("reads of the past", f"{name} holds it, and answers: {error}")

    def _is_right(self, name: str, operation: RangeOp, result: RangeResult) -> bool:
        """False if it cannot be judged."""
        if not self._catch_up(operation.revision) or name in self._cluster.damaged:
            return False
        expected = self._pasts.of(operation)
        count = len(expected)
        limit = operation.limit or count
        shown = () if operation.count_only else tuple(expected[:limit])
        more = not operation.count_only and count > limit
        if (result.kvs, result.count, result.more) != (shown, count, more):
            self._cluster.violated(
                "reads of the past",
                f"{name} answers {operation} with {result.count} keys, of which it shows "
                f"{len(result.kvs)}; {count} were there, and {len(shown)} are to be shown",
            )
        self._cluster.marks.hit("read of the past")
        return True

    def _catch_up(self, revision: int) -> bool:
        """Whether it is known what the log has made of the keyspace up to this revision."""
        watchers = self._cluster.watchers
        if watchers.suspended:
            return False
        if watchers.histories != self._histories:
            self._histories, self._pasts = watchers.histories, _Pasts()
        pasts, oracle = self._pasts, watchers.oracle
        while pasts.revision < revision:
            if pasts.revision + 1 not in oracle:
                return False
            pasts.add(pasts.revision + 1, oracle[pasts.revision + 1])
        return True
