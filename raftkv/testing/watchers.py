"""Clients of a simulated cluster that watch, and what their watches must give.

A watcher goes from node to node: it watches for a while, or until its watch or its node ends, and
then goes on at another one from where it was. What it is given is compared at once with the oracle:
every revision as it was first applied anywhere (that all nodes apply the same is another check).
So over all nodes and ends each watcher must see everything in its range once, in order, in whole
revisions (watch_check.py). In the end every watcher must reach the cluster's last revision.

Watchers look into their buffers now and then (`Watch.take`): it costs a simulation much less than
to be woken for every event, and gives batches of several revisions.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from raftkv.config import Limits
from raftkv.errors import NodeFault, NotApplied, OutcomeUnknown, Refused, WatchCancelled
from raftkv.kv.commands import FROM_KEY, Compact, Event, events_of, prefix_end
from raftkv.kv.watch import Watch, WatchBatch
from raftkv.testing.host import HostCrashed
from raftkv.testing.marks import Marks
from raftkv.testing.watch_check import Watched, check_watch

if TYPE_CHECKING:
    from raftkv.node import Node
    from raftkv.state.machine import StateMachine
    from raftkv.testing.world import World

__all__ = ["Watchers"]

# (key, range_end, prev_kv) of each watcher: one key that all clients write, all of these, all keys.
SHARED = b"shared/"
KINDS = (
    (SHARED + b"0", b"", True),
    (SHARED, prefix_end(SHARED), False),
    (b"\0", FROM_KEY, True),
)
# How long a watcher stays at a node, on average, and how often it looks.
STAY_S = 4.0
LOOK_S = (0.05, 0.6)
# How often it looks once the load is over and its watch has more to give. A buffer may hold just
# one revision, and hundreds may be left: at the pace above they would take minutes.
CATCH_UP_S = 0.001
# Chances, each time a watcher goes on: to start over from the beginning, or from now.
AGAIN_PROBABILITY, NOW_PROBABILITY = 0.1, 0.1
# Chance, at each look, to ask for a mark.
MARK_PROBABILITY = 0.2
# What the buffers hold in a cluster with tiny limits: a watcher that looks seldom is too slow.
TINY_BUFFER = (40, 4096)
# How often somebody compacts, and how many revisions are kept then.
COMPACT_S = 3.0
KEPT_REVISIONS = (20, 400)
TIMEOUT_S = 3.0


class Watcher:
    """What one of them wants, and how far it is. `watched` None: it waits to hear from where."""

    def __init__(self, number: int, kind: tuple[bytes, bytes, bool]) -> None:
        self.name = f"watcher {number}"
        self.kind = kind
        self.watched: Watched | None = Watched(kind[0], kind[1], 2, kind[2])
        self.position = 1
        self.node: Node | None = None

    def begin_at(self, revision: int) -> None:
        """Everything from this revision on is to be seen from now on."""
        self.watched = Watched(self.kind[0], self.kind[1], revision, self.kind[2])
        self.position = revision - 1


class Watchers:
    """All watchers of a cluster. Nodes with limits of their own get small buffers."""

    def __init__(
        self,
        world: World,
        names: Sequence[str],
        node: Callable[[str], Node | None],
        violated: Callable[[str, str], NoReturn],
        marks: Marks,
    ) -> None:
        self._world = world
        self._names = names
        self._node = node
        self._violated = violated
        self._marks = marks
        self._rng = random.Random(f"{world.seed}/watchers")
        self.running = False
        # Nodes whose state was damaged. Replicants that have copied from one copy the state again,
        # and end their watches, for these may have given what was not written.
        self.damaged: set[str] = set()
        # The load is over: everybody is to get to the end.
        self.finishing = False
        #: A part of the history is being given up (disaster.py), and no watcher looks.
        self.suspended = False
        #: How many histories there were: one more than were given up.
        self.histories = 1
        self._watchers = [Watcher(number, kind) for number, kind in enumerate(KINDS)]
        #: The events of each revision, as they were first applied anywhere.
        self.oracle: dict[int, tuple[Event, ...]] = {}
        self._known = 1

    def start(self) -> None:
        self.running = True
        for watcher in self._watchers:
            self._world.spawn(self._go_around(watcher), watcher.name)
        self._world.spawn(self._compact(), "compactor")

    def applied(self, machine: StateMachine) -> None:
        """Some node has applied an entry: note the revisions that nobody had applied before."""
        view = machine.view("kv")
        revision = view.table("meta").get("revision", 1)
        if revision > self._known:
            history = view.table("history")
            for number in range(self._known + 1, revision + 1):
                self.oracle[number] = events_of(history[number])
            self._known = revision

    def reached(self, revision: int) -> bool:
        """Whether every watcher has seen everything up to here."""
        return all(watcher.position >= revision for watcher in self._watchers)

    def suspend(self) -> None:
        """A majority is lost: what is seen from now on may be of a history that is given up."""
        self.suspended = True

    def begin_anew(self, survivor: Node) -> None:
        """What this node holds is the history from now on."""
        view = survivor.machine.view("kv")
        for watcher in self._watchers:
            watcher.begin_at(view.table("meta").get("revision", 1) + 1)
        rows = dict(view.table("history").scan())
        self._known = view.table("meta").get("revision", 1)
        first = min(rows, default=self._known + 1)
        self.oracle = {number: row for number, row in self.oracle.items() if number < first}
        self.oracle |= {number: events_of(row) for number, row in rows.items()}
        self.suspended = False
        self.histories += 1

    async def _go_around(self, watcher: Watcher) -> None:
        while self.running:
            name = self._rng.choice(self._names)
            node = self._node(name)
            if node is None or self.suspended:
                await asyncio.sleep(0.1)
                continue
            if node is not watcher.node and watcher.node is not None:
                self._marks.hit("watch resumed at another node")
            watcher.node = node
            watch = self._open(watcher, node)
            await self._look(watcher, name, node, watch)
            watch.close()

    def _open(self, watcher: Watcher, node: Node) -> Watch:
        hub = node.kv.hub
        assert hub is not None
        if node.config.limits != Limits():
            hub.bound_buffers(*TINY_BUFFER)
        draw = 1.0 if self.finishing else self._rng.random()
        start = watcher.position + 1
        if draw < AGAIN_PROBABILITY:
            start = 1
            watcher.begin_at(2)
        elif draw < AGAIN_PROBABILITY + NOW_PROBABILITY:
            start = 0
            watcher.watched = None
        key, range_end, prev_kv = watcher.kind
        progress_s = 1.0 if self._rng.random() < 0.5 else 0.0
        return hub.open(
            key, range_end, start_revision=start, prev_kv=prev_kv, progress_s=progress_s
        )

    async def _look(self, watcher: Watcher, name: str, node: Node, watch: Watch) -> None:
        """Until the watcher, the watch or the node has had enough."""
        until = self._world.loop.now + self._rng.expovariate(1 / STAY_S)
        history = self.histories
        while self.running and (self._world.loop.now < until or self.suspended):
            await asyncio.sleep(self._pause_s(node, watch))
            if self._node(name) is not node:
                return  # what was in its buffer went with the node
            if self.suspended:
                continue
            if history != self.histories:
                self._note_given_up(watch)
                return
            if self.finishing or self._rng.random() < MARK_PROBABILITY:
                watch.request_progress()
            if watcher.watched is None:
                if watch.revision == 0:
                    continue  # the node has only begun
                watcher.begin_at(watch.revision + 1)
            try:
                while (batch := watch.take()) is not None:
                    if not batch.events:
                        self._marks.hit("watch marked")
                    self._check(watcher, name, batch)
            except WatchCancelled as cancelled:
                self._ended(watcher, name, cancelled)
                return

    def _pause_s(self, node: Node, watch: Watch) -> float:
        """Until the next look."""
        if self.finishing and watch.revision < node.kv.revision:
            return CATCH_UP_S
        return self._rng.uniform(*LOOK_S)

    def _check(self, watcher: Watcher, name: str, batch: WatchBatch) -> None:
        assert watcher.watched is not None
        rest = watcher.watched._replace(first=watcher.position + 1)
        flaw = check_watch(rest, [batch], self.oracle)
        if flaw:
            self._violated("watch promises", f"{watcher.name} at {name}: {flaw}")
        watcher.position = batch.revision

    def _ended(self, watcher: Watcher, name: str, cancelled: WatchCancelled) -> None:
        wanted = watcher.position + 1
        if cancelled.reason == "compacted":
            self._marks.hit("watch compacted")
            if cancelled.compact_revision <= wanted:
                self._violated(
                    "watch promises",
                    f"{watcher.name} at {name} needs revision {wanted}, and was told that only "
                    f"those from {cancelled.compact_revision} on are left",
                )
            watcher.begin_at(cancelled.compact_revision)
        elif cancelled.reason == "given_up" and not self.damaged:
            self._violated("watch promises", f"{name} has given up a history that nobody lost")
        else:
            if cancelled.reason == "slow":
                self._marks.hit("watch too slow")
            if cancelled.resume_revision > wanted:
                # As good as a mark: nothing in between concerned the watch.
                self._check(watcher, name, WatchBatch(cancelled.resume_revision - 1, ()))
            elif cancelled.resume_revision not in (0, wanted):
                self._violated(
                    "watch promises",
                    f"{watcher.name} at {name} is to go on from {cancelled.resume_revision}, and "
                    f"has seen everything before {wanted}",
                )

    def _note_given_up(self, watch: Watch) -> None:
        if watch.cancelled is not None and watch.cancelled.reason == "given_up":
            self._marks.hit("watch given up")

    async def _compact(self) -> None:
        while self.running and not self.finishing:
            await asyncio.sleep(self._rng.expovariate(1 / COMPACT_S))
            name = self._rng.choice(self._names)
            node = self._node(name)
            revision = self._known - self._rng.randint(*KEPT_REVISIONS)
            if node is None or revision < 2 or self.suspended:
                continue
            compacting = node.propose("kv", Compact(revision), timeout_s=TIMEOUT_S)
            with contextlib.suppress(NotApplied, OutcomeUnknown, Refused, HostCrashed, NodeFault):
                await self._world.call(name, compacting)
