"""What regions may know, by the test's own account of what was acknowledged.

Everything here is worked out anew from the rows, message by message and with sets, by nobody's code
but its own: it is what the plugin's vectors, ranges and marks are compared with.

The laws, for each region, topic and subscription:

- a region has each message once, those of one origin in their order and without a gap, and each is
  what its origin published;
- what is acknowledged somewhere was acknowledged by a consumer, of whichever region;
- what a mark covers was acknowledged, or was not wanted when the subscription was made (or sought:
  there the region's own base counts, which others must not take over);
- a mark is as far as it can be;
- whoever has everything up to a snapshot's position here has everything up to its positions there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from raftkv.plugin import ABSENT, Change

if TYPE_CHECKING:
    from raftkv.node import Node
    from tests.plugins.raftkv_subscriptions.region import Region

__all__ = ["Account", "Id", "ids_of", "judge", "texts_of"]

#: Of a message, the same in every region: its origin and its number there.
Id = tuple[str, int]


def texts_of(messages: Iterable[Any]) -> list[str]:
    """The bodies of received messages."""
    return [message.body.decode() for message in messages]


def ids_of(region: Region, topic_id: int, last: int | None = None) -> list[Id]:
    """The messages of a topic in the order of their positions (up to `last`)."""
    return [
        (row.origin, row.seq)
        for (each, position), row in region.table("messages").items()
        if each == topic_id and (last is None or position <= last)
    ]


class Account:
    """What consumers have acknowledged, and what subscriptions did not want when they were made."""

    def __init__(self) -> None:
        self.acked: defaultdict[tuple[str, str], set[Id]] = defaultdict(set)
        self.unwanted: defaultdict[tuple[str, str], set[Id]] = defaultdict(set)
        #: (region, topic, subscription) that were moved there by hand.
        self.sought: set[tuple[str, str, str]] = set()
        #: Topics with bodies that do not say what they are.
        self.strange: set[str] = set()

    def acknowledges(self, sub: str, messages: Iterable[Any]) -> None:
        """Somebody is about to."""
        for message in messages:
            self.acked[message.topic, sub].add((message.origin, message.seq))

    def begins(self, region: Region, topic: str, sub: str) -> None:
        """It was just made there: what it does not want, it does not want anywhere."""
        topic_id = region.table("topics")[topic].id
        self.unwanted[topic, sub] |= self.base(region, topic_id, sub)

    def wrongs(self, region: str, node: Node, change: Change) -> list[object]:
        """What a changed row of `floors` or `acks` says, and nobody has said."""
        view = node.machine.view("subscriptions")
        sub_id, origin = change.key[:2]
        topic_id, sub = view.table("sub_names").get(sub_id, (0, ""))
        topic = view.table("names").get(topic_id, "")
        if change.table == "acks":
            first, last = change.key[2], change.new
        else:
            known = 0 if change.old is ABSENT else change.old.floor
            first, last = max(known, change.new.base) + 1, change.new.floor
        acked = self.acked[topic, sub]
        return [
            (region, topic, sub, origin, seq)
            for seq in range(first, last + 1)
            if (origin, seq) not in acked
        ]

    def known(self, region: Region, topic: str, sub: str) -> frozenset[Id] | None:
        """What is acknowledged by the region's rows; None: the subscription is not there."""
        row = region.table("topics").get(topic)
        found = None if row is None else region.table("subs").get((row.id, sub))
        if found is None:
            return None
        known: set[Id] = set()
        for (sub_id, origin), floor in region.table("floors").items():
            if sub_id == found.id:
                known |= {(origin, seq) for seq in range(floor.base + 1, floor.floor + 1)}
        for (sub_id, origin, first), last in region.table("acks").items():
            if sub_id == found.id:
                known |= {(origin, seq) for seq in range(first, last + 1)}
        return frozenset(known)

    def base(self, region: Region, topic_id: int, sub: str) -> set[Id]:
        """What is not wanted there and was not acknowledged."""
        found = region.table("subs")[topic_id, sub]
        return {
            (origin, seq)
            for (sub_id, origin), floor in region.table("floors").items()
            if sub_id == found.id
            for seq in range(1, floor.base + 1)
        }


def judge(regions: Mapping[str, Region], account: Account) -> None:
    """Raises AssertionError for the first law that is broken."""
    for region in regions.values():
        if not region.running:
            continue
        for topic, row in region.table("topics").items():
            _judge_log(region, topic, row, account)
            for (topic_id, sub), found in region.table("subs").items():
                if topic_id == row.id:
                    _judge_sub(region, topic, row, sub, found, account)
            _judge_snapshots(regions, region, topic, row)


def _judge_log(region: Region, topic: str, row: Any, account: Account) -> None:
    where = (region.name, topic)
    messages = {
        position: stored
        for (topic_id, position), stored in region.table("messages").items()
        if topic_id == row.id
    }
    ids = [(stored.origin, stored.seq) for stored in messages.values()]
    assert len(set(ids)) == len(ids), where
    last: dict[str, int] = {}
    holes = any(topic_id == row.id for topic_id, _, _ in region.table("holes"))
    for position, stored in messages.items():
        told = stored.message.body == f"{stored.origin}{stored.seq}".encode()
        assert told or topic in account.strange, (where, position)
        expected = last.get(stored.origin, stored.seq - 1) + 1
        exact = not holes and not row.kept
        assert stored.seq == expected if exact else stored.seq >= expected, (where, position)
        last[stored.origin] = stored.seq
    for origin, seq in last.items():
        assert region.table("vectors")[row.id, origin] >= seq, (where, origin)
    if messages and not row.kept:
        assert list(messages) == list(range(row.first, row.next)), where


def _judge_sub(
    region: Region, topic: str, row: Any, sub: str, found: Any, account: Account
) -> None:
    where = (region.name, topic, sub)
    known = account.known(region, topic, sub)
    assert known is not None
    acked, unwanted = account.acked[topic, sub], account.unwanted[topic, sub]
    assert known <= acked, (where, "nobody acknowledged", sorted(known - acked))
    base = account.base(region, row.id, sub)
    if where not in account.sought:
        assert base <= unwanted | acked, (where, "base", sorted(base - unwanted - acked))
    mark = row.first - 1
    for (topic_id, position), stored in region.table("messages").items():
        if topic_id == row.id and position > mark:
            if (stored.origin, stored.seq) not in known | base:
                break
            mark = position
    if found.id not in region.table("advancing"):
        assert found.mark == mark, (where, found.mark, mark)
    assert found.mark <= mark, (where, "skips", found.mark, mark)


def _judge_snapshots(regions: Mapping[str, Region], region: Region, topic: str, row: Any) -> None:
    if row.first != 1:
        return
    rows = {
        **region.table("snapshots"),
        **{(row.id, at): each for (_, at), each in _cached(region, row.id).items()},
    }
    for (topic_id, position), snapshot in rows.items():
        if topic_id != row.id:
            continue
        here = set(ids_of(region, row.id, position))
        for name, there in snapshot.positions:
            other = regions.get(name)
            theirs = None if other is None or not other.running else other.table("topics")[topic]
            if other is None or theirs is None or theirs.first != 1:
                continue
            covered = set(ids_of(other, theirs.id, there))
            where = (region.name, topic, position, name, there)
            assert covered <= here, (where, "a snapshot skips", sorted(covered - here))


def _cached(region: Region, topic_id: int) -> dict[tuple[int, int], Any]:
    subs = {sub.id for (each, _), sub in region.table("subs").items() if each == topic_id}
    return {key: row for key, row in region.table("cached").items() if key[0] in subs}
