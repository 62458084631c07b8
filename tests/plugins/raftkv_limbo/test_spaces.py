"""Spaces are made, altered, dropped and swept; what of them can be read."""

from __future__ import annotations

import pytest

from raftkv_limbo.commands import AlterSpace, CreateSpace, DropSpace, Sweep
from raftkv_limbo.refusals import (
    BadSpaceName,
    SpaceBusy,
    SpaceExists,
    TooManySpaces,
    UnknownSpace,
)
from raftkv_limbo.views import (
    confirmed_range,
    confirmed_row,
    pending_range,
    pending_row,
    space_rows,
)
from tests.plugins.raftkv_limbo.pure import LimboLog, put


def test_spaces_are_made_once_also_by_clients() -> None:
    log = LimboLog()
    assert log.run(log.client(), "limbo", CreateSpace("accounts", True)).id == 3
    with pytest.raises(SpaceExists):
        log.send("n1", CreateSpace("accounts", False))
    assert log.table("spaces")["accounts"].sync
    assert [(row.name, row.sync) for row in space_rows(log.view())] == [
        ("a", False),
        ("accounts", True),
        ("s", True),
    ]


@pytest.mark.parametrize("name", ["", "x" * 65, "-a", ".a", "a b", "ä", "a\n", "a/b"])
def test_bad_names(name: str) -> None:
    log = LimboLog()
    with pytest.raises(BadSpaceName):
        log.send("n1", CreateSpace(name, True))


def test_there_are_not_too_many() -> None:
    log = LimboLog()
    log.set("spaces_max", 3)
    log.send("n1", CreateSpace("x", True))
    with pytest.raises(TooManySpaces):
        log.send("n1", CreateSpace("y", True))
    log.drop("x")
    log.ack("n1", "n2", "n3")
    log.send("n1", CreateSpace("y", True))


def test_unknown_spaces() -> None:
    log = LimboLog()
    for command in (AlterSpace("x", True), DropSpace("x")):
        with pytest.raises(UnknownSpace):
            log.send("n1", command)
    for read in (confirmed_row, pending_row, confirmed_range, pending_range):
        with pytest.raises(UnknownSpace):
            read(log.view(), "x", b"")


def test_altering_is_for_what_comes() -> None:
    log = LimboLog()
    first = log.sync()
    assert log.alter("s", sync=False)
    assert not log.alter("s", sync=False)
    assert log.fate(first) == "pending"
    behind = log.sync()
    log.ack("n1", "n2", "n3", upto=first)
    assert log.fate(behind) == "confirmed"
    assert log.table("spaces")["s"].keys == 1


def test_a_space_is_not_dropped_under_what_is_pending() -> None:
    log = LimboLog()
    position = log.sync()
    with pytest.raises(SpaceBusy) as caught:
        log.drop("s")
    assert caught.value.args == ("s", position)
    log.ack("n1", "n2", "n3")
    assert log.drop("s").rows == 1


def test_a_dropped_space_is_gone_at_once_and_swept_later() -> None:
    log = LimboLog(quorum="1")
    for number in range(5):
        log.sync(key=b"%d" % number)
    log.taken("n1", put("a", b"k"))
    assert log.drop("s").confirmed
    log.send("n1", CreateSpace("s", True))
    assert log.value("s", b"1") is None
    log.sync(key=b"1", value=b"new")
    assert len(log.table("rows")) == 7
    swept = log.send("n2", Sweep(3))
    assert (swept.rows, swept.more) == (3, True)
    swept = log.send("n2", Sweep(2))
    assert (swept.rows, swept.more) == (2, False)
    swept = log.send("n2", Sweep(3))
    assert (swept.rows, swept.more) == (0, False)
    assert log.value("s", b"1") == b"new"
    assert log.value("a", b"k") == b"v"


def test_a_dropped_space_without_rows_leaves_nothing() -> None:
    log = LimboLog(quorum="1")
    log.drop("s")
    assert log.table("dropped") == {}
    assert "s" not in log.table("spaces")


def test_ranges_of_what_is_confirmed_and_what_will_be() -> None:
    log = LimboLog(quorum="1")
    for key in (b"b", b"d", b"f"):
        log.sync(key=key)
    log.set("quorum", "N")
    for key, value in ((b"a", b"1"), (b"d", None), (b"f", b"2"), (b"g", b"3"), (b"a", b"4")):
        log.sync(key=key, value=value)
    view = log.view()
    assert [key for key, _ in confirmed_range(view, "s")] == [b"b", b"d", b"f"]
    found = [(key, row.value, row.position) for key, row in pending_range(view, "s")]
    assert found == [(b"a", b"4", 8), (b"b", b"v", 1), (b"f", b"2", 6), (b"g", b"3", 7)]
    assert pending_range(view, "s", reverse=True) == pending_range(view, "s")[::-1]
    assert [key for key, _ in pending_range(view, "s", b"b", b"g")] == [b"b", b"f"]
    assert [key for key, _ in pending_range(view, "s", b"c", limit=1)] == [b"f"]
    assert [key for key, _ in confirmed_range(view, "s", b"c", None, 1, True)] == [b"f"]
    assert space_rows(view)[1].pending == 5


def test_a_refusal_is_no_larger_than_a_name() -> None:
    """What is answered is kept for every node's sake."""
    log = LimboLog()
    with pytest.raises(UnknownSpace) as caught:
        log.send("n1", DropSpace("x" * 10_000))
    assert caught.value.space == "x" * 64
    [rejected] = log.submit("n1", put("x" * 10_000, b"k")).rejected
    assert rejected.args == ("x" * 64,)
