"""Topics: declared, deleted, published to, compacted."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from raftkv.errors import InvalidSetting
from raftkv_subscriptions.commands import Declared, EnsureTopic
from raftkv_subscriptions.refusals import (
    BacklogFull,
    BadMessage,
    BadName,
    BatchTooLarge,
    CompactedFixed,
    EmptyBatch,
    MessageTooLarge,
    TooManyKeys,
    TooManyTopics,
    TopicDiffers,
    TopicReplicated,
    UnknownTopic,
)
from raftkv_subscriptions.rows import BLOCK, HEADERS_MAX, LOCAL, MESSAGE_OVERHEAD, Message
from raftkv_subscriptions.topics import check_messages
from raftkv_subscriptions.views import message_at, read_compacted
from tests.plugins.raftkv_subscriptions.pure import RegionLog, copies, message


def compacted_of(log: RegionLog, topic: str = "t", **more: int) -> list[str]:
    found, at = [], 1
    while True:
        part = read_compacted(log.view(), topic, at, more.get("limit", 100))
        found += [one.stored.message.body.decode() for one in part.messages]
        at = part.next
        if not part.more:
            return found


# --- declaring ------------------------------------------------------------------------------------


def test_a_topic_is_declared_once_and_changed_later() -> None:
    log = RegionLog(topics=())
    assert log.declare("t") == Declared(1, True, False)
    assert log.declare("t") == Declared(1, False, False)
    assert log.declare("t", retention_ms=5, replicated=False) == Declared(1, False, True)
    assert (log.topic().retention_ms, log.topic().replicated) == (5, False)
    assert log.declare("t", if_missing=True) == Declared(1, False, False)
    assert log.topic().retention_ms == 5
    assert log.declare("u", if_missing=True) == Declared(2, True, False)
    assert log.meta().topics == 2


def test_messages_stay_when_a_topic_is_declared_again() -> None:
    log = RegionLog()
    log.publish("t", "x")
    log.declare("t", retention_bytes=7)
    assert log.bodies() == ["x"]


@pytest.mark.parametrize("name", ["", "a b", "ä", "-a", "x" * 256, "a/b"])
def test_bad_names_of_topics(name: str) -> None:
    with pytest.raises(BadName):
        RegionLog(topics=()).declare(name)


def test_whether_it_is_compacted_is_fixed() -> None:
    log = RegionLog()
    with pytest.raises(CompactedFixed):
        log.declare("t", compacted=True)
    assert log.declare("t", compacted=True, if_missing=True) == Declared(1, False, False)


def test_there_may_be_too_many_topics() -> None:
    log = RegionLog()
    log.set("topics_max", 2)
    log.declare("u")
    with pytest.raises(TooManyTopics):
        log.declare("v")
    log.declare("u", retention_ms=1)
    log.delete("u")
    log.declare("v")


# --- publishing -----------------------------------------------------------------------------------


def test_positions_and_seqs_go_on() -> None:
    log = RegionLog()
    log.now = 1_500
    published = log.publish("t", "x", "y")
    assert (published.first, published.last) == (1, 2)
    assert (published.origin, published.seq) == ("a", 1)
    published = log.publish("t", "z")
    assert (published.first, published.last, published.seq) == (3, 3, 3)
    stored = message_at(log.view(), 1, 3)
    assert stored is not None
    assert (stored.origin, stored.seq, stored.at_ms, stored.published_ms) == ("a", 3, 1_500, 1_500)
    assert log.bodies() == ["x", "y", "z"]
    assert log.vector() == {"a": 3}
    assert log.meta().published == 3


def test_a_region_without_a_name_publishes_under_a_common_one() -> None:
    log = RegionLog(region="")
    assert log.publish("t", "x").origin == LOCAL


def test_two_topics_have_their_own_numbers() -> None:
    log = RegionLog(topics=("t", "u"))
    log.publish("t", "x", "y")
    assert log.publish("u", "z").seq == 1
    assert (log.vector("t"), log.vector("u")) == ({"a": 2}, {"a": 1})


def test_blocks_remember_the_vector_in_front() -> None:
    log = RegionLog()
    for _ in range(3):
        log.publish("t", *["x"] * (BLOCK - 10))
    assert log.table("blocks") == {
        (1, 0): (),
        (1, 1): (("a", BLOCK),),
        (1, 2): (("a", 2 * BLOCK),),
    }


REFUSED: list[tuple[tuple[Message, ...], type[Exception]]] = [
    ((), EmptyBatch),
    ((message("x" * (256 * 1024)),), MessageTooLarge),
    ((message("x" * (200 * 1024)),) * 3, BatchTooLarge),
    ((message("x"),) * 1_001, BatchTooLarge),
    ((message("x", key="k" * 256),), BadMessage),
    ((Message(b"x", "", (("h", "v"),) * (HEADERS_MAX + 1)),), BadMessage),
    ((Message(b"x", "", (("", "v"),)),), BadMessage),
    ((Message(b"x", "", (("h" * 256, "v"),)),), BadMessage),
]


@pytest.mark.parametrize(("messages", "refusal"), REFUSED)
def test_what_cannot_be_kept_is_refused_whole(
    messages: tuple[Message, ...], refusal: type[Exception]
) -> None:
    log = RegionLog()
    log.publish("t", "before")
    before = log.digest_of_plugin()
    with pytest.raises(refusal):
        log.publish("t", *(message("good"), *messages) if messages else ())
    assert log.digest_of_plugin() == before


@pytest.mark.parametrize(
    "bad",
    [
        Message(b"x", "k\ud800"),
        Message(b"x", "", (("h\ud800", "v"),)),
        Message(b"x", "", (("h", "v\ud800"),)),
    ],
)
def test_half_a_letter_is_found_before_it_is_proposed(bad: Message) -> None:
    with pytest.raises(BadMessage) as refused:
        check_messages(RegionLog().view(), (bad,))
    assert "\ud800" not in str(refused.value)


def test_one_message_may_be_larger_than_a_batch() -> None:
    log = RegionLog()
    log.set("message_bytes_max", 1024 * 1024)
    log.publish("t", "x" * (700 * 1024))
    assert log.topic().bytes == 700 * 1024 + MESSAGE_OVERHEAD


def test_a_full_topic_refuses() -> None:
    log = RegionLog()
    log.declare("t", backlog_bytes_max=2 * (MESSAGE_OVERHEAD + 1))
    log.subscribe()
    log.publish("t", "x")
    with pytest.raises(BacklogFull) as refused:
        log.publish("t", "y", "z")
    assert refused.value.limit == 2 * (MESSAGE_OVERHEAD + 1)
    log.publish("t", "y")
    with pytest.raises(BacklogFull):
        log.publish("t", "")
    log.declare("t", backlog_bytes_max=0)
    log.publish("t", "z")
    assert log.bodies() == ["x", "y", "z"]


def test_an_unknown_topic_is_named() -> None:
    log = RegionLog(topics=())
    with pytest.raises(UnknownTopic, match="declare it first"):
        log.publish("t", "x")
    with pytest.raises(UnknownTopic):
        log.delete("t")


# --- deleting -------------------------------------------------------------------------------------


def test_a_replicated_topic_is_not_deleted_beside_active_regions() -> None:
    log = RegionLog(others=("b",))
    with pytest.raises(TopicReplicated):
        log.delete("t")
    log.put_region("b", "excluded")
    log.delete("t")
    log.put_region("b")
    log.declare("t", replicated=False)
    log.delete("t")


def test_a_deleted_topic_leaves_its_numbers() -> None:
    log = RegionLog()
    log.publish("t", "x", "y")
    assert log.delete("t").messages == 2
    assert log.table("dropped_topics") == {1: None}
    assert log.table("names") == {}
    assert log.meta().topics == 0
    assert log.declare("t") == Declared(2, True, False)
    assert log.bodies() == []
    assert log.vector() == {"a": 2}
    assert log.table("holes") == {(2, "a", 1): 2}
    published = log.publish("t", "z")
    assert (published.first, published.seq) == (3, 3)
    log.delete("t")
    log.declare("t")
    assert log.publish("t", "z").seq == 4
    assert log.topic().first == 4
    assert log.table("gone") == {}


def test_neither_seqs_nor_positions_come_again() -> None:
    """Others may have snapshots with the positions of the former life."""
    log = RegionLog(others=("b",))
    log.publish("t", "x")
    log.deliver("t", "b", *copies("b", 1, 5))
    log.declare("t", replicated=False)
    log.delete("t")
    log.declare("t")
    topic = log.topic()
    assert (topic.first, topic.next, topic.seq, topic.snapshot_next) == (7, 7, 6, 7)
    assert log.deliver("t", "b", *copies("b", 1, 2)).last == 8
    published = log.publish("t", "y")
    assert (published.first, published.seq) == (9, 7)
    assert log.vector() == {"a": 7, "b": 2}
    assert log.seqs_of() == [("b", 1), ("b", 2), ("a", 7)]


def test_a_topic_that_never_had_a_message_leaves_nothing() -> None:
    log = RegionLog()
    log.delete("t")
    log.declare("t")
    assert log.topic().gapped is False
    assert log.table("holes") == {}
    assert log.table("gone") == {}


# --- compaction -----------------------------------------------------------------------------------


def compacted(**more: Any) -> RegionLog:
    log = RegionLog(topics=())
    log.declare("t", compacted=True, **more)
    return log


def test_the_last_message_of_a_key_is_known() -> None:
    log = compacted()
    log.publish("t", message("x1", "x"), message("y1", "y"), message("x2", "x"), message("none"))
    assert compacted_of(log) == ["y1", "x2"]
    assert log.bodies() == ["x1", "y1", "x2", "none"]
    assert log.topic().keys == 2


def test_an_empty_body_removes_the_key() -> None:
    log = compacted()
    log.publish("t", message("x1", "x"), message("y1", "y"), message("", "x"), message("", "never"))
    assert compacted_of(log) == ["y1"]
    assert log.topic().keys == 1
    log.publish("t", message("x2", "x"))
    assert compacted_of(log) == ["y1", "x2"]


def test_there_may_be_too_many_keys() -> None:
    log = compacted()
    log.set("keys_max", 2)
    log.publish("t", message("x1", "x"), message("y1", "y"))
    before = log.digest_of_plugin()
    with pytest.raises(TooManyKeys):
        log.publish("t", message("x2", "x"), message("z1", "z"))
    assert log.digest_of_plugin() == before
    log.publish("t", message("x2", "x"), message("", "y"), message("z1", "z"))
    assert compacted_of(log) == ["x2", "z1"]


def test_only_compacted_topics_know_their_keys() -> None:
    log = RegionLog()
    log.publish("t", message("x1", "x"))
    assert log.table("latest") == {}
    assert compacted_of(log) == []


def test_reading_what_is_left_goes_on_over_many_superseded_ones() -> None:
    log = compacted()
    log.publish("t", message("first", "f"))
    for _ in range(3):
        log.publish("t", *[message("x", "x")] * 900)
    assert compacted_of(log, limit=1) == ["first", "x"]
    part = read_compacted(log.view(), "t", 1, 1)
    assert (len(part.messages), part.next, part.more) == (1, 2, True)
    part = read_compacted(log.view(), "t", 2, 5)
    assert (part.messages, part.next, part.more) == ((), 1_002, True)
    part = read_compacted(log.view(), "t", 5_000, 5)
    assert (part.messages, part.next, part.more) == ((), 5_000, False)


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"),
    [("mode", "other"), ("period_ms", 49), ("cached_max", 2), ("topics_max", 0), ("enabled", 1)],
)
def test_settings_are_checked(key: str, value: Any) -> None:
    with pytest.raises(InvalidSetting):
        RegionLog().set(key, value)


def test_replicas_agree() -> None:
    log = compacted()
    log.publish("t", message("x1", "x"), message("x2", "x"))
    log.delete("t")
    log.declare("t")
    log.publish("t", message("x3", "x"))
    assert log.replay().digest() == log.digest()


# --- declared again ------------------------------------------------------------------------------


def ensure(log: RegionLog, name: str, **limits: Any) -> Declared:
    done = log.anywhere(EnsureTopic(name, **limits))
    assert isinstance(done, Declared)
    return done


def test_a_plain_redeclare_leaves_the_limits_as_they_are() -> None:
    """And sends no private data abroad."""
    log = RegionLog(topics=())
    limits = {"replicated": False, "retention_ms": 5, "retention_bytes": 6, "backlog_bytes_max": 7}
    made = ensure(log, "private", **limits)
    assert made.created
    before = log.topic("private")
    for again in ({}, limits, {"retention_ms": 5}):
        assert ensure(log, "private", **again) == Declared(made.id, False, False)
    assert log.topic("private") == before


@pytest.mark.parametrize(
    ("what", "asked"),
    [("replicated", True), ("retention_ms", 0), ("retention_bytes", 1), ("backlog_bytes_max", 0)],
)
def test_a_difference_is_refused_unless_asked_for(what: str, asked: Any) -> None:
    log = RegionLog(topics=())
    ensure(log, "t", replicated=False, retention_ms=5, retention_bytes=6, backlog_bytes_max=7)
    before = log.topic("t")
    with pytest.raises(TopicDiffers) as refused:
        ensure(log, "t", **{what: asked})
    assert (refused.value.topic, refused.value.what) == ("t", what)
    assert log.topic("t") == before
    assert ensure(log, "t", **{what: asked}, change=True).changed
    assert log.topic("t") == msgspec.structs.replace(before, **{what: asked})


def test_a_compacted_topic_is_declared_again_without_a_word_about_it() -> None:
    log = RegionLog(topics=())
    ensure(log, "t", compacted=True)
    assert not ensure(log, "t").changed
    for change in (False, True):
        with pytest.raises(CompactedFixed):
            ensure(log, "t", compacted=False, change=change)
