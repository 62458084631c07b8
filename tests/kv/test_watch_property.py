"""Any mixture of writes, compactions, snapshots and users keeps what a watch promises."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from raftkv.errors import WatchCancelled
from raftkv.kv import watch as watch_module
from raftkv.kv import watch_hub, watch_walk
from raftkv.kv.commands import FROM_KEY
from raftkv.kv.watch import Watch, WatchBatch
from raftkv.testing.watch_check import Watched, check_watch
from tests.kv.watch_fakes import FakeNode

KEYS = [b"a", b"b", b"b/1", b"c"]
RANGES = [
    (b"a", b""),
    (b"b", b""),
    (b"b", b"c"),
    (b"a", b"b0"),
    (b"b", FROM_KEY),
    (b"\0", FROM_KEY),
]
# Some watch from a revision that lies ahead.
START_MAX = 60


class User:
    """Someone who watches, on whichever node, and goes on after every end."""

    def __init__(self, node: FakeNode, watched: Watched) -> None:
        self.node = node
        self.watched = watched
        self.batches: list[WatchBatch] = []
        self.position = watched.first - 1
        self.watch = self.open()

    def open(self) -> Watch:
        _, _, _, prev_kv, put, delete = self.watched
        return self.node.watch(
            self.watched.key,
            self.watched.range_end,
            start_revision=self.position + 1,
            prev_kv=prev_kv,
            put=put,
            delete=delete,
        )

    def take(self, count: int) -> None:
        for _ in range(count):
            try:
                batch = self.watch.take()
            except WatchCancelled as cancelled:
                self.ended(cancelled)
                return
            if batch is None:
                return
            self.batches.append(batch)
            self.position = batch.revision

    def ended(self, cancelled: WatchCancelled) -> None:
        if cancelled.reason == "compacted":
            # As a program would: read everything anew, watch from there.
            lowest = cancelled.compact_revision
            assert self.position + 1 < lowest, "nothing that it needs was compacted"
            self.batches.clear()
            self.watched = self.watched._replace(first=lowest)
            self.position = lowest - 1
        else:
            # Beyond what it took if the watch was idle there: it has missed nothing (`flaw`).
            assert cancelled.resume_revision > self.position
            self.position = cancelled.resume_revision - 1
        self.watch = self.open()


class Watching(RuleBasedStateMachine):
    """Two nodes: one applies everything, the other follows, by entries or by snapshots."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        for module, name, value in (
            (watch_module, "BATCH_EVENTS_MAX", 3),
            (watch_hub, "BUFFER_EVENTS_MAX", 8),
            (watch_walk, "PIECE", 2),
            (watch_hub, "UNITS_PER_TURN", 3),
        ):
            self.patch.setattr(module, name, value)
        self.nodes = [FakeNode(), FakeNode()]
        self.users: list[User] = []

    def teardown(self) -> None:
        while self.nodes[0].revision <= START_MAX:
            self.nodes[0].put(KEYS[0])
        for user in self.users:
            user.watch.close()
            user.node = self.nodes[0]
            user.watch = user.open()
        for _ in range(200):
            for user in self.users:
                user.watch.request_progress()
            self.nodes[0].run()
            for user in self.users:
                user.take(100)
        flaws = [self.flaw(user) for user in self.users]
        ends = {user.position for user in self.users}
        self.patch.undo()
        assert not any(flaws), flaws
        assert ends <= {self.nodes[0].revision}

    @initialize(count=st.integers(0, 30))
    def past(self, count: int) -> None:
        for number in range(count):
            self.nodes[0].put(KEYS[number % len(KEYS)])
        self.nodes[1].load(self.nodes[0])

    @rule(
        changes=st.dictionaries(
            st.sampled_from(KEYS), st.one_of(st.none(), st.binary(max_size=2)), min_size=1
        ),
        both=st.booleans(),
        told=st.booleans(),
    )
    def write(self, changes: dict[bytes, Any], both: bool, told: bool) -> None:
        first, second = self.nodes
        if both and first.revision == second.revision:
            second.commit(*changes.items(), told=told)
        first.commit(*changes.items(), told=told)

    @rule(node=st.integers(0, 1), turns=st.integers(1, 6))
    def turn(self, node: int, turns: int) -> None:
        for _ in range(turns):
            self.nodes[node].runtime.turn()

    @rule(node=st.integers(0, 1))
    def progress(self, node: int) -> None:
        self.nodes[node].hub.progressed()

    @rule()
    def snapshot(self) -> None:
        self.nodes[1].load(self.nodes[0])

    @precondition(lambda self: self.nodes[0].revision > 2)
    @rule(share=st.floats(0, 1), free=st.booleans())
    def compact(self, share: float, free: bool) -> None:
        lowest = self.nodes[0].tables["meta"].get("compacted", 2)
        revision = int(lowest + share * (self.nodes[0].revision - lowest))
        self.nodes[0].compact(revision, free=free)

    @rule(
        node=st.integers(0, 1),
        bounds=st.sampled_from(RANGES),
        share=st.one_of(st.floats(0, 1.2), st.just(-1.0)),
        flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    )
    def begin(self, node: int, bounds: Any, share: float, flags: Any) -> None:
        newest = self.nodes[0].revision
        first = newest + 1 if share < 0 else max(2, min(START_MAX, int(share * newest)))
        self.users.append(User(self.nodes[node], Watched(*bounds, first, *flags)))

    @precondition(lambda self: self.users)
    @rule(user=st.integers(0, 100), count=st.integers(1, 10), mark=st.booleans())
    def take(self, user: int, count: int, mark: bool) -> None:
        chosen = self.users[user % len(self.users)]
        if mark:
            chosen.watch.request_progress()
        chosen.take(count)

    @precondition(lambda self: self.users)
    @rule(user=st.integers(0, 100), node=st.integers(0, 1))
    def move(self, user: int, node: int) -> None:
        chosen = self.users[user % len(self.users)]
        chosen.watch.close()
        chosen.node = self.nodes[node]
        chosen.watch = chosen.open()

    @invariant()
    def promises_are_kept(self) -> None:
        for user in self.users:
            assert not self.flaw(user)

    def flaw(self, user: User) -> str:
        return check_watch(user.watched, user.batches, self.nodes[0].history)


TestWatching = Watching.TestCase
TestWatching.settings = settings(max_examples=60, stateful_step_count=40)
