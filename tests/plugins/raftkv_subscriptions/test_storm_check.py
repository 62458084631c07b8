"""The checks of storms of regions, on histories made by hand: each rule is broken once, and found.

Tables are plain dictionaries here, so that they can say what the plugin never would.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from raftkv_subscriptions import BacklogFull, Subscriptions
from raftkv_subscriptions.commands import (
    Ack,
    AckDelivered,
    Acked,
    AckTo,
    Answered,
    Attach,
    Attached,
    Declared,
    DeclareTopic,
    Deliver,
    Delivered,
    Detach,
    Merge,
    Merged,
    Publish,
    Published,
    Released,
    ReleaseDelivered,
    Seek,
    SnapshotAnswer,
    SnapshotAnswered,
    Sought,
    Subscribe,
    Subscribed,
    Sweep,
    Swept,
    Take,
    Taken,
    Update,
)
from raftkv_subscriptions.rows import (
    Answer,
    Backlog,
    Copy,
    Floor,
    Hole,
    Marker,
    Message,
    Meta,
    Region,
    Snapshot,
    Stored,
    Sub,
    Topic,
)
from raftkv_subscriptions.testing.storm_check import check_step
from raftkv_subscriptions.testing.storm_ledger import Ledger, Step
from raftkv_subscriptions.testing.storm_rules import (
    BEGIN,
    FULL,
    HANDS,
    HOLES,
    KEPT,
    MARKS,
    ONCE,
    ONLY,
    RETENTION,
    SNAPSHOTS,
)

NODE = SimpleNamespace(up=True, incarnation=1)


class FakeTable(dict[Any, Any]):
    """As a table of the plugin is read."""

    def scan(
        self, start: Any = None, end: Any = None, *, reverse: bool = False, limit: int = 0
    ) -> Iterator[tuple[Any, Any]]:
        keys = sorted(key for key in self if start is None or start <= key < end)
        if reverse:
            keys.reverse()
        yield from ((key, self[key]) for key in (keys[:limit] if limit else keys))


class FakeRegion:
    """A region whose tables and answers a test makes up."""

    version = Subscriptions.version

    def __init__(self, name: str, ledger: Ledger) -> None:
        self.name = name
        self.ledger = ledger
        self.index = 0
        self.tables: dict[str, FakeTable] = {}
        self.table("meta")["state"] = Meta(region=name)
        self.members = {"n1": NODE}
        self.others: dict[str, FakeRegion] = {}

    def table(self, name: str) -> FakeTable:
        return self.tables.setdefault(name, FakeTable())

    def did(self, command: Any, result: Any, refusal: Exception | None = None) -> list[str]:
        """The names of the rules that the step breaks."""
        self.index += 1
        step = Step(
            region=self.name,
            index=self.index,
            now=0,
            command=command,
            origin=("n1", 1),
            members=self.members,
            settings={"enabled": True, "mode": "vector"},
            tables=self,
            result=result,
            refusal=refusal,
        )
        return sorted({check for check, _ in check_step(step, self.ledger)})

    def topic(self, **changed: Any) -> None:
        row = self.table("topics").get("t", Topic(1))
        values = {name: getattr(row, name) for name in row.__struct_fields__}
        self.table("topics")["t"] = Topic(**{**values, **changed})

    @property
    def next(self) -> int:
        return int(self.table("topics")["t"].next)

    def declared(self) -> list[str]:
        self.topic()
        return self.did(DeclareTopic("t"), Declared(1, True, False))

    def put(self, origin: str, seq: int, message: Message) -> None:
        self.table("messages")[1, self.next] = Stored(origin, seq, message, 0, 0)
        self.table("vectors")[1, origin] = seq
        self.topic(next=self.next + 1)

    def published(self, seq: int, body: bytes = b"m", said: bytes | None = None) -> list[str]:
        at = self.next
        self.put(self.name, seq, Message(body))
        command = Publish("t", (Message(body if said is None else said),))
        return self.did(command, Published(at, at, self.name, seq))

    def delivered(self, origin: str, seq: int, body: bytes = b"m", source: str = "") -> list[str]:
        self.put(origin, seq, Message(body))
        copy = Copy(origin, seq, Message(body), 0)
        return self.did(Deliver("t", source or origin, (copy,)), Delivered(1, 0, self.next - 1))

    def sub(self, **changed: Any) -> None:
        row = self.table("subs").get((1, "s"), Sub(1))
        values = {name: getattr(row, name) for name in row.__struct_fields__}
        self.table("subs")[1, "s"] = Sub(**{**values, **changed, "changed": self.index + 1})

    def subscribed(self, **changed: Any) -> list[str]:
        """From the first message on."""
        self.sub(replicate=True, **changed)
        mark = self.table("subs")[1, "s"].mark
        return self.did(Subscribe("t", "s", initial="earliest"), Subscribed(1, True, mark))

    def floor(self, origin: str, floor: int, base: int = 0, mask: int = 0) -> None:
        self.table("floors")[1, origin] = Floor(base, floor, mask)

    def acked(self, *positions: int, ask: bool = True) -> list[str]:
        if ask:
            self.ledger.ask(self.name, "t", "s", *positions)
        return self.did(Ack("t", "s", positions), Acked(len(positions), 0))


def two() -> tuple[FakeRegion, FakeRegion]:
    """Two regions; "a" has published three messages, of which "b" has two, and then its own."""
    ledger = Ledger()
    a, b = FakeRegion("a", ledger), FakeRegion("b", ledger)
    for region in (a, b):
        assert region.declared() == []
    for seq in (1, 2, 3):
        assert a.published(seq, b"a%d" % seq) == []
    for seq in (1, 2):
        assert b.delivered("a", seq, b"a%d" % seq) == []
    assert b.published(1, b"b1") == []
    return a, b


def one_sub() -> tuple[FakeRegion, FakeRegion]:
    """And a subscription in "a" from the first message on."""
    a, b = two()
    assert a.subscribed() == []
    return a, b


# --- messages -------------------------------------------------------------------------------------


def test_messages_that_arrive_in_order_are_right() -> None:
    _, b = two()
    assert b.delivered("a", 3, b"a3") == []


def test_a_message_that_comes_twice_is_found() -> None:
    _, b = two()
    assert ONCE in b.delivered("a", 2, b"a2")


def test_a_message_with_other_content_is_found() -> None:
    a, b = two()
    assert ONCE in b.delivered("a", 3, b"other")
    assert ONCE in a.published(4, b"kept", said=b"said")


def test_a_message_that_nobody_published_is_found() -> None:
    _, b = two()
    assert ONCE in b.delivered("a", 4, b"a4")


def test_a_gap_without_a_hole_is_found() -> None:
    a, b = two()
    assert a.published(4, b"a4") == []
    a.topic(first=4)
    assert a.did(Sweep(("t",)), Swept(1, False)) == []
    assert ONCE in b.delivered("a", 4, b"a4")


def test_a_hole_that_was_told_is_right() -> None:
    a, b = two()
    assert a.published(4, b"a4") == []
    a.topic(first=4)
    assert a.did(Sweep(("t",)), Swept(1, False)) == []
    b.table("holes")[1, "a", 3] = 3
    b.topic(gapped=True)
    b.put("a", 4, Message(b"a4"))
    parts = (Hole("a", 3, 3), Copy("a", 4, Message(b"a4"), 0))
    assert b.did(Deliver("t", "a", parts), Delivered(1, 0, 4)) == []


def test_a_hole_that_the_source_could_fill_is_found() -> None:
    _, b = two()
    b.table("holes")[1, "a", 3] = 3
    b.table("vectors")[1, "a"] = 3
    b.topic(gapped=True)
    assert b.did(Deliver("t", "a", (Hole("a", 3, 3),)), Delivered(0, 0, 3)) == [HOLES]


def test_retention_that_does_not_wait_for_a_mark_is_found() -> None:
    a, _ = one_sub()
    a.topic(first=2)
    assert a.did(Sweep(("t",)), Swept(1, False)) == [RETENTION]


def test_retention_that_does_not_wait_for_a_region_is_found() -> None:
    a, _ = two()
    a.table("regions")["b"] = Region()
    a.topic(first=3)
    assert a.did(Sweep(("t",)), Swept(1, False)) == []
    a.topic(first=4)
    assert a.did(Sweep(("t",)), Swept(1, False)) == [RETENTION]


# --- acknowledgements -----------------------------------------------------------------------------


def test_an_acknowledgement_is_right() -> None:
    a, _ = one_sub()
    a.floor("a", 1)
    a.sub(mark=1)
    assert a.acked(1) == []
    a.table("acks")[1, "a", 3] = 3
    a.sub(ranges=1)
    assert a.acked(3) == []


def test_an_acknowledgement_that_nobody_asked_for_is_found() -> None:
    a, _ = one_sub()
    a.floor("a", 1)
    a.sub(mark=1)
    assert a.acked(1, ask=False) == [ONLY]


def test_more_than_what_was_acknowledged_is_found() -> None:
    a, _ = one_sub()
    a.floor("a", 2)
    a.sub(mark=2)
    assert a.acked(1) == [ONLY]


def test_an_acknowledgement_that_gets_lost_is_found() -> None:
    a, _ = one_sub()
    a.floor("a", 1)
    a.sub(mark=1)
    assert a.acked(1, 2) == [KEPT]


def test_a_cumulative_acknowledgement_takes_all_up_to_there() -> None:
    a, _ = one_sub()
    a.ledger.ask_to("a", "t", "s", 2)
    a.floor("a", 2)
    a.sub(mark=2)
    assert a.did(AckTo("t", "s", 2), Acked(2, 2)) == []
    assert a.did(AckTo("t", "s", 3), Acked(0, 2)) == [KEPT, ONLY]


def test_a_set_that_shrinks_is_found() -> None:
    a, _ = one_sub()
    a.floor("a", 2)
    a.sub(mark=2)
    assert a.acked(1, 2) == []
    a.floor("a", 1)
    a.sub(mark=2)
    assert KEPT in a.acked(1)


def test_a_mark_over_a_wanted_message_is_found() -> None:
    a, _ = one_sub()
    a.floor("a", 1)
    a.sub(mark=2)
    assert a.acked(1) == [MARKS]


def test_a_mark_that_goes_back_is_found() -> None:
    a, _ = one_sub()
    a.floor("a", 2)
    a.sub(mark=2)
    assert a.acked(1, 2) == []
    a.sub(mark=1)
    assert a.acked(1) == [MARKS]


# --- beginnings -----------------------------------------------------------------------------------


def test_a_wrong_beginning_is_found() -> None:
    a, _ = two()
    a.floor("a", 1, base=1)
    assert BEGIN in a.subscribed(mark=1)


def test_latest_begins_behind_what_is_there() -> None:
    a, _ = two()
    a.floor("a", 3, base=3)
    a.sub(mark=3)
    assert a.did(Subscribe("t", "s", initial="latest"), Subscribed(1, True, 3)) == []


def test_a_seek_begins_at_its_position_and_masks_what_was() -> None:
    a, _ = one_sub()
    a.floor("a", 2)
    a.sub(mark=2)
    assert a.acked(1, 2) == []
    a.floor("a", 1, base=1, mask=2)
    a.sub(mark=1, epoch=1)
    assert a.did(Seek("t", "s", 1), Sought(1, 1)) == []


def test_a_seek_that_forgets_the_mask_is_found() -> None:
    a, _ = one_sub()
    a.floor("a", 2)
    a.sub(mark=2)
    assert a.acked(1, 2) == []
    a.floor("a", 1, base=1)
    a.sub(mark=1, epoch=1)
    assert a.did(Seek("t", "s", 1), Sought(1, 1)) == [BEGIN]


def test_an_acknowledgement_of_before_a_seek_that_counts_is_found() -> None:
    a, _ = one_sub()
    a.sub(epoch=1)
    a.ledger.ask("a", "t", "s", 1)
    assert a.did(Seek("t", "s", 0), Sought(0, 1)) == []
    old = AckDelivered("t", "s", (1,), epoch=0)
    assert a.did(old, Acked(0, 0)) == []
    a.floor("a", 1)
    a.sub(mark=1)
    assert ONLY in a.did(old, Acked(1, 1))


# --- what others say ------------------------------------------------------------------------------


def merged(b: FakeRegion, ranges: tuple[Any, ...], **more: Any) -> list[str]:
    command = Merge("t", "a", "s", "exclusive", more.get("base", ()), ranges)
    created = (1, "s") not in b.tables.get("seen", {})
    return b.did(command, Merged(created, 1, b.table("subs")[1, "s"].mark, more.get("why", "")))


def test_a_merge_takes_what_the_source_has() -> None:
    a, b = one_sub()
    a.floor("a", 1)
    a.sub(mark=1)
    assert a.acked(1) == []
    b.floor("a", 1)
    b.sub(replicate=True, mark=1)
    assert merged(b, (("a", 1, 1),)) == []


def test_a_merge_of_what_the_source_never_had_is_found() -> None:
    _, b = one_sub()
    b.floor("a", 1)
    b.sub(replicate=True, mark=1)
    assert merged(b, (("a", 1, 1),)) == [ONLY]


def test_a_merge_with_a_base_that_nobody_had_is_found() -> None:
    a, b = one_sub()
    a.floor("a", 1)
    a.sub(mark=1)
    assert a.acked(1) == []
    b.floor("a", 2, base=2)
    b.sub(replicate=True, mark=2)
    assert merged(b, (("a", 1, 1),), base=(("a", 2),)) == [BEGIN]


def test_a_merge_that_is_not_taken_is_found() -> None:
    a, b = one_sub()
    a.floor("a", 1)
    a.sub(mark=1)
    assert a.acked(1) == []
    b.sub(replicate=True)
    assert merged(b, (("a", 1, 1),)) == [KEPT]


def test_a_full_set_leaves_out_what_would_be_a_range_more() -> None:
    a, b = one_sub()
    a.floor("a", 3)
    a.sub(mark=3)
    assert a.acked(1, 2, 3) == []
    b.sub(replicate=True)
    assert merged(b, (("a", 3, 3),), why="too many ranges") == []
    # This one touches the floor.
    assert merged(b, (("a", 1, 1),), why="too many ranges") == [KEPT]


def test_a_set_knows_when_each_message_came_into_it() -> None:
    a, _ = one_sub()
    sub = a.ledger.living["a", "t", "s"]
    a.floor("a", 1)
    a.sub(mark=1)
    assert a.acked(1) == []
    first = a.index
    a.floor("a", 2)
    a.sub(mark=2)
    assert a.acked(2) == []
    assert [sub.had(("a", seq), first) for seq in (1, 2, 3)] == [True, False, False]
    assert [sub.had(("a", seq), a.index) for seq in (1, 2, 3)] == [True, True, False]


def test_what_is_not_replicated_takes_nothing() -> None:
    a, b = one_sub()
    a.floor("a", 1)
    a.sub(mark=1)
    assert a.acked(1) == []
    b.sub(replicate=False)
    assert b.did(Subscribe("t", "s", initial="earliest"), Subscribed(1, True, 0)) == []
    b.floor("a", 1)
    b.sub(mark=1)
    assert merged(b, (("a", 1, 1),)) == [ONLY]


# --- snapshots ------------------------------------------------------------------------------------


def regions(*names: str) -> FakeRegion:
    """The first of these, which knows the others; each has published one message, "b" two."""
    ledger = Ledger()
    made = [FakeRegion(name, ledger) for name in names]
    for region in made:
        assert region.declared() == []
        for other in names:
            if other != region.name:
                region.table("regions")[other] = Region()
        assert region.published(1) == []
    assert made[1].published(2) == []
    made[0].others = {region.name: region for region in made[1:]}
    return made[0]


def answers(
    a: FakeRegion, name: str, *, round: int = 1, position: int | None = None, again: bool = False
) -> list[str]:
    """A request of the snapshot 7 arrives there, and is answered with its end, or with `position`.
    `again`: in the marker that is there."""
    there = a.others[name]
    upto = there.next - 1 if position is None else position
    number = len(there.table("markers")) + (not again)
    marker = Marker(there.next - 1, Answer(7, a.name, round, name, upto, ()))
    there.table("markers")[1, number] = marker
    there.table("marked")[1, f"answer/{a.name}"] = number
    return there.did(SnapshotAnswer("t", a.name, 7, round), None)


def counts(a: FakeRegion, name: str, position: int, *, round: int = 1) -> list[str]:
    command = SnapshotAnswered("t", name, 7, round, position, ())
    return a.did(command, Answered(True))


def completed(
    a: FakeRegion, local: int, there: dict[str, int], last: str = "b", *, round: int = 1
) -> list[str]:
    """The answer of `last` is the last one."""
    a.table("snapshots")[1, local] = Snapshot(7, tuple(there.items()), 0)
    command = SnapshotAnswered("t", last, 7, round, there.get(last, 0), ())
    return a.did(command, Answered(True, True))


def answered() -> FakeRegion:
    """Of two regions, one that has what "b" answered."""
    a = regions("a", "b")
    assert answers(a, "b") == []
    for seq in (1, 2):
        assert a.delivered("b", seq) == []
    return a


def answered_by_two() -> FakeRegion:
    """Of three regions, one that has what "b" and "c" answered first."""
    a = regions("a", "b", "c")
    for name, last in (("b", 2), ("c", 1)):
        assert answers(a, name) == []
        for seq in range(1, last + 1):
            assert a.delivered(name, seq) == []
        assert counts(a, name, last) == []
    return a


def test_a_snapshot_behind_everything_is_consistent() -> None:
    assert completed(answered(), 3, {"b": 2}) == []


def test_a_snapshot_that_is_used_too_early_is_found() -> None:
    a = regions("a", "b")
    assert answers(a, "b") == []
    assert completed(a, 1, {"b": 2}) == [SNAPSHOTS]


def test_a_snapshot_that_is_complete_and_not_kept_is_found() -> None:
    a = answered()
    command = SnapshotAnswered("t", "b", 7, 1, 2, ())
    assert a.did(command, Answered(True, True)) == [SNAPSHOTS]


def test_a_position_of_ours_that_is_too_early_is_found() -> None:
    assert completed(answered(), 2, {"b": 2}) == [SNAPSHOTS]
    a = answered()
    # Nothing of "b", but a message of ours.
    assert a.published(2) == []
    assert completed(a, 3, {"b": 2}) == [SNAPSHOTS]


def test_an_answer_that_is_not_the_end_is_found() -> None:
    assert answers(regions("a", "b"), "b", position=1) == [SNAPSHOTS]


def test_an_answer_that_was_never_given_is_found() -> None:
    a = regions("a", "b")
    assert counts(a, "b", 2) == [SNAPSHOTS]
    assert answers(a, "b") == []
    assert counts(a, "b", 1) == [SNAPSHOTS]
    assert counts(a, "b", 2) == []


def test_a_request_that_comes_again_has_the_same_answer() -> None:
    a = answered()
    assert a.others["b"].published(3) == []
    assert answers(a, "b", position=2, again=True) == []
    assert answers(a, "b", again=True) == [SNAPSHOTS]
    assert completed(a, 3, {"b": 2}) == []


def test_an_answer_that_was_removed_may_be_given_with_a_later_end() -> None:
    a = answered()
    assert a.others["b"].published(3) == []
    assert answers(a, "b") == []
    assert a.delivered("b", 3) == []
    assert completed(a, 4, {"b": 3}) == []


def test_a_snapshot_of_two_rounds_is_right() -> None:
    a = answered_by_two()
    for name in ("b", "c"):
        assert answers(a, name, round=2) == []
    assert counts(a, "c", 1, round=2) == []
    assert completed(a, 4, {"b": 2, "c": 1}, round=2) == []


def test_a_snapshot_without_the_second_answer_of_one_is_found() -> None:
    """Though nothing is missing here: the first answers were right by luck."""
    a = answered_by_two()
    assert answers(a, "b", round=2) == []
    assert completed(a, 4, {"b": 2, "c": 1}, round=2) == [SNAPSHOTS]


def test_a_first_answer_that_stands_for_the_second_is_found() -> None:
    a = answered_by_two()
    assert answers(a, "b", round=2) == []
    assert counts(a, "b", 2, round=2) == []
    assert completed(a, 4, {"b": 2, "c": 1}, "c", round=1) == [SNAPSHOTS]


def test_positions_of_the_second_round_are_found() -> None:
    a = answered_by_two()
    assert a.others["c"].published(2) == []
    for name in ("b", "c"):
        assert answers(a, name, round=2) == []
    assert a.delivered("c", 2) == []
    assert counts(a, "c", 2, round=2) == []
    assert completed(a, 5, {"b": 2, "c": 2}, round=2) == [SNAPSHOTS]


def test_a_snapshot_without_an_active_region_is_found() -> None:
    a = answered()
    a.table("regions")["c"] = Region()
    assert completed(a, 3, {"b": 2}) == [SNAPSHOTS]


def test_an_update_that_passes_the_exact_position_is_found() -> None:
    a = answered()
    assert a.subscribed() == []
    assert completed(a, 3, {"b": 2}) == []
    a.floor("a", 1)
    a.sub(mark=1)
    assert a.acked(1) == []
    b = a.others["b"]
    b.floor("b", 1)
    b.sub(replicate=True, mark=1)
    found = b.did(Update("t", "a", "s", "exclusive", 7, 2, ()), Merged(True, 1, 1))
    assert SNAPSHOTS in found
    assert ONLY in found


def test_an_update_of_a_snapshot_that_never_was_is_found() -> None:
    _, b = one_sub()
    b.sub(replicate=True)
    found = b.did(Update("t", "a", "s", "exclusive", 9, 0, ()), Merged(True, 0, 0))
    assert found == [SNAPSHOTS]


# --- consumers ------------------------------------------------------------------------------------


def shared() -> FakeRegion:
    a, _ = two()
    assert a.subscribed(kind="shared") == []
    for id in (1, 2):
        assert a.did(Attach("t", "s"), Attached(id, True)) == []
    return a


def taken(a: FakeRegion, consumer: int, position: int, deliveries: int = 1) -> list[str]:
    return a.did(Take(consumer, 1), Taken((position,), (deliveries,), False, 0))


def test_two_that_have_different_messages_are_right() -> None:
    a = shared()
    assert taken(a, 1, 1) == []
    assert taken(a, 2, 2) == []


def test_a_message_in_two_hands_is_found() -> None:
    a = shared()
    assert taken(a, 1, 1) == []
    assert HANDS in taken(a, 2, 1, 2)


def limited() -> FakeRegion:
    """A region with three messages of 66 bytes, of which two are waited for."""
    a, _ = one_sub()
    a.table("backlogs")[1] = Backlog(1, 0)
    a.floor("a", 1)
    a.sub(mark=1)
    assert a.acked(1) == []
    assert a.next == 4
    return a


def test_item_14_a_refusal_for_what_is_acknowledged_is_found() -> None:
    a = limited()
    command = Publish("t", (Message(b"m4"),))
    for limit, found in ((197, []), (198, [FULL])):
        a.topic(backlog_bytes_max=limit, bytes=3 * 66)
        assert a.did(command, None, BacklogFull("t", limit, 132)) == found


def test_item_14_a_publication_beyond_the_limit_is_found() -> None:
    for limit, found in ((198, False), (197, True)):
        a = limited()
        a.topic(backlog_bytes_max=limit, bytes=4 * 66)
        assert (FULL in a.published(3, b"m3")) is found


def test_what_an_ended_consumer_had_is_given_to_another_one() -> None:
    a = shared()
    assert taken(a, 1, 1) == []
    assert a.did(Detach(1), None) == []
    assert taken(a, 2, 1, 2) == []


def test_what_a_consumer_of_a_dead_node_had_is_given_to_another_one() -> None:
    a = shared()
    assert taken(a, 1, 1) == []
    a.members = {"n1": SimpleNamespace(up=True, incarnation=2)}
    assert taken(a, 2, 1, 2) == []


def test_deliveries_that_are_not_counted_are_found() -> None:
    a = shared()
    assert taken(a, 1, 1) == []
    assert a.did(Detach(1), None) == []
    assert taken(a, 2, 1, 1) == [HANDS]


def test_b12_a_release_of_before_a_seek_that_counts_is_found() -> None:
    a = shared()
    assert taken(a, 1, 1) == []
    a.sub(epoch=1)
    assert a.did(Seek("t", "s", 0), Sought(0, 1)) == []
    late = ReleaseDelivered(1, (1,), 0)
    assert a.did(late, Released(0, 1)) == []
    assert HANDS in a.did(late, Released(1, 0))


def test_an_acknowledged_message_that_is_handed_out_is_found() -> None:
    a = shared()
    a.floor("a", 1)
    a.sub(mark=1)
    assert a.acked(1) == []
    assert HANDS in taken(a, 1, 1)


def test_two_consumers_of_an_exclusive_subscription_are_found() -> None:
    a, _ = one_sub()
    assert a.did(Attach("t", "s"), Attached(1, True)) == []
    assert a.did(Attach("t", "s"), Attached(2, True)) == [HANDS]
