"""Snapshot mode: the positions in other regions that belong to a position here, found by asking.

A snapshot says: whoever acknowledged everything up to `position` here has acknowledged everything
up to that position in region b, and that one in c. When a mark passes it, an update tells them.

**One round** (one participant). The request goes to b over the link. b answers with its last
position, over its link, after all its messages up to there. When the answer is counted everything
that b had is here: b's own messages came before it, ours were here first. So the last position here
at that moment goes with b's.

**Two rounds** (more). b's position may include a message of c that is here not yet. So all are
asked again, after all have answered. c publishes what b had seen before b answers, so before the
second request is written; c's second answer comes after it. The positions are those of the first
round, the one here is that at the last answer of the second.

**What is checked.** The argument rests on the order of links. So an answer says what its region
had, and is counted only when this region has what that region itself published, and what origins
published that take no part (excluded or unknown ones: no answer of theirs stands for them). What
other participants published need not be here: that is what the rounds are for. Who takes part is
fixed when a snapshot starts; if the active regions change, it is abandoned in the same entry.

**When.** A participant may lack a third region's message when it answers, though it is here: the
position there is then before the message, and perhaps nothing is published after it. So a snapshot
is due after a new message and also (from format 2 on) after a report by which another region has
more of a third one: what it reported before a snapshot started was there when it answered. Its own
messages and ours always were: links carry them before the answer and before the request. A third
reason is that snapshots begin, by `mode` or `enabled`: others receive what was acknowledged without
them with the next one.

**Numbers.** A snapshot's id is the index of the entry that started it; answers carry it with the
number of their round. One with other numbers, a second one, one of somebody who was not asked:
none is counted. One at a time is pending for a topic. No node's clock gives it up: the command
`SnapshotAbandon` compares with the log's.

**Updates.** A mark covers more than what was acknowledged: what lies below a base, holes, what was
trimmed before the subscription came. An update excepts these (`Advance.without`); they are computed
as what the set lacks of the vector at the snapshot, so that nothing is claimed that is not in it.
The vector is one of messages; a hole right behind its end belongs to it as well.

**What is ugly.** A completed snapshot is put into the cache of every replicated subscription, in
one entry: up to subs_max rows, beyond what other commands touch. The alternative, to have each find
it in `snapshots` later, would cost every acknowledgement a look there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from msgspec.structs import replace

from raftkv.plugin import Context

from . import markers
from .commands import (
    FORMAT_KEPT,
    FORMAT_REPORTED,
    Answered,
    SnapshotAbandon,
    SnapshotAnswer,
    SnapshotAnswered,
    SnapshotStart,
    Started,
)
from .mapping import covers, vector_at, vector_of_rows
from .ranges import without as without_ranges
from .refusals import OriginBehind, OutOfOrder
from .rows import (
    ROWS_MAX,
    Advance,
    Answer,
    Floor,
    Pending,
    Ranges,
    Request,
    Snapshot,
    Sub,
    Topic,
    Vector,
)
from .scope import Tables, active_regions, count, own_region, require_region, topic_named
from .snapshot_cache import SIZE_MIN, Spread, crowded

__all__ = [
    "abandon",
    "answer",
    "answered",
    "dropped",
    "mark_moved",
    "mode_changed",
    "region_changed",
    "repopulate",
    "reported",
    "start",
    "switched",
    "why_not",
]

_NOT_COUNTED: Final = Answered(False)


# --- building -------------------------------------------------------------------------------------


def why_not(view: Tables, name: str) -> str:
    """Why none would be started now; "": it would. Raises `UnknownTopic`.

    "disabled", "pending", "no regions", "nothing new", "nobody".
    """
    topic = topic_named(view, name)
    if not _on(view):
        return "disabled"
    if topic.id in view.table("pending"):
        return "pending"
    participants = active_regions(view) if topic.replicated else ()
    if not participants:
        return "no regions"
    if topic.next <= topic.snapshot_next and not _others_took_part(view, topic, participants):
        return "nothing new"
    if not any(sub.replicate for _, sub in _subs(view, topic.id)):
        return "nobody"
    return ""


def start(command: SnapshotStart, ctx: Context) -> Started:
    """Ask all other regions, if there is a reason to."""
    reason = why_not(ctx, command.topic)
    if reason:
        return Started(False, reason)
    topic = topic_named(ctx, command.topic)
    pending = Pending(ctx.index, 1, ctx.now, topic.next, active_regions(ctx))
    _ask(ctx, command.topic, topic.id, pending)
    return Started(True, id=pending.id)


def answer(command: SnapshotAnswer, ctx: Context) -> None:
    """Answer another region's request with what is here. One that was answered is not again: the
    answer is still there. With replication disabled nothing is answered."""
    require_region(ctx, command.source)
    topic = topic_named(ctx, command.topic)
    if not ctx.settings["enabled"]:
        return
    meaning = markers.answer_to(command.source)
    old = markers.marker_of(ctx, topic.id, meaning)
    if old is not None and isinstance(old.what, Answer):
        known = old.what
        if known.id == command.id and known.round >= command.round:
            return
    position = topic.next - 1
    what = Answer(
        command.id,
        command.source,
        command.round,
        own_region(ctx),
        position,
        vector_at(ctx, topic.id, position),
    )
    markers.put(ctx, command.topic, meaning, what)


def answered(command: SnapshotAnswered, ctx: Context) -> Answered:
    """Count an answer that is waited for. Raises `OutOfOrder`: not yet; `OriginBehind`."""
    region, name = command.region, command.topic
    require_region(ctx, region)
    topic = topic_named(ctx, name)
    pending: Pending | None = ctx.table("pending").get(topic.id)
    if pending is None or (pending.id, pending.round) != (command.id, command.round):
        return _NOT_COUNTED
    so_far = pending.first if pending.round == 1 else pending.second
    if region not in pending.participants or any(known == region for known, _ in so_far):
        return _NOT_COUNTED
    _check_order(ctx, topic, pending, region, command.vector)
    so_far = (*so_far, (region, command.position))
    if pending.round == 1:
        pending = replace(pending, first=so_far)
    else:
        pending = replace(pending, second=so_far)
    if len(so_far) < len(pending.participants):
        ctx.table("pending").put(topic.id, pending)
        return Answered(True)
    if pending.round == 1 and len(pending.participants) > 1:
        _ask(ctx, name, topic.id, replace(pending, round=2))
        return Answered(True)
    _complete(ctx, name, topic, pending)
    return Answered(True, True)


def abandon(command: SnapshotAbandon, ctx: Context) -> Answered:
    """Give the pending one up, if it is that one and waited too long. `counted`: it was."""
    topic = topic_named(ctx, command.topic)
    pending: Pending | None = ctx.table("pending").get(topic.id)
    if pending is None or pending.id != command.id:
        return _NOT_COUNTED
    if ctx.now - pending.started_ms < ctx.settings["timeout_ms"]:
        return _NOT_COUNTED
    _forget(ctx, topic.id)
    count(ctx, timed_out=1)
    return Answered(True)


def _ask(ctx: Context, name: str, topic_id: int, pending: Pending) -> None:
    ctx.table("pending").put(topic_id, pending)
    markers.put(ctx, name, markers.REQUEST, Request(pending.id, own_region(ctx), pending.round))


def _check_order(ctx: Context, topic: Topic, pending: Pending, region: str, vector: Vector) -> None:
    """Whether the link has brought what it must have brought before this answer."""
    own, vectors = own_region(ctx), ctx.table("vectors")
    for origin, seq in vector:
        if origin == own:
            if seq > topic.seq:
                raise OriginBehind(own, seq, topic.seq)
        elif origin == region or origin not in pending.participants:
            known = vectors.get((topic.id, origin), 0)
            if known < seq:
                raise OutOfOrder(origin, known + 1)


def _complete(ctx: Context, name: str, topic: Topic, pending: Pending) -> None:
    """All have answered: keep it, and hand it to the subscriptions."""
    local = topic.next - 1
    snapshot = Snapshot(pending.id, tuple(sorted(pending.first)), ctx.now)
    _forget(ctx, topic.id)
    topic = replace(topic, snapshot_next=pending.next, snapshot_ms=ctx.now)
    ctx.table("topics").put(name, topic)
    count(ctx, snapshots=1)
    _remember(ctx, "snapshots", topic.id, local, snapshot, ctx.settings["snapshots_kept"])
    size = ctx.settings["cached_max"]
    for sub_name, sub in list(_subs(ctx, topic.id)):
        if not sub.replicate:
            continue
        _remember(ctx, "cached", sub.id, local, snapshot, size)
        if sub.mark >= local:
            changed = mark_moved(ctx, name, topic, sub_name, sub)
            if changed != sub:
                ctx.table("subs").put((topic.id, sub_name), changed)


def _forget(ctx: Context, topic_id: int) -> None:
    """The pending one ends, and nobody needs to answer any more."""
    ctx.table("pending").delete(topic_id)
    markers.remove(ctx, topic_id, markers.REQUEST)


# --- using ----------------------------------------------------------------------------------------


def mark_moved(
    ctx: Context, topic_name: str, topic: Topic, sub_name: str, sub: Sub, before: int = 0
) -> Sub:
    """The mark of a subscription, which is `sub.mark` by now, has moved; its row, to be written.

    Uses the highest snapshot that the mark has passed since it was at `before`: at format 1 of
    those that the cache holds, which lie far apart for a consumer that lags, from format 2 on of
    all that the topic keeps. Notifies the other regions, if there is something new. May write the
    row of the topic: an older copy of it must not be written.
    """
    if not sub.replicate or not _on(ctx):
        return sub
    cached = ctx.table("cached")
    passed = [(key[1], row) for key, row in cached.scan((sub.id, 0), (sub.id, sub.mark + 1))]
    newest = passed[-1] if passed else None
    if ctx.version >= FORMAT_KEPT:
        newest = _newest_kept(ctx, topic.id, before, sub.mark) or newest
    if newest is None:
        # A mark before everything has nothing to be told.
        if sub.mark:
            count(ctx, cache_misses=1)
        return sub
    for at, _ in passed:
        cached.delete((sub.id, at))
    position, snapshot = newest
    update = _advance(ctx, topic, sub_name, sub, position, snapshot)
    if update is None or _says_nothing_new(ctx, topic.id, sub, update):
        count(ctx, cache_hits=1)
        return sub
    markers.put(ctx, topic_name, markers.update_of(sub_name), update)
    count(ctx, cache_hits=1, updates=1)
    return replace(sub, update=snapshot.id)


def _newest_kept(
    ctx: Context, topic_id: int, before: int, mark: int
) -> tuple[int, Snapshot] | None:
    """Of the topic's snapshots behind `before` and up to `mark` the newest, with its position."""
    rows = ctx.table("snapshots").scan(
        (topic_id, before + 1), (topic_id, mark + 1), reverse=True, limit=1
    )
    return next(((key[1], snapshot) for key, snapshot in rows), None)


def repopulate(ctx: Context, topic: Topic, sub_id: int, sub: Sub) -> None:
    """Give a subscription the snapshots that its marks will pass: it was made, sought, or is
    replicated from now on. The newest that its mark has passed is among them, so that calling
    `mark_moved` afterwards tells the other regions at once."""
    cached, size = ctx.table("cached"), ctx.settings["cached_max"]
    for key, _ in list(cached.scan((sub_id, 0), (sub_id + 1, 0))):
        cached.delete(key)
    if not sub.replicate or not _on(ctx):
        return
    snapshots = ctx.table("snapshots")
    for key, snapshot in snapshots.scan(
        (topic.id, 0), (topic.id, sub.mark + 1), reverse=True, limit=1
    ):
        cached.put((sub_id, key[1]), snapshot)
        size -= 1
    spread = Spread(max(size, SIZE_MIN))
    for key, _ in snapshots.scan((topic.id, sub.mark + 1), (topic.id + 1, 0)):
        spread.add(key[1])
    kept = spread.positions()
    while len(kept) > size:
        # Only with the smallest cache: beside the one that was passed there is room for two.
        kept.remove(crowded(kept))
    for position in kept:
        cached.put((sub_id, position), snapshots[topic.id, position])


def dropped(ctx: Context, topic: Topic, sub_id: int, sub_name: str) -> None:
    """A subscription is replicated no longer, or is gone: nothing is to be told of it."""
    cached = ctx.table("cached")
    for key, _ in list(cached.scan((sub_id, 0), (sub_id + 1, 0))):
        cached.delete(key)
    markers.remove(ctx, topic.id, markers.update_of(sub_name))


def region_changed(ctx: Context) -> None:
    """The active regions are others than before: what waits for the old ones ends."""
    active = active_regions(ctx)
    for topic_id, pending in list(ctx.table("pending").scan()):
        if pending.participants != active:
            _forget(ctx, topic_id)


def reported(ctx: Context, name: str, topic: Topic, region: str, old: Vector, new: Vector) -> None:
    """Another region has more of the topic than it reported before: perhaps it did not have that
    when it answered last, so one more snapshot is due. May write the row of the topic."""
    near = (own_region(ctx), region)
    third = tuple(item for item in new if item[0] not in near)
    if ctx.version < FORMAT_REPORTED or covers(old, third):
        return
    _due(ctx, name, topic)
    pending: Pending | None = ctx.table("pending").get(topic.id)
    if pending is not None and pending.next >= topic.next:
        ctx.table("pending").put(topic.id, replace(pending, next=topic.next - 1))


def mode_changed(ctx: Context) -> None:
    """Nothing that is pending survives a change of the mode. What was completed stays true."""
    for topic_id, _ in list(ctx.table("pending").scan()):
        _forget(ctx, topic_id)


def switched(ctx: Context) -> None:
    """Replication or its mode was changed. Other regions receive what was acknowledged without
    snapshots with the next one, so that one is due in each topic."""
    if ctx.version < FORMAT_REPORTED or not _on(ctx):
        return
    for name, topic in list(ctx.table("topics").scan()):
        _due(ctx, name, topic)


# --- parts ----------------------------------------------------------------------------------------


def _due(ctx: Context, name: str, topic: Topic) -> None:
    """The next snapshot is taken without a new message."""
    if 1 < topic.next <= topic.snapshot_next:
        ctx.table("topics").put(name, replace(topic, snapshot_next=topic.next - 1))


def _on(view: Tables) -> bool:
    return bool(view.settings["enabled"]) and view.settings["mode"] == "snapshot"


def _subs(view: Tables, topic_id: int) -> Iterator[tuple[str, Sub]]:
    rows: Iterator[tuple[Any, Sub]]
    rows = view.table("subs").scan((topic_id, ""), (topic_id + 1, ""))
    for key, sub in rows:
        yield key[1], sub


def _others_took_part(view: Tables, topic: Topic, participants: tuple[str, ...]) -> bool:
    """Whether the last snapshot is one without a region that is active now: to that region nothing
    can be told, though no message comes."""
    last = view.table("snapshots").scan((topic.id, 0), (topic.id + 1, 0), reverse=True, limit=1)
    for _, snapshot in last:
        asked = {region for region, _ in snapshot.positions}
        return any(region not in asked for region in participants)
    return False


def _remember(
    ctx: Context, name: str, owner: int, position: int, snapshot: Snapshot, size: int
) -> None:
    """Put one into `cached` or `snapshots`. Older ones beyond it are of another life of the line:
    all go. Those that are too many go as `crowded` says."""
    table = ctx.table(name)
    newest = next(table.scan((owner, 0), (owner + 1, 0), reverse=True, limit=1), None)
    if newest is not None and newest[0][1] > position:
        for key, _ in list(table.scan((owner, 0), (owner + 1, 0))):
            table.delete(key)
    table.put((owner, position), snapshot)
    # More than one only after the setting was lowered; then a few at a time.
    for _ in range(2):
        if table.count((owner, 0), (owner + 1, 0)) <= size:
            return
        positions = [key[1] for key, _ in table.scan((owner, 0), (owner + 1, 0))]
        table.delete((owner, crowded(positions)))


def _advance(
    ctx: Context, topic: Topic, sub_name: str, sub: Sub, position: int, snapshot: Snapshot
) -> Advance | None:
    """What the others are told. None: what it excepts is more than one command can carry."""
    floors: dict[str, Floor] = {
        key[1]: floor for key, floor in ctx.table("floors").scan((sub.id, ""), (sub.id + 1, ""))
    }
    without: list[tuple[str, int, int]] = []
    messages = dict(vector_at(ctx, topic.id, position))
    for origin, _ in vector_of_rows(ctx, topic.id):
        seq = _with_hole(ctx, topic, origin, messages.get(origin, 0))
        without.extend(_missing(ctx, sub.id, origin, floors.get(origin, Floor()), seq))
        if len(without) > ROWS_MAX:
            return None
    base = tuple((origin, floor.base) for origin, floor in floors.items() if floor.base)
    return Advance(snapshot.id, sub_name, sub.kind, snapshot.positions, base, tuple(without))


def _with_hole(ctx: Context, topic: Topic, origin: str, seq: int) -> int:
    """`seq`, or the last of the hole right behind it: when the snapshot was completed that may have
    been the end of what was here, and other regions may have what never came here."""
    if not topic.gapped:
        return seq
    return int(ctx.table("holes").get((topic.id, origin, seq + 1), seq))


def _missing(ctx: Context, sub_id: int, origin: str, floor: Floor, seq: int) -> Ranges:
    """Of 1 to `seq` of one origin: what is not acknowledged."""
    missing: list[tuple[str, int, int]] = []
    acknowledged: list[tuple[int, int]] = []
    if floor.floor > floor.base:
        acknowledged.append((floor.base + 1, floor.floor))
    # One between two that are missing: a mark passes few of these.
    ranges = ctx.table("acks").scan(
        (sub_id, origin, 0), (sub_id, origin, seq + 1), limit=ROWS_MAX + 1
    )
    acknowledged.extend((key[2], last) for key, last in ranges)
    at = 1
    for first, last in acknowledged:
        if first > seq:
            break
        if first > at:
            missing.append((origin, at, first - 1))
        at = last + 1
    if at <= seq:
        missing.append((origin, at, seq))
    return tuple(missing)


def _says_nothing_new(ctx: Context, topic_id: int, sub: Sub, update: Advance) -> bool:
    """Whether the last update told as much: it was of this snapshot, of a newer one or (from format
    2 on) of one with the same positions, and excepted no more. After a seek back marks pass old
    snapshots again; to write those would put a lesser update in the place of one that a region may
    not have got yet."""
    last = markers.marker_of(ctx, topic_id, markers.update_of(update.sub))
    if last is None or not isinstance(last.what, Advance):
        return False
    told = last.what
    same = (told.positions, told.base) == (update.positions, update.base)
    if update.id > sub.update and not (same and ctx.version >= FORMAT_REPORTED):
        return False
    return not without_ranges(told.without, update.without)
