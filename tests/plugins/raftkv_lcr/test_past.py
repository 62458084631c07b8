"""The history: what it keeps, and that it stays within its bounds without anybody's help."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftkv.errors import Refused
from raftkv.state import StateMachine
from raftkv_lcr import LCR
from raftkv_lcr.commands import Channel, Cleanup, Gone, Register, Trimmed, TrimPast
from raftkv_lcr.past import gone, is_due
from tests.plugins.raftkv_lcr.one_log import Log


def keeping(history_ms: int = 10_000, rows_max: int = 100_000) -> Log:
    log = Log()
    log.set("history_ms", history_ms)
    log.set("history_rows_max", rows_max)
    return log


def come(log: Log, client_id: str, node: str = "n1") -> Channel:
    """Connect as the client's newest channel."""
    entry = log.entry(client_id)
    owner = None if entry is None else entry.owner
    name = f"ch{log.machine.serial}"
    channel: Channel = log.send(node, Register(client_id, name, owner)).channel
    return channel


def leave(log: Log, channel: Channel) -> None:
    assert log.unregister(channel.node, channel)


def rows(log: Log) -> dict[str, Gone]:
    return dict(log.view().table("past").scan())


def test_nothing_is_kept_by_default() -> None:
    log = Log()
    leave(log, come(log, "c"))
    assert rows(log) == {}


def test_the_last_channel_is_remembered_until_the_client_is_back() -> None:
    log = keeping()
    a = come(log, "c")
    assert rows(log) == {}
    log.now += 5
    leave(log, a)
    assert rows(log) == {"c": Gone(a, log.now)}
    assert gone(log.view(), "c") == Gone(a, log.now)
    come(log, "c")
    assert rows(log) == {}
    assert gone(log.view(), "c") is None


def test_a_channel_that_was_taken_over_has_not_left() -> None:
    log = keeping()
    a = come(log, "c")
    b = come(log, "c", "n2")
    assert not log.unregister("n1", a)
    assert rows(log) == {}
    leave(log, b)
    assert rows(log)["c"].channel == b


def test_opening_and_adopting_end_the_history_too() -> None:
    log = keeping()
    leave(log, come(log, "c"))
    log.open("n1", "x")
    assert rows(log) == {}
    leave(log, log.entry().owner)
    log.adopt("n1", log.living("n1", "y"))
    assert rows(log) == {}


def test_a_cleaned_channel_left_when_its_life_ended() -> None:
    log = keeping()
    a = come(log, "c", "n2")
    log.node_down("n2")
    ended = log.now
    # Fenced only: it stands in the table still, and in no history.
    assert gone(log.view(), "c") is None
    log.now += 3_000
    log.send("n1", Cleanup("n2", 1, ("c",), True))
    assert rows(log) == {"c": Gone(a, ended)}


def test_what_is_cleaned_too_late_is_not_kept_at_all() -> None:
    log = keeping(history_ms=1_000)
    come(log, "c", "n2")
    log.node_down("n2")
    log.now += 1_000
    assert log.send("n1", Cleanup("n2", 1, ("c",), True)).rows == 1
    assert rows(log) == {}


def test_readers_see_no_row_that_is_too_old() -> None:
    log = keeping(history_ms=1_000)
    leave(log, come(log, "c"))
    log.now += 999
    come(log, "other")
    assert gone(log.view(), "c") is not None
    # Not before some entry has advanced the log's clock, and then whether deleted or not.
    log.now += 1
    assert gone(log.view(), "c") is not None
    log.set("policy", "displace")
    assert "c" in rows(log)
    assert gone(log.view(), "c") is None


def test_writes_delete_what_is_too_old() -> None:
    log = keeping(history_ms=1_000)
    for number in range(6):
        leave(log, come(log, f"c{number}"))
    log.now += 1_000
    assert len(rows(log)) == 6
    channel = come(log, "x")
    assert len(rows(log)) == 4
    leave(log, channel)
    assert sorted(rows(log)) == ["c4", "c5", "x"]


def test_the_oldest_make_room() -> None:
    log = keeping(rows_max=3)
    for number in range(5):
        log.now += 1
        leave(log, come(log, f"c{number}"))
        assert len(rows(log)) <= 3
    assert sorted(rows(log)) == ["c2", "c3", "c4"]


def test_a_lowered_bound_is_reached_by_writes_alone() -> None:
    log = keeping()
    for number in range(20):
        log.now += 1
        leave(log, come(log, f"c{number}"))
    log.set("history_rows_max", 5)
    for number in range(20, 30):
        log.now += 1
        leave(log, come(log, f"c{number}"))
    assert sorted(rows(log)) == [f"c{n}" for n in range(25, 30)]


def test_a_cleanup_as_large_as_allowed_keeps_the_bound() -> None:
    log = keeping(rows_max=10)
    ids = tuple(f"c{number:04}" for number in range(1_000))
    for client_id in ids:
        log.send("n2", Register(client_id, "x", None))
    log.node_down("n2")
    assert log.send("n1", Cleanup("n2", 1, ids, True)).rows == 1_000
    assert len(rows(log)) == 10


def test_trimming_is_bounded_and_says_whether_there_is_more() -> None:
    log = keeping(history_ms=1_000)
    for number in range(7):
        leave(log, come(log, f"c{number}"))
    assert log.send("n1", TrimPast(100)) == Trimmed(0, False, log.machine.index)
    assert not is_due(log.view(), log.now + 999)
    assert is_due(log.view(), log.now + 1_000)
    log.now += 1_000
    assert log.send("n1", TrimPast(5)) == Trimmed(5, True, log.machine.index)
    assert sorted(rows(log)) == ["c5", "c6"]
    assert log.send("n1", TrimPast(5)) == Trimmed(2, False, log.machine.index)
    assert not is_due(log.view(), log.now + 10**9)


def test_switching_the_history_off_empties_it() -> None:
    log = keeping()
    for number in range(3):
        leave(log, come(log, f"c{number}"))
    log.set("history_ms", 0)
    assert gone(log.view(), "c0") is None
    assert log.send("n1", TrimPast(100)).rows == 3


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("history_ms", -1),
        ("history_ms", 366 * 86_400_000 + 1),
        ("history_rows_max", 0),
        ("sweep_rows_per_s", 0),
        ("sweep_interval_s", -1),
    ],
)
def test_settings_are_checked(key: str, value: int) -> None:
    with pytest.raises(Refused, match=key):
        Log().set(key, value)


def test_history_survives_a_snapshot() -> None:
    log = keeping()
    leave(log, come(log, "c"))
    copy = StateMachine([LCR()])
    copy.restore(list(log.machine.freeze().slices()), log.machine.index)
    assert gone(copy.view("lcr"), "c") == gone(log.view(), "c")
    assert copy.digest() == log.digest()


clients = st.sampled_from(["a", "b", "c", "d", "e"])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("come"), clients),
        st.tuples(st.just("leave"), clients),
        st.tuples(st.just("wait"), st.integers(1, 60)),
        st.tuples(st.just("trim"), st.integers(1, 3)),
    ),
    max_size=40,
)


@settings(max_examples=100)
@given(steps, st.integers(1, 3), st.sampled_from([20, 100, 1_000]))
def test_history_is_what_a_naive_one_would_be(
    history: list[tuple[str, Any]], rows_max: int, history_ms: int
) -> None:
    """The model deletes nothing for its age; it shows what is young, and evicts the oldest."""
    log = keeping(history_ms, rows_max)
    model: dict[str, Gone] = {}
    for action, argument in history:
        if action == "wait":
            log.now += argument
        elif action == "trim":
            log.send("n1", TrimPast(argument))
        elif action == "come":
            come(log, argument)
            model.pop(argument, None)
        elif (entry := log.entry(argument)) is not None:
            leave(log, entry.owner)
            model[argument] = Gone(entry.owner, log.now)
            if len(model) > rows_max:
                del model[min(model, key=lambda c: (model[c].at_ms, c))]
        view = log.view()
        shown = {c: row for c in "abcde" if (row := gone(view, c)) is not None}
        assert shown == {c: r for c, r in model.items() if r.at_ms + history_ms > view.now}
        assert len(rows(log)) <= rows_max
