"""The backlog of a topic: what `backlog_bytes_max` limits, compared with all messages read."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import msgspec
import pytest

from raftkv.errors import Refused
from raftkv.state import NodeUp
from raftkv_subscriptions import (
    BacklogFull,
    Subscriptions,
    acking,
    backlog,
    invariants,
    mapping,
    marks,
    retention,
    topics,
)
from raftkv_subscriptions.backlog import backlog_bytes
from raftkv_subscriptions.rows import MESSAGE_OVERHEAD, size_of

from . import pure
from .fakes import FormerSubscriptions
from .pure import RegionLog, copy

SIZE = MESSAGE_OVERHEAD + 1
#: Modules that know how long a block of the index is.
WITH_BLOCKS = (acking, backlog, invariants, mapping, marks, retention, topics, pure)


def counted(log: RegionLog, topic: str = "t") -> int:
    return backlog_bytes(log.view(), log.topic(topic))


def waited_for(log: RegionLog, topic: str = "t") -> int:
    """The same by reading every message, from the tables that say who has what."""
    row = log.topic(topic)
    marks = [sub.mark for (id, _), sub in log.table("subs").items() if id == row.id]
    first = min([row.next, *(mark + 1 for mark in marks)])
    regions = [
        (name, dict(log.table("fetched").get((name, row.id), ())))
        for name, region in log.table("regions").items()
        if row.replicated and region.state == "active" and region.fetches
    ]
    size = 0
    for (id, position), stored in sorted(log.table("messages").items()):
        if id != row.id or position < row.first:
            continue
        lacking = any(
            name != stored.origin and have.get(stored.origin, 0) < stored.seq
            for name, have in regions
        )
        if position >= first or lacking:
            first = min(first, position)
            size += size_of(stored.message)
    return size


# --- what counts ----------------------------------------------------------------------------------


def test_item_14_what_is_acknowledged_counts_no_longer() -> None:
    log = RegionLog()
    log.declare("t", backlog_bytes_max=3 * SIZE)
    log.subscribe(initial="earliest")
    for number in range(1, 41):
        log.publish("t", "x")
        log.ack(number)
    assert (log.topic().bytes, counted(log)) == (40 * SIZE, 0)
    log.publish("t", "a", "b", "c")
    with pytest.raises(BacklogFull) as refused:
        log.publish("t", "d")
    assert (refused.value.limit, refused.value.backlog_bytes) == (3 * SIZE, 3 * SIZE)
    assert f"has {3 * SIZE} bytes" in str(refused.value)
    log.ack_to(42)
    assert counted(log) == SIZE
    log.publish("t", "d", "e")


def test_item_14_the_slowest_subscription_decides_and_a_gap_counts_whole() -> None:
    log = RegionLog()
    log.declare("t", backlog_bytes_max=4 * SIZE)
    log.subscribe(sub="fast", initial="earliest")
    log.subscribe(sub="slow", initial="earliest")
    log.publish("t", "a", "b", "c", "d")
    log.ack_to(4, sub="fast")
    log.ack(2, 3, sub="slow")
    with pytest.raises(BacklogFull):
        log.publish("t", "e")
    log.ack(1, sub="slow")
    assert counted(log) == SIZE
    log.publish("t", "e")
    log.unsubscribe(sub="slow")
    assert counted(log) == SIZE


def test_item_14_without_subscriptions_and_other_regions_nothing_is_waited_for() -> None:
    log = RegionLog()
    log.declare("t", backlog_bytes_max=2 * SIZE)
    for _ in range(10):
        log.publish("t", "x")
    with pytest.raises(BacklogFull) as refused:
        log.publish("t", "1", "2", "3")
    assert refused.value.backlog_bytes == 0


def test_item_14_what_a_region_has_yet_to_fetch_counts_until_it_is_excluded() -> None:
    log = RegionLog(others=("b",))
    log.declare("t", backlog_bytes_max=2 * SIZE)
    log.publish("t", "x", "y")
    with pytest.raises(BacklogFull):
        log.publish("t", "z")
    log.report("b", t=(("a", 1),))
    assert counted(log) == SIZE
    log.publish("t", "z")
    log.put_region("b", "excluded")
    assert counted(log) == 0
    for _ in range(5):
        log.publish("t", "x")
    log.put_region("b", "active")
    assert counted(log) == 7 * SIZE
    with pytest.raises(BacklogFull):
        log.publish("t", "z")


def test_item_14_a_seek_and_a_new_subscription_bring_the_backlog_back() -> None:
    log = RegionLog()
    log.declare("t", backlog_bytes_max=2 * SIZE, replicated=False)
    log.subscribe(initial="earliest")
    for number in range(1, 6):
        log.publish("t", "x")
        log.ack(number)
    log.publish("t", "x")
    log.seek(1)
    with pytest.raises(BacklogFull):
        log.publish("t", "x")
    log.ack_to(6)
    log.publish("t", "x")
    log.subscribe(sub="all", initial="earliest")
    with pytest.raises(BacklogFull):
        log.publish("t", "x")


def test_item_14_links_wait_for_the_backlog_alone() -> None:
    log = RegionLog(others=("b",))
    log.declare("t", backlog_bytes_max=2 * SIZE)
    log.subscribe(initial="earliest")
    body = bytes(200_000)
    for seq in range(1, 31):
        log.deliver("t", "b", pure.Copy("b", seq, pure.Message(body), 0))
        log.ack(seq)
    assert log.topic().bytes > 30 * len(body)


# --- how it is counted ----------------------------------------------------------------------------


def _step(log: RegionLog, chance: random.Random, seqs: dict[str, int]) -> None:
    end = log.topic().next - 1
    what = chance.randrange(13)
    sub = chance.choice(("s", "u"))
    if what < 3:
        log.publish("t", *("x" * chance.randrange(9) for _ in range(chance.randrange(1, 7))))
    elif what < 5:
        origin = chance.choice(("b", "c"))
        first = seqs[origin] + 1
        last = first + chance.randrange(5)
        parts = [copy(origin, seq) for seq in range(first, last + 1)]
        if chance.random() < 0.2:
            parts = [pure.Hole(origin, first, last)]  # type: ignore[list-item]
        log.deliver("t", "b", *parts)
        seqs[origin] = last
    elif what == 5:
        log.subscribe(sub=sub, initial=chance.choice(("earliest", "latest")))
    elif what == 6 and chance.random() < 0.3:
        log.unsubscribe(sub=sub)
    elif what == 7 and end:
        log.ack(*{chance.randrange(1, end + 1) for _ in range(3)}, sub=sub)
    elif what == 8 and end:
        log.ack_to(chance.randrange(end + 1), sub=sub)
    elif what == 9 and end and chance.random() < 0.5:
        log.seek(chance.randrange(end + 1), sub=sub)
    elif what == 10:
        vector = tuple((o, chance.randrange(1, n + 1)) for o, n in sorted(log.vector().items()))
        log.report("b", t=vector)
    elif what == 11:
        state: Any = chance.choice(("active", "excluded"))
        log.put_region("b", state, fetches=chance.random() < 0.7)
    elif what == 12:
        log.declare(
            "t",
            replicated=chance.random() < 0.7,
            backlog_bytes_max=chance.choice((0, 200, 600)),
            retention_bytes=chance.choice((0, 0, 300)),
        )
        log.sweep("t", rows_max=chance.choice((1, 3, 1_000)))


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_item_14_the_bytes_are_those_of_the_messages(
    seed: int, compacted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in WITH_BLOCKS:
        monkeypatch.setattr(module, "BLOCK", 4)
    chance = random.Random(f"{seed} {compacted}")
    log = RegionLog(others=("b",), topics=())
    log.declare("t", compacted=compacted, backlog_bytes_max=600)
    seqs = {"b": 0, "c": 0}
    full = 0
    for _ in range(150):
        before, next = waited_for(log), log.topic().next
        refused = None
        try:
            _step(log, chance, seqs)
        except Refused as refusal:
            refused = refusal
        if isinstance(refused, BacklogFull):
            full += 1
            assert (refused.backlog_bytes, log.topic().next) == (before, next)
        assert counted(log) == waited_for(log)
    assert full
    assert log.replay().digest() == log.digest()


def test_item_14_what_has_room_reads_no_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many subscriptions either, while what came since they were looked at has room."""
    log = RegionLog(checks=False)
    log.declare("t", backlog_bytes_max=100 * SIZE)
    log.subscribe(initial="earliest")
    searches = []
    free_to = backlog.free_to
    monkeypatch.setattr(backlog, "free_to", lambda *given: searches.append(1) or free_to(*given))
    for number in range(1, 1_001):
        log.publish("t", "x")
        log.ack(number)
    assert 0 < len(searches) <= 1_000 // 100 + 1
    assert len(log.table("sizes")) == 4, "one for each block of 256"


def test_item_14_nothing_is_left_of_a_deleted_topic() -> None:
    log = RegionLog()
    log.declare("t", backlog_bytes_max=2 * SIZE)
    for _ in range(600):
        log.publish("t", "x")
    assert log.table("sizes")
    assert log.table("fronts")
    log.delete("t")
    log.sweep_all()
    assert not any(log.table(name) for name in ("backlogs", "sizes", "fronts"))


# --- formats --------------------------------------------------------------------------------------


class Raised(RegionLog):
    """Nodes announce `announced` as their newest format."""

    announced = 1

    def node_up(self, name: str, role: Any = "core") -> None:
        plugins = (("subscriptions", self.announced),)
        command = NodeUp(next(self.seqs), name, role, name, "", None, plugins)
        self.sessions[name] = self.run(0, "core", command, command.nonce).session
        known = self.machine.voters[1]
        if name not in known:
            self.set_voters(*known, name)

    def raise_format(self) -> None:
        self.announced = Subscriptions.version
        for name in list(self.sessions):
            self.node_up(name)


def test_at_format_1_all_that_is_kept_counts() -> None:
    log = RegionLog(plugin=FormerSubscriptions)
    log.declare("t", backlog_bytes_max=2 * SIZE)
    log.subscribe(initial="earliest")
    log.publish("t", "x", "y")
    log.ack_to(2)
    assert counted(log) == 2 * SIZE
    with pytest.raises(BacklogFull) as refused:
        log.publish("t", "z")
    assert refused.value.args == ("t", 2 * SIZE)
    assert "set a retention" in str(refused.value)
    assert not any(log.table(name) for name in ("backlogs", "sizes", "fronts"))


def test_item_14_after_the_raise_a_topic_counts_whole_until_nothing_before_it_is_waited_for() -> (
    None
):
    log = Raised()
    log.declare("t", backlog_bytes_max=4 * SIZE)
    log.subscribe(initial="earliest")
    log.publish("t", "a", "b", "c")
    log.ack_to(1)
    assert counted(log) == 3 * SIZE
    log.raise_format()
    assert counted(log) == 3 * SIZE
    log.publish("t", "d")
    assert counted(log) == 4 * SIZE, "b and c are waited for, from before the raise"
    with pytest.raises(BacklogFull):
        log.publish("t", "e")
    log.ack_to(3)
    assert counted(log) == SIZE
    log.publish("t", "e", "f", "g")
    with pytest.raises(BacklogFull):
        log.publish("t", "h")
    log.seek(0)
    assert counted(log) == log.topic().bytes == 7 * SIZE


def test_item_14_a_topic_that_was_full_has_room_with_the_raise() -> None:
    log = Raised()
    log.declare("t", backlog_bytes_max=2 * SIZE)
    log.subscribe(initial="earliest")
    log.publish("t", "a", "b")
    log.ack_to(2)
    with contextlib.suppress(BacklogFull):
        log.publish("t", "c")
    assert log.topic().next == 3
    log.raise_format()
    log.publish("t", "c")
    assert counted(log) == SIZE


def test_the_refusal_travels_with_and_without_its_bytes() -> None:
    for refusal in (BacklogFull("t", 7), BacklogFull("t", 7, 0)):
        twin = type(refusal)(*refusal.args)
        assert (str(twin), twin.backlog_bytes) == (str(refusal), refusal.backlog_bytes)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(BacklogFull("t", 7, 3).args)) == [
        "t", 7, 3,
    ]  # fmt: skip
