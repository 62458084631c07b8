"""What enters the queue, in which order it leaves it, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from raftkv.errors import Refused
from raftkv_limbo.commands import (
    BATCH_PARTS_MAX,
    BATCH_TRANSACTIONS_MAX,
    KEY_BYTES_MAX,
    RollBack,
    Submit,
    Transaction,
    Write,
)
from raftkv_limbo.refusals import REFUSALS, BatchTooLarge, NotAMember, refusal_of
from raftkv_limbo.views import entry_of, oldest_entry, waiting_entries
from tests.plugins.raftkv_limbo.pure import LimboLog, at, exists, has, put


def test_a_sync_transaction_waits_for_its_quorum() -> None:
    log = LimboLog()
    done = log.submit("n1", put("s", b"k", b"1"))
    assert (done.first, done.confirmed, done.term) == (1, 0, 1)
    assert log.fate(1) == "pending"
    assert (log.value("s", b"k"), log.seen_pending("s", b"k")) == (None, b"1")
    log.now += 50
    assert log.ack("n1", "n2", "n3") == 1
    assert log.value("s", b"k") == b"1"
    state = log.state
    assert (state.confirm_lag_ms, state.confirmed_index) == (50, log.machine.index)
    assert (state.head, state.pending, state.pending_bytes, state.held_bytes) == (0, 0, 0, 0)
    assert log.table("pending") == {}


def test_an_async_one_with_nothing_pending_is_confirmed_at_once() -> None:
    log = LimboLog()
    assert log.submit("n1", put("a", b"k", b"1")).confirmed == 1
    assert log.value("a", b"k") == b"1"
    assert log.state.confirm_lag_ms == 0


def test_an_async_one_waits_behind_a_sync_one_for_order_only() -> None:
    log = LimboLog()
    first = log.sync()
    behind = log.taken("n1", put("a", b"k"))
    assert log.fate(behind) == "pending"
    log.ack("n1", "n2", "n3", upto=first)  # nobody holds `behind`
    assert log.fate(behind) == "confirmed"
    assert log.state.confirm_lag_ms == 0


def test_an_async_one_shares_the_rollback() -> None:
    log = LimboLog()
    first = log.sync()
    behind = log.taken("n1", put("a", b"k"))
    log.send("n1", RollBack(first, 1, "why"))
    assert (log.fate(first), log.fate(behind)) == ("rolled back", "rolled back")
    assert log.value("a", b"k") is None


def test_an_independent_one_does_not_wait_and_is_not_rolled_back() -> None:
    log = LimboLog()
    first = log.sync()
    done = log.submit("n1", put("a", b"x", b"1", independent=True))
    assert log.value("a", b"x") == b"1"
    assert done.confirmed == 0  # of the ordered ones
    behind = log.sync()
    log.send("n1", RollBack(first, 1, "why"))
    assert [log.fate(p) for p in (first, done.first, behind)] == [
        "rolled back",
        "confirmed",
        "rolled back",
    ]
    assert [run.last for run in log.table("rollbacks").values()] == [first, behind]


def test_writes_of_several_spaces_become_visible_together() -> None:
    log = LimboLog()
    both = Transaction((Write("a", b"k", b"1"), Write("s", b"k", b"2")))
    log.taken("n1", both)
    assert (log.value("a", b"k"), log.value("s", b"k")) == (None, None)
    log.ack("n1", "n2", "n3")
    assert (log.value("a", b"k"), log.value("s", b"k")) == (b"1", b"2")


def test_a_condition_on_a_sync_space_makes_nothing_sync() -> None:
    log = LimboLog()
    done = log.submit("n1", put("a", b"k", conditions=(has("s", b"k", None),)))
    assert done.confirmed == done.first


def test_confirming_goes_oldest_first_and_deletes() -> None:
    log = LimboLog()
    for value in (b"1", None, b"3", None):
        log.sync(value=value)
    assert log.seen_pending("s", b"k") is None
    seen = []
    for position in range(1, 5):
        log.ack("n1", "n2", "n3", upto=position)
        seen.append(log.value("s", b"k"))
    assert seen == [b"1", None, b"3", None]
    assert log.table("spaces")["s"].keys == 0


def test_rolling_back_in_the_middle_keeps_what_is_before() -> None:
    log = LimboLog()
    for value in (b"1", b"2", b"3"):
        log.sync(value=value)
    log.send("n1", RollBack(2, 1, "why"))
    assert log.seen_pending("s", b"k") == b"1"
    fourth = log.sync(value=b"4")  # a position is never used again
    assert fourth == 4
    assert [position for position, _ in waiting_entries(log.view())] == [1, 4]
    log.ack("n1", "n2", "n3")
    assert log.value("s", b"k") == b"4"
    assert [log.fate(p) for p in range(1, 5)] == [
        "confirmed",
        "rolled back",
        "rolled back",
        "confirmed",
    ]


# --- batches --------------------------------------------------------------------------------------


def test_each_transaction_of_a_batch_stands_alone() -> None:
    log = LimboLog()
    done = log.submit(
        "n1",
        put("s", b"k", b"1"),
        put("nope", b"k"),
        put("s", b"k", b"2", conditions=(has("s", b"k", b"1"),)),
        Transaction((Write("s", b"l", b"x"), Write("s", b"k", b"3")), (exists("s", b"k", False),)),
        put("a", b"k", b"5"),
    )
    assert done.first == 1
    assert [(r.at, r.code, r.args) for r in done.rejected] == [
        (1, "limbo_unknown_space", ("nope",)),
        (3, "limbo_condition_failed", ("s", b"k", 2)),
    ]
    assert log.state.last == 3
    assert log.seen_pending("s", b"l") is None
    assert log.seen_pending("s", b"k") == b"2"


def test_rejections_come_back_as_the_refusals_they_were() -> None:
    log = LimboLog()
    [rejected] = log.submit("n1", put("s", b"k", conditions=(has("s", b"k", b"1"),))).rejected
    refusal = refusal_of(rejected.code, rejected.args)
    assert type(refusal).__name__ == "ConditionFailed"
    assert refusal.args == ("s", b"k", 0)


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.code)
def test_texts_say_what_to_do_and_show_no_key(refusal: type[Refused]) -> None:
    values: dict[str, Any] = {"key": b"secret-key", "position": 7, "head": 7, "upto": 9}
    names = refusal.__init__.__code__.co_varnames[1 : refusal.__init__.__code__.co_argcount]
    made = refusal(*(values.get(n, 3 if n in ("term", "limit") else f"<{n}>") for n in names))
    text = str(made)
    assert len(text) > 15
    assert ":" in text or ". " in text  # what it is, and then what to do
    assert "secret" not in text
    assert str(type(made)(*made.args)) == text
    assert refusal.code.startswith("limbo_")


def test_too_large_a_batch_is_refused_wholly() -> None:
    log = LimboLog(quorum="1")
    many = tuple(put("s", b"%d" % i) for i in range(BATCH_TRANSACTIONS_MAX + 1))
    with pytest.raises(BatchTooLarge, match="256 transactions"):
        log.send("n1", Submit(many, 1))
    wide = tuple(
        Transaction(tuple(Write("s", b"%d" % i, b"") for i in range(101))) for _ in range(10)
    )
    with pytest.raises(BatchTooLarge, match=f"{BATCH_PARTS_MAX} writes"):
        log.send("n1", Submit(wide, 1))
    assert log.state.last == 0
    assert log.taken("n1", *many[:-1]) == 1


def test_only_nodes_submit() -> None:
    log = LimboLog()
    with pytest.raises(NotAMember):
        log.run(log.client(), "limbo", Submit((put("a", b"k"),), 1))


# --- what is refused ------------------------------------------------------------------------------


def test_the_form_of_a_transaction() -> None:
    log = LimboLog()
    log.set("transaction_writes_max", 2)
    log.set("transaction_bytes_max", 10)
    twice = Transaction((Write("s", b"k", b"1"), Write("s", b"k", None)))
    assert log.rejected("n1", twice) == ("duplicate_write", "s", b"k")
    assert log.rejected("n1", Transaction(())) == ("empty_transaction",)
    three = put("s", b"k", conditions=(has("a", b"k", None), has("a", b"l", None)))
    assert log.rejected("n1", three)[0] == "transaction_too_large"
    assert log.rejected("n1", put("s", b"k", b"0123456789")) == (
        "transaction_too_large",
        "bytes",
        10,
    )
    log.set("transaction_bytes_max", 10_000)
    log.taken("n1", put("s", b"k" * KEY_BYTES_MAX))
    large = b"k" * (KEY_BYTES_MAX + 1)
    assert log.rejected("n1", put("s", large)) == ("key_too_large", "s", KEY_BYTES_MAX)
    looks = put("s", b"k", conditions=(has("s", large, None),))
    assert log.rejected("n1", looks) == ("key_too_large", "s", KEY_BYTES_MAX)
    assert log.rejected("n1", put("s", b"k", conditions=(has("x", b"", None),))) == (
        "unknown_space",
        "x",
    )
    assert log.rejected("n1", put("s", b"k", independent=True)) == ("independent_sync", "s")


def test_conditions_of_ordered_ones_see_what_is_pending() -> None:
    log = LimboLog()
    log.sync(value=b"1")
    second = log.sync(value=b"2")
    no = "condition_failed", "s", b"k", second
    assert log.rejected("n1", put("s", b"x", conditions=(has("s", b"k", b"1"),))) == no
    assert log.rejected("n1", put("s", b"x", conditions=(at("s", b"k", 1),))) == no
    assert log.rejected("n1", put("s", b"x", conditions=(exists("s", b"k", False),))) == no
    good = (has("s", b"k", b"2"), at("s", b"k", second), exists("s", b"k", True))
    log.taken("n1", put("s", b"x", conditions=good))
    log.sync(value=None)
    gone = (has("s", b"k", None), at("s", b"k", 0), exists("s", b"k", False))
    log.taken("n1", put("s", b"x", conditions=gone))
    assert log.rejected("n1", put("s", b"x", conditions=(has("s", b"k", b"2"),)))[3] == 0


def test_independent_ones_do_not_touch_what_is_pending() -> None:
    log = LimboLog()
    pending = log.sync()
    over = Transaction((Write("a", b"k", b""),), (has("s", b"k", None),), True)
    assert log.rejected("n1", over) == ("key_pending", "s", b"k", pending)
    behind = log.taken("n1", put("a", b"k"))
    assert log.rejected("n1", put("a", b"k", independent=True)) == (
        "key_pending",
        "a",
        b"k",
        behind,
    )
    log.taken("n1", put("a", b"other", independent=True, conditions=(has("a", b"x", None),)))


# --- limits ---------------------------------------------------------------------------------------


def test_the_first_one_always_enters() -> None:
    log = LimboLog()
    for key in ("queue_bytes_max", "queue_entries_max", "queue_writes_max"):
        log.set(key, 1)
    many = Transaction(tuple(Write("s", b"%d" % i, b"long value") for i in range(5)))
    assert log.taken("n1", many) == 1
    assert log.rejected("n1", put("s", b"k")) == ("queue_full", "entries", 1)
    log.set("queue_entries_max", 5)
    assert log.rejected("n1", put("s", b"k")) == ("queue_full", "bytes", 1)
    log.set("queue_bytes_max", 1_000)
    assert log.rejected("n1", put("a", b"k")) == ("queue_full", "writes", 1)
    log.set("queue_writes_max", 6)
    log.taken("n1", put("a", b"k"))
    log.ack("n1", "n2", "n3")
    assert log.state.pending == 0


def test_behind_one_without_room_the_rest_of_its_batch_has_none_either() -> None:
    log = LimboLog()
    log.set("queue_bytes_max", 10)
    log.sync(value=b"12345")
    batch = [
        put("s", b"k", b"123456"),
        put("a", b"k", b""),
        put("a", b"x", b"", independent=True),
        put("s", b"k", b""),
    ]
    done = log.submit("n1", *batch)
    assert [(r.at, r.code) for r in done.rejected] == [(at, "limbo_queue_full") for at in (0, 1, 3)]
    log.taken("n1", batch[3])  # alone it has room


def test_what_is_not_to_wait_is_measured_only_against_what_lies_there() -> None:
    log = LimboLog()
    log.set("queue_entries_max", 2)
    log.sync()
    for number in range(19):
        log.taken("n1", put("a", b"%d" % number, independent=True))
    assert log.rejected("n1", put("a", b"x", independent=True)) == ("queue_full", "entries", 2)
    assert log.state.pending == 1
    assert log.rejected("n1", put("s", b"x")) == ("queue_full", "entries", 2)
    log.ack("n1", "n2", "n3", upto=1)
    log.taken("n1", put("a", b"x", independent=True))


def test_rolled_back_entries_hold_their_room_until_the_head_has_passed() -> None:
    log = LimboLog()
    log.set("queue_entries_max", 3)
    log.sync()
    log.sync()
    log.send("n1", RollBack(2, 1, "why"))
    log.sync()
    assert log.rejected("n1", put("s", b"k")) == ("queue_full", "entries", 3)
    log.ack("n1", "n2", "n3", upto=1)
    assert (log.state.head, log.state.held_bytes) == (3, 2)
    log.sync()


def test_a_fast_queue_is_never_full() -> None:
    log = LimboLog(quorum="1")
    log.set("queue_entries_max", 1)
    for _ in range(5):
        log.sync()
    assert log.state.confirmed == 5


def test_old_entries_are_trimmed_and_the_queue_is_not() -> None:
    log = LimboLog(quorum="1")
    log.set("entries_kept", 2)
    for _ in range(6):
        log.sync()
    assert oldest_entry(log.view()) == 4  # two from before, and the one of this command
    log.set("quorum", "N")
    head = log.sync()
    for _ in range(6):
        log.sync()
    assert oldest_entry(log.view()) == head
    log.ack("n1", "n2", "n3")
    log.set("entries_kept", 0)
    last = log.sync()
    assert oldest_entry(log.view()) == last
    assert entry_of(log.view(), last - 1) is None


def test_the_whole_queue_is_settled_in_one_entry() -> None:
    """Its limits bound that work: a full default queue takes some milliseconds."""
    log = LimboLog(walk=False)
    for start in range(0, 1_000, 250):
        log.taken("n1", *(put("s", b"%d" % i) for i in range(start, start + 250)))
    assert log.rejected("n1", put("s", b"k")) == ("queue_full", "entries", 1_000)
    log.ack("n1", "n2", "n3")
    assert (log.state.confirmed, log.state.pending) == (1_000, 0)
    assert log.table("spaces")["s"].keys == 1_000
