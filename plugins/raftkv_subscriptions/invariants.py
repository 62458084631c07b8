"""What must hold after every entry, checked from the rows alone.

Marks are derived anew from the sets, counters are counted, the index of positions is built again
from the messages, and every row that belongs to a topic, a subscription or a consumer is asked
whether that exists. It reads everything, so it is for tests, storms and `raftkv check`, never for a
command.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from raftkv.plugin import View

from .marks import is_ahead
from .ranges import covers
from .retention import free_to
from .rows import BLOCK, Backlog, Consumer, Floor, Marker, Snapshot, Stored, Sub, Topic, size_of
from .scope import meta_of, own_region
from .views import consumer_live

__all__ = ["violations"]

#: Tables whose keys begin with the id of a topic.
_OF_TOPICS: Final = (
    "messages",
    "vectors",
    "blocks",
    "holes",
    "latest",
    "subs",
    "markers",
    "marked",
    "snapshots",
    "ahead",
    "sizes",
)
#: What the setting cached_max can be at most.
CACHED_EVER: Final = 1_000


def violations(view: View) -> list[str]:
    """Invariants that are violated, in words. Topics and subscriptions are named by their ids."""
    state = _State(view)
    return [
        *_of_topics(state),
        *_of_messages(state),
        *_of_backlogs(state),
        *_of_sets(state),
        *_of_marks(state),
        *_of_hands(state),
        *_of_consumers(state),
        *_of_snapshots(state),
        *_of_places(state),
        *_of_meta(state),
    ]


class _State:
    """All rows, read once. `subs`: those of topics that exist, by their ids."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.topics: dict[str, Topic] = self.rows("topics")
        self.by_id = {topic.id: topic for topic in self.topics.values()}
        self.messages: dict[int, dict[int, Stored]] = {id: {} for id in self.by_id}
        for (id, position), stored in self.rows("messages").items():
            if id in self.messages:
                self.messages[id][position] = stored
        self.subs: dict[int, tuple[Topic, Sub]] = {}
        for (id, _), sub in self.rows("subs").items():
            if id in self.by_id:
                self.subs[sub.id] = (self.by_id[id], sub)
        self.floors: dict[tuple[int, str], Floor] = self.rows("floors")
        self.acks: dict[tuple[int, str, int], int] = self.rows("acks")
        self.consumers: dict[int, Consumer] = self.rows("consumers")
        self.locks: dict[tuple[int, int], int] = self.rows("locks")
        self.returned: dict[tuple[int, int], int] = self.rows("returned")

    def rows(self, name: str) -> dict[Any, Any]:
        return dict(self.view.table(name).scan())


# --- topics ---------------------------------------------------------------------------------------


def _of_topics(state: _State) -> list[str]:
    """Names, and what is kept at which positions."""
    found = []
    if state.rows("names") != {topic.id: name for name, topic in state.topics.items()}:
        found.append("the names of topics are not those of the topics")
    for topic in state.by_id.values():
        rows = state.messages[topic.id]
        whole = sorted(position for position in rows if position >= topic.first)
        if whole != list(range(topic.first, topic.next)):
            found.append(f"topic {topic.id} has other messages than {topic.first}..{topic.next}")
        kept = len(rows) - len(whole)
        if kept != topic.kept or (kept and not topic.compacted):
            found.append(f"topic {topic.id} keeps {kept} below its first, not {topic.kept}")
        size = sum(size_of(stored.message) for stored in rows.values())
        if size != topic.bytes:
            found.append(f"topic {topic.id} has {size} bytes, not {topic.bytes}")
        found += _of_latest(state, topic)
    return found


def _of_latest(state: _State, topic: Topic) -> list[str]:
    latest = {key[1]: at for key, at in state.rows("latest").items() if key[0] == topic.id}
    last: dict[str, int] = {}
    if topic.compacted:
        for position, stored in sorted(state.messages[topic.id].items()):
            if stored.message.key:
                last.pop(stored.message.key, None)
                if stored.message.body:
                    last[stored.message.key] = position
    if latest != last or len(latest) != topic.keys:
        return [f"topic {topic.id} does not know the last message of each key"]
    return []


def _of_messages(state: _State) -> list[str]:
    """Vectors, blocks, holes."""
    found: list[str] = []
    vectors, blocks, holes = (state.rows(name) for name in ("vectors", "blocks", "holes"))
    own = own_region(state.view)
    for topic in state.by_id.values():
        id = topic.id
        ends: dict[str, int] = {}
        for (other, origin, first), last in sorted(holes.items()):
            if other == id:
                if last < first or ends.get(origin, -1) >= first - 1:
                    found.append(f"topic {id}: its holes of {origin} are in no normal form")
                ends[origin] = last
        if bool(ends) and not topic.gapped:
            found.append(f"topic {id} has holes and does not know it")
        numbers: dict[str, int] | None = None
        for position in range(topic.first, topic.next):
            block, behind = divmod(position - 1, BLOCK)
            if behind == 0 or numbers is None:
                row = blocks.get((id, block))
                if row is None or (numbers is not None and dict(row) != numbers):
                    found.append(f"topic {id}: block {block} is {row}, not {numbers}")
                numbers = dict(row or ())
            stored = state.messages[id].get(position)
            if stored is not None:
                if stored.seq <= numbers.get(stored.origin, 0):
                    found.append(f"topic {id}: position {position} is out of the origin's order")
                numbers[stored.origin] = stored.seq
        here = {key[1]: seq for key, seq in vectors.items() if key[0] == id}
        if here.get(own, 0) != topic.seq:
            found.append(f"topic {id} has {here.get(own, 0)} own messages, not {topic.seq}")
        if numbers is not None:
            for origin, last in ends.items():
                numbers[origin] = max(last, numbers.get(origin, 0))
            if numbers != here:
                found.append(f"topic {id} has {numbers}, and vectors say {here}")
    return found


def _of_backlogs(state: _State) -> list[str]:
    """What the counted bytes say of each block, and where the backlogs begin."""
    found: list[str] = []
    sizes, fronts = state.rows("sizes"), state.rows("fronts")
    backlogs: dict[int, Backlog] = state.rows("backlogs")
    for id in [id for id in (*backlogs, *fronts) if id not in state.by_id]:
        found.append(f"the bytes of topic {id} are counted, which does not exist")
    for topic in state.by_id.values():
        row = backlogs.get(topic.id)
        if row is None:
            continue
        # The bytes of what comes behind each position.
        behind, size = {topic.next - 1: 0}, 0
        for position in range(topic.next - 1, max(topic.first, row.start) - 1, -1):
            size += size_of(state.messages[topic.id][position].message)
            behind[position - 1] = size
        for position in behind:
            block, at = divmod(position, BLOCK)
            if at == 0 and position + 1 < topic.next and position >= topic.first:
                before = sizes.get((topic.id, block), -1)
                if row.total - before != behind[position]:
                    found.append(f"topic {topic.id}: {before} bytes are before block {block}")
        front = fronts.get(topic.id)
        if front is None or front[0] < topic.first - 1:
            continue
        free = free_to(state.view, topic)
        if front[0] > free or row.total - front[1] != behind.get(front[0], -1):
            found.append(f"topic {topic.id}: its backlog begins after {front}, not {free}")
    return found


# --- subscriptions --------------------------------------------------------------------------------


def _of_sets(state: _State) -> list[str]:
    """The normal form of floors and ranges; the rows of `ahead`."""
    found = []
    counted: Counter[int] = Counter()
    ends: dict[tuple[int, str], int] = {}
    for (id, origin, first), last in sorted(state.acks.items()):
        if id not in state.subs:
            continue
        counted[id] += 1
        floor = state.floors.get((id, origin), Floor()).floor
        if last < first or first <= max(floor, ends.get((id, origin), -1)) + 1:
            found.append(f"subscription {id}: {origin} {first}..{last} is in no normal form")
        ends[id, origin] = last
    for (id, origin), row in state.floors.items():
        if id in state.subs and not 0 <= row.base <= row.floor:
            found.append(f"subscription {id}: the floor of {origin} is below its base")
    ahead = state.rows("ahead")
    for id, (topic, sub) in state.subs.items():
        if counted[id] != sub.ranges:
            found.append(f"subscription {id} has {counted[id]} ranges, not {sub.ranges}")
        if is_ahead(state.view, topic.id, id) and (topic.id, id) not in ahead:
            found.append(f"subscription {id} is ahead of what is here, and not noted")
    return found


def _of_marks(state: _State) -> list[str]:
    """A mark is what follows from the set; while it is being moved it may be lower."""
    found = []
    advancing = state.rows("advancing")
    for id, (topic, sub) in state.subs.items():
        rows, mark = state.messages[topic.id], topic.first - 1
        while mark + 1 < topic.next:
            stored = rows.get(mark + 1)
            if stored is None or not covers(state.view, id, stored.origin, stored.seq):
                break
            mark += 1
        if sub.mark > mark or (sub.mark < mark and id not in advancing):
            found.append(f"subscription {id}: its mark is {sub.mark}, not {mark}")
        if not sub.mark < sub.cursor <= topic.next:
            found.append(f"subscription {id}: mark {sub.mark}, cursor {sub.cursor}")
    return found


def _of_hands(state: _State) -> list[str]:
    """Shared: every wanted message below the cursor is in exactly one place."""
    found = []
    places: dict[int, Counter[int]] = {id: Counter() for id in state.subs}
    held: Counter[int] = Counter()
    for (consumer, position), deliveries in state.locks.items():
        held[consumer] += 1
        row = state.consumers.get(consumer)
        if row is None or deliveries < 1:
            found.append(f"consumer {consumer} does not exist, and holds {position}")
        elif row.sub in state.subs and state.subs[row.sub][1].epoch == row.epoch:
            places[row.sub][position] += 1
    for id, row in state.consumers.items():
        if held[id] != row.held:
            found.append(f"consumer {id} holds {held[id]}, not {row.held}")
    for id, (topic, sub) in state.subs.items():
        locked = places[id].total()
        if locked != sub.locked or (locked and sub.kind != "shared"):
            found.append(f"subscription {id}: {locked} are in hands, not {sub.locked}")
        if sub.kind != "shared":
            continue
        for position in [at for at in places[id] if at >= sub.cursor]:
            found.append(f"subscription {id}: {position} is in hands, beyond the cursor")
        for position in range(max(sub.mark + 1, topic.first), sub.cursor):
            stored = state.messages[topic.id].get(position)
            if stored is None or covers(state.view, id, stored.origin, stored.seq):
                continue
            n = places[id][position] + ((id, position) in state.returned)
            if n != 1:
                found.append(f"subscription {id}: {position} is in {n} places")
    return found


# --- consumers ------------------------------------------------------------------------------------


def _of_consumers(state: _State) -> list[str]:
    """Who is attached to what, by whom, and who is active."""
    found = []
    attached, owners = state.rows("attached"), state.rows("owners")
    waiting = state.rows("ended_consumers")
    ended_nodes = state.rows("ended_nodes")
    counted: Counter[int] = Counter()
    for id, row in state.consumers.items():
        counted[row.sub] += not row.ended_ms
        place = ((row.sub, id) in attached, (row.node, row.incarnation, id) in owners)
        if place != (not row.ended_ms, not row.ended_ms):
            found.append(f"consumer {id} is {place}, ended {row.ended_ms}")
        if bool(row.ended_ms) != (id in waiting):
            found.append(f"consumer {id} has ended, or not, and is to be swept, or not")
        member = state.view.members.get(row.node)
        up = member is not None and member.up and member.incarnation == row.incarnation
        if not row.ended_ms and not up and (row.node, row.incarnation) not in ended_nodes:
            found.append(f"consumer {id} is of a life that is over, and not noted")
    for name, rows in (("attached", attached), ("owners", owners)):
        if len(rows) != counted.total():
            found.append(f"{name} has rows of consumers that do not exist")
    for id, (_, sub) in state.subs.items():
        if counted[id] != sub.consumers:
            found.append(f"subscription {id} has {counted[id]} consumers, not {sub.consumers}")
        found += _of_active(state, sub)
    return found


def _of_active(state: _State, sub: Sub) -> list[str]:
    live = [
        (row.priority, id)
        for id, row in state.consumers.items()
        if row.sub == sub.id and consumer_live(state.view, row)
    ]
    if sub.kind == "exclusive" and len(live) > 1:
        return [f"the exclusive subscription {sub.id} has {len(live)} consumers"]
    active = state.consumers.get(sub.active)
    if sub.active and (active is None or active.sub != sub.id or sub.kind == "shared"):
        return [f"subscription {sub.id}: {sub.active} cannot be active"]
    # One whose node's life is over may still be: `Sweep` finds the next.
    if sub.kind != "shared" and (not sub.active or consumer_live(state.view, active)):
        first = min(live, default=(0, 0))[1]
        if first != sub.active:
            return [f"subscription {sub.id}: {sub.active} is active, not {first}"]
    return []


# --- snapshots ------------------------------------------------------------------------------------


def _of_snapshots(state: _State) -> list[str]:
    found = []
    marked = state.rows("marked")
    markers: dict[tuple[int, int], Marker] = state.rows("markers")
    places = {(id, n) for (id, _), n in marked.items() if id in state.by_id}
    here = {key for key in markers if key[0] in state.by_id}
    if places != here or len(places) != sum(id in state.by_id for id, _ in marked):
        found.append("the markers are not those that are marked")
    for (id, n), marker in markers.items():
        if id in state.by_id:
            topic = state.by_id[id]
            if n >= topic.marker or marker.position >= topic.next:
                found.append(f"topic {id}: marker {n} is beyond its end")
    cached: dict[tuple[int, int], Snapshot] = state.rows("cached")
    counted = Counter(id for id, _ in cached)
    for id, (_, sub) in state.subs.items():
        # The setting may have been lowered since: it counts from the next snapshot on.
        if counted[id] > CACHED_EVER:
            found.append(f"subscription {id} has {counted[id]} cached snapshots")
        if counted[id] and not sub.replicate:
            found.append(f"subscription {id} has cached snapshots, and is not replicated")
    return found


# --- all ------------------------------------------------------------------------------------------


def _of_places(state: _State) -> list[str]:
    """Rows of subscriptions and topics that do not exist are only those that will be swept."""
    found = []
    subs = {**state.subs, **state.rows("dropped_subs")}
    topics = {**state.by_id, **state.rows("dropped_topics")}
    gone = {sub.id: None for (id, _), sub in state.rows("subs").items() if id not in state.by_id}
    for name in ("floors", "acks", "returned", "cached", "attached"):
        for key, _ in state.view.table(name).scan():
            if key[0] not in subs and key[0] not in gone:
                found.append(f"{name} has rows of subscription {key[0]}, which does not exist")
                break
    for name in _OF_TOPICS:
        for key, _ in state.view.table(name).scan():
            if key[0] not in topics:
                found.append(f"{name} has rows of topic {key[0]}, which does not exist")
                break
    expected = {sub.id: key for key, sub in state.rows("subs").items()}
    if state.rows("sub_names") != expected:
        found.append("the names of subscriptions are not those of the subscriptions")
    for id in state.rows("pending"):
        if id not in state.by_id:
            found.append(f"a snapshot of topic {id} is pending, which does not exist")
    regions = state.rows("regions")
    for region, id in state.rows("fetched"):
        if region not in regions or id not in topics:
            found.append(f"{region} has fetched topic {id}, and one of them does not exist")
    return found


def _of_meta(state: _State) -> list[str]:
    meta = meta_of(state.view)
    found = []
    if meta.topics != len(state.topics):
        found.append(f"there are {len(state.topics)} topics, not {meta.topics}")
    consumers = sum(not row.ended_ms for row in state.consumers.values())
    if meta.consumers != consumers:
        found.append(f"there are {consumers} consumers, not {meta.consumers}")
    nexts = (meta.next_topic, meta.next_sub, meta.next_consumer)
    highest = (
        max(state.by_id, default=0),
        max(state.subs, default=0),
        max(state.consumers, default=0),
    )
    if any(number <= high for number, high in zip(nexts, highest, strict=True)):
        found.append("an id was used that comes next")
    return found
