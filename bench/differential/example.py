"""One example: both sides at a fresh start, the same watches, the same requests, what differed."""

from __future__ import annotations

import collections
from typing import Any, Final, NamedTuple

import msgspec

from bench.differential import differences
from bench.differential.doors import Answer, Door, Stream
from bench.differential.normal import normal, normal_messages
from bench.differential.words import Example, Rev, Step, Watch

__all__ = ["Counts", "Mismatch", "Pair"]

# A watch is read until the mark is seen; one that does not let it through, until it is quiet.
QUIET_S: Final = 0.05
MARK_S: Final = 5.0
MESSAGES_MAX: Final = 10_000


class Mismatch(AssertionError):
    """The answers differ, and no difference of the list explains it."""


class Counts(msgspec.Struct):
    """What a run has compared. `named` counts the differences that have a name."""

    examples: int = 0
    requests: int = 0
    refused: int = 0
    watches: int = 0
    events: int = 0
    named: collections.Counter[str] = msgspec.field(default_factory=collections.Counter)


class _Opened(NamedTuple):
    """A watch on both sides; `compacted` as it was when the watch began, from the start."""

    watch: Watch
    streams: tuple[Stream, Stream]
    compacted: int


class Pair:
    """etcd and raftkv, asked the same. After a `Mismatch` another example may follow."""

    def __init__(self, etcd: str, raftkv: str) -> None:
        self.etcd = Door("etcd", etcd)
        self.raftkv = Door("raftkv", raftkv)
        self.doors = (self.etcd, self.raftkv)
        self.counts = Counts()
        self._compacted = 0

    def align(self) -> None:
        """Bring both to the same revision, whatever was written while they started."""
        revisions = [_revision(door) for door in self.doors]
        for door, revision in zip(self.doors, revisions, strict=True):
            for _ in range(max(revisions) - revision):
                door.ask("/v3/kv/put", {"key": b"a"})
            door.base = max(revisions)

    def run(self, example: Example) -> None:
        """Raises `Mismatch`, also when the revisions are not the same in the end."""
        for door in self.doors:
            _fresh(door)
        if self.etcd.base != self.raftkv.base:
            self.align()  # an example before this one has failed
        self._compacted = 0
        self.counts.examples += 1
        self._tell(example)
        theirs, ours = (_revision(door) for door in self.doors)
        if theirs != ours:
            raise Mismatch(f"etcd ends at revision {theirs}, raftkv at {ours}")

    def _tell(self, example: Example) -> None:
        opened: list[_Opened] = []
        try:
            for number, step in enumerate(example.steps):
                opened += [self._watch(each) for each in example.watches if each.before == number]
                self.ask(step)
            last = len(example.steps)
            opened += [self._watch(each) for each in example.watches if each.before >= last]
            for each in opened:
                self._read(each)
        finally:
            for each in opened:
                for stream in each.streams:
                    stream.close()

    def ask(self, step: Step) -> tuple[Answer, Answer]:
        """The same request to both; the raw answers. Raises `Mismatch`."""
        for door in self.doors:
            door.send(step)
        theirs, ours = (door.answer() for door in self.doors)
        self.counts.requests += 1
        self.counts.refused += theirs.status != 200
        for door, answer in zip(self.doors, (theirs, ours), strict=True):
            _remember(door, step, answer)
        left, right = normal(self.etcd, step, theirs), normal(self.raftkv, step, ours)
        if left != right:
            self._explain(step, left, right)
        if step.path == "/v3/kv/compaction" and theirs.status == 200:
            self._compacted = _compacted(step.body)
        return theirs, ours

    def _explain(self, step: Step, left: Answer, right: Answer) -> None:
        name = differences.named(step, left, right)
        if name is None:
            raise Mismatch(
                f"{step.method} {step.path} {step.body!r}\n  etcd:   {left.status} {left.kind} "
                f"{left.document}\n  raftkv: {right.status} {right.kind} {right.document}"
            )
        self.counts.named[name] += 1

    def _watch(self, watch: Watch) -> _Opened:
        self.counts.watches += 1
        streams = (self.etcd.watch(watch.create), self.raftkv.watch(watch.create))
        heads = [stream.head() for stream in streams]
        if heads[0] != heads[1]:
            raise Mismatch(f"watch {watch.create}\n  etcd:   {heads[0]}\n  raftkv: {heads[1]}")
        # A watch counts from the moment that it says so: the next request may be meant for it.
        for stream in streams:
            stream.messages.append(stream.next(MARK_S))
        return _Opened(watch, streams, self._compacted)

    def _read(self, opened: _Opened) -> None:
        """Mark the end in the keyspace, then read both up to the mark and compare."""
        watch = opened.watch
        key = watch.create["key"]
        self.ask(Step("/v3/kv/put", {"key": key, "value": b"the end"}))
        self.ask(Step("/v3/kv/deleterange", {"key": key}))
        seen: list[dict[str, Any]] = []
        for door, stream in zip(self.doors, opened.streams, strict=True):
            _drain(stream, _last_event(door, watch, _revision(door)))
            seen.append(normal_messages(door, stream.messages))
        self.counts.events += len(seen[0]["events"])
        if seen[0] == seen[1]:
            return
        start = watch.create.get("start_revision")
        first = start.after if isinstance(start, Rev) else None
        name = differences.named_watch(first, opened.compacted, self._compacted, *seen)
        if name is not None:
            self.counts.named[name] += 1
            return
        raise Mismatch(f"watch {watch.create!r}\n  etcd:   {seen[0]}\n  raftkv: {seen[1]}")

    def close(self) -> None:
        for door in self.doors:
            door.close()


def _revision(door: Door) -> int:
    return int(door.ask("/v3/kv/range", {"key": b"a"})["header"]["revision"])


def _fresh(door: Door) -> None:
    """No keys, no leases, no history; the revision that remains is the base."""
    door.granted.clear()
    for lease in door.ask("/v3/lease/leases", {}).get("leases", []):
        door.ask("/v3/lease/revoke", {"ID": lease["ID"]})
    everything = {"key": b"\0", "range_end": b"\0"}
    revision = int(door.ask("/v3/kv/deleterange", everything)["header"]["revision"])
    if revision != door.base:
        door.ask("/v3/kv/compaction", {"revision": revision})
    door.base = revision


def _compacted(document: Any) -> int:
    """What a compaction that succeeded has compacted to, counted from the example's start."""
    asked = document.get("revision") if isinstance(document, dict) else None
    return asked.after if isinstance(asked, Rev) else 0


def _remember(door: Door, step: Step, answer: Answer) -> None:
    """The id of a lease, if the server chose it."""
    if step.path != "/v3/lease/grant" or answer.status != 200:
        return
    given = step.body.get("ID") if isinstance(step.body, dict) else None
    chosen = int(answer.document.get("ID", "0"))
    if str(given) != str(chosen):
        door.granted.append(chosen)


def _last_event(door: Door, watch: Watch, now: int) -> int | None:
    """The revision of the mark's last event that the watch lets through; None if there is none.

    The mark is a put and a deletion of the watch's first key: the last two revisions.
    """
    create = watch.create
    key, end = create["key"], create.get("range_end", b"")
    if end not in (b"", b"\0") and end <= key:
        return None
    filters = create.get("filters", [])
    last = now - 1 if any(each in ("NODELETE", 1) for each in filters) else now
    start = create.get("start_revision", Rev(0))
    return last if door.base + start.after <= last else None


def _drain(stream: Stream, last: int | None) -> None:
    """Read until the mark's last event, the end of the watch, or (without a mark) until quiet."""
    while len(stream.messages) < MESSAGES_MAX and not _over(stream.messages[-1], last):
        message = stream.next(QUIET_S if last is None else MARK_S)
        if message is None:
            return
        stream.messages.append(message)


def _over(message: Any, last: int | None) -> bool:
    result = message.get("result", {}) if isinstance(message, dict) else {}
    if not result or result.get("canceled"):
        return True
    events = result.get("events", [])
    return bool(last and events and int(events[-1]["kv"]["mod_revision"]) >= last)
