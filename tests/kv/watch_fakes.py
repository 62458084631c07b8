"""A keyspace with a history, without a cluster: what the watch hub sees of a node.

Time and turns of the loop pass when the test says so: `host.run()` runs what is due now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, cast

from raftkv.kv.commands import FROM_KEY, Event, KeyValue, Revision
from raftkv.kv.watch import Watch
from raftkv.kv.watch_hub import WatchHub
from raftkv.plugin import Host

Change = tuple[bytes, bytes | None]
"""A key and its new value; None deletes it."""


class FakeTimer:
    def __init__(self, at: float, callback: Callable[[], object]) -> None:
        self.at = at
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


class FakeRuntime:
    def __init__(self) -> None:
        self.now = 0.0
        self.soon: list[Callable[[], object]] = []
        self.timers: list[FakeTimer] = []
        self.turns = 0

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        self.soon.append(lambda: callback(*args))

    def call_later(self, delay_s: float, callback: Callable[..., object], *args: Any) -> FakeTimer:
        timer = FakeTimer(self.now + delay_s, lambda: callback(*args))
        self.timers.append(timer)
        return timer

    def future(self) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()

    def turn(self) -> bool:
        """One turn of the loop; whether there was anything to do."""
        due, self.soon = self.soon, []
        for callback in due:
            self.turns += 1
            callback()
        return bool(due)

    def run(self) -> None:
        while self.turn():
            assert self.turns < 100_000, "it never ends"

    def advance(self, seconds: float) -> None:
        self.now += seconds
        due = [timer for timer in self.timers if timer.at <= self.now]
        self.timers = [timer for timer in self.timers if timer.at > self.now]
        for timer in due:
            if timer.callback is not None:
                timer.callback()
        self.run()


class FakeTable(dict[Any, Any]):
    def scan(
        self, first: Any = None, last: Any = None, *, limit: int = 0
    ) -> Iterator[tuple[Any, Any]]:
        if limit == 1 and first in self:
            yield first, self[first]  # what is asked for most, without sorting everything
            return
        rows = [(k, v) for k, v in sorted(self.items()) if first is None or k >= first]
        yield from rows[:limit] if limit else rows


class FakeNode:
    """A node's keyspace and its hub. `history` is every revision's events, also compacted ones."""

    def __init__(self, incarnation: int = 1, *, start: bool = True) -> None:
        self.incarnation = incarnation
        self.runtime = FakeRuntime()
        self.tables = {"meta": FakeTable(), "history": FakeTable()}
        self.keys: dict[bytes, KeyValue] = {}
        self.history: dict[int, tuple[Event, ...]] = {}
        self.hub = WatchHub(cast(Host, self))
        if start:
            self.hub.start()

    def view(self, plugin: str | None = None) -> Any:
        return self

    def table(self, name: str) -> FakeTable:
        return self.tables[name]

    @property
    def revision(self) -> int:
        revision: int = self.tables["meta"].get("revision", 1)
        return revision

    def commit(self, *changes: Change, told: bool = True) -> int:
        """One revision. Keys must differ; deleting what is not there is passed over."""
        revision = self.revision + 1
        events = []
        for key, value in changes:
            old = self.keys.get(key)
            if value is not None:
                created, version = (revision, 1)
                if old is not None:
                    created, version = old.create_revision, old.version + 1
                self.keys[key] = KeyValue(key, value, created, revision, version)
                events.append(Event(self.keys[key], old))
            elif old is not None:
                del self.keys[key]
                events.append(Event(KeyValue(key, b"", 0, revision, 0), old))
        if not events:
            return self.revision
        first = events[0]
        self.tables["history"][revision] = Revision(first.kv, first.prev, 0, tuple(events[1:]))
        self.tables["meta"]["revision"] = revision
        self.history[revision] = tuple(events)
        if told:
            self.hub.progressed()
        return revision

    def put(self, key: bytes, value: bytes = b"v", *, told: bool = True) -> int:
        return self.commit((key, value), told=told)

    def delete(self, key: bytes, *, told: bool = True) -> int:
        return self.commit((key, None), told=told)

    def compact(self, revision: int, *, free: bool = True) -> None:
        """Rows below the revision may stay for a while, but nobody may look at them."""
        self.tables["meta"]["compacted"] = revision
        rows = self.tables["history"]
        for old in [old for old in rows if old < revision] if free else []:
            del rows[old]

    def load(self, other: FakeNode) -> None:
        """A snapshot of the other replaces this one's state."""
        self.tables = {name: FakeTable(table) for name, table in other.tables.items()}
        self.keys = dict(other.keys)
        self.history = dict(other.history)
        self.hub.restored()

    def run(self) -> None:
        self.runtime.run()

    def watch(self, key: bytes | None = None, range_end: bytes = b"", **options: Any) -> Watch:
        """All keys, unless it is said otherwise."""
        if key is None:
            return self.hub.open(b"\0", FROM_KEY, **options)
        return self.hub.open(key, range_end, **options)


def taken(watch: Watch) -> list[tuple[int, tuple[Event, ...]]]:
    """Everything that the watch gives now."""
    found = []
    while (batch := watch.take()) is not None:
        found.append((batch.revision, batch.events))
    return found


def shown(watch: Watch) -> list[tuple[int, bytes]]:
    """The revision and key of every event that the watch gives now."""
    return [(e.kv.mod_revision, e.kv.key) for _, events in taken(watch) for e in events]
