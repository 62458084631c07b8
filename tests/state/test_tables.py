"""Tables against a plain dict: order, undo, freeze in slices."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from raftkv.state.tables import ABSENT, SCAN_KEYS, FrozenTable, Table, UndoLog, undo_to


def table_of(rows: dict[Any, Any]) -> Table[Any, Any]:
    table: Table[Any, Any] = Table("p", "t", [])
    for key, value in rows.items():
        table.put(key, value)
    return table


def walk(frozen: FrozenTable, count: int = 3) -> list[tuple[Any, Any]]:
    rows: list[tuple[Any, Any]] = []
    while (part := frozen.next_rows(count)) is not None:
        assert len(part) <= count
        rows += part
        if part:
            frozen.passed(part[-1][0])
    return rows


def test_get_put_delete() -> None:
    table = table_of({b"b": 2})
    assert table.get(b"a") is None
    assert table.get(b"a", ABSENT) is ABSENT
    assert b"b" in table
    assert table[b"b"] == 2
    with pytest.raises(KeyError):
        table[b"a"]
    assert table.delete(b"b") is True
    assert table.delete(b"b") is False
    assert len(table) == 0


def test_the_view_shows_the_table_and_cannot_change_it() -> None:
    table = table_of({b"a": 1})
    table.put(b"b", 2)
    assert list(table.view.scan()) == [(b"a", 1), (b"b", 2)]
    assert table.view.get(b"b") == 2
    assert not hasattr(table.view, "put")
    assert not hasattr(table.view, "delete")


def test_scan_bounds_prefix_reverse_limit() -> None:
    table = table_of({bytes([a, b]): a * 10 + b for a in range(3) for b in (0, 1, 255)})
    keys = [key for key, _ in table.scan()]
    assert keys == sorted(keys)
    assert [k for k, _ in table.scan(keys[2], keys[5])] == keys[2:5]
    assert [k for k, _ in table.scan(keys[2], keys[5], reverse=True)] == keys[2:5][::-1]
    assert [k for k, _ in table.scan(limit=4)] == keys[:4]
    assert [k for k, _ in table.scan(prefix=b"\x01")] == keys[3:6]
    assert [k for k, _ in table.scan(prefix=b"\x01", reverse=True, limit=2)] == [keys[5], keys[4]]
    assert [k for k, _ in table.scan(prefix=b"")] == keys
    assert list(table.scan(prefix=b"\x01\x02")) == []
    assert list(table.scan(keys[5], keys[2])) == []
    assert table.count() == 9
    assert table.count(keys[2], keys[5]) == 3
    assert table.count(keys[5], keys[2]) == 0
    assert table.count(prefix=b"\x02") == 3
    assert table.count(prefix=b"\x02\xff\xff") == 0


@pytest.mark.parametrize(
    ("keys", "prefix", "expected"),
    [
        (["", "a", "ab", "a\U0010ffff", "b"], "a", ["a", "ab", "a\U0010ffff"]),
        ([("a", 1), ("a", 2), ("aa", 0), ("b", 0)], ("a",), [("a", 1), ("a", 2)]),
        ([b"\xff", b"\xff\xff", b"\xfe"], b"\xff", [b"\xff", b"\xff\xff"]),
    ],
)
def test_prefixes_of_every_kind_of_key(keys: list[Any], prefix: Any, expected: list[Any]) -> None:
    table = table_of(dict.fromkeys(keys, 0))
    assert [key for key, _ in table.scan(prefix=prefix)] == expected
    assert [key for key, _ in table.scan(prefix=prefix, reverse=True)] == expected[::-1]
    assert table.count(prefix=prefix) == len(expected)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_longer_than_its_stride_gives_every_row_once(reverse: bool) -> None:
    count = SCAN_KEYS * 2 + 7
    table = table_of({key: -key for key in range(count)})
    expected = [(key, -key) for key in range(count)]
    assert list(table.scan(reverse=reverse)) == (expected[::-1] if reverse else expected)
    assert len(list(table.scan(limit=SCAN_KEYS + 1))) == SCAN_KEYS + 1


def test_rows_may_be_deleted_while_they_are_scanned() -> None:
    table = table_of({key: key for key in range(SCAN_KEYS * 2)})
    for key, _ in table.scan():
        table.delete(key)
        table.delete(key + 1)
    assert len(table) == 0


def test_undo_goes_back_to_the_mark_only() -> None:
    undo: UndoLog = []
    table: Table[str, int] = Table("p", "t", undo)
    table.put("a", 1)
    mark = len(undo)
    table.put("a", 2)
    table.delete("a")
    table.put("b", 3)
    table.put("a", 4)
    undo_to(undo, mark)
    assert list(table.scan()) == [("a", 1)]
    undo_to(undo, 0)
    assert len(table) == 0


def test_two_freezes_at_once_see_each_their_own_time() -> None:
    table = table_of(dict.fromkeys(range(10), 0))
    first = table.freeze()
    table.put(3, 1)
    second = table.freeze()
    table.delete(3)
    table.put(11, 1)
    assert walk(second) == [(key, 1 if key == 3 else 0) for key in range(10)]
    assert walk(first) == [(key, 0) for key in range(10)]
    assert not any(table._frozen)


def test_a_row_that_vanished_and_came_back_is_walked_once() -> None:
    table = table_of({1: "old", 2: "old"})
    frozen = table.freeze()
    table.delete(1)
    table.put(1, "new")
    table.delete(1)
    assert walk(frozen, 1) == [(1, "old"), (2, "old")]


def test_what_was_passed_costs_nothing_any_more() -> None:
    table = table_of(dict.fromkeys(range(10), 0))
    frozen = table.freeze()
    rows = frozen.next_rows(5)
    assert rows is not None
    frozen.passed(rows[-1][0])
    for key in range(5):
        table.put(key, 1)
    assert frozen._saved == {}
    frozen.close()
    frozen.close()
    table.put(9, 1)
    assert frozen._saved == {}
    assert frozen.next_rows(5) is None


def test_a_step_of_a_walk_is_short_however_many_younger_keys_there_are() -> None:
    table = table_of({0: "old", 1000: "old"})
    frozen = table.freeze()
    for key in range(1, 1000):
        table.put(key, "young")
    steps = []
    while (rows := frozen.next_rows(100)) is not None:
        steps.append(rows)
        if rows:
            frozen.passed(rows[-1][0])
    assert steps == [[(0, "old")], *[[]] * 9, [(1000, "old")]]
    assert frozen._saved == {}


def test_put_and_replace_leave_the_same() -> None:
    undo: UndoLog = []
    table: Table[Any, Any] = Table("p", "t", undo)
    table.put(1, "a")
    frozen = table.freeze()
    table.replace(1, "a", "b")
    assert undo[-1] == (table, 1, "a")
    assert walk(frozen) == [(1, "a")]
    assert table.view.get(1) == "b"
    undo_to(undo, 1)
    assert table.get(1) == "a"


def test_what_comes_behind_the_end_costs_a_walk_nothing() -> None:
    table = table_of({1: 1, 2: 2})
    frozen, of_nothing = table.freeze(), table_of({}).freeze()
    for key in range(3, 1000):
        table.put(key, 0)
    table.delete(2)
    assert frozen._saved == {2: 2}
    assert walk(frozen, 5) == [(1, 1), (2, 2)]
    assert walk(of_nothing, 5) == []


def test_a_restore_rebinds_table_and_view() -> None:
    table = table_of({1: 1})
    view = table.view
    other = table_of({2: 2})
    table.replace_all(other._rows)
    assert list(table.scan()) == list(view.scan()) == [(2, 2)]
    assert view.get(2) == table.get(2) == 2
    table.replace_all(None)
    assert len(view) == 0


def test_a_walk_survives_a_restore() -> None:
    table = table_of({1: 1, 2: 2})
    frozen = table.freeze()
    table.put(1, 9)
    table.replace_all(table_of({1: 5, 7: 7})._rows)
    table.put(2, 9)
    assert walk(frozen, 1) == [(1, 1), (2, 2)]


KEYS = st.integers(0, 12)


class TableModel(RuleBasedStateMachine):
    """Commands of several writes, accepted or undone, between the slices of several walks."""

    walks = Bundle("walks")

    @initialize(rows=st.dictionaries(KEYS, st.integers(0, 3)))
    def begin(self, rows: dict[int, int]) -> None:
        self.undo: UndoLog = []
        self.table: Table[int, int] = Table("p", "t", self.undo)
        self.model = dict(rows)
        for key, value in rows.items():
            self.table.put(key, value)
        self.undo.clear()

    @rule(
        writes=st.lists(st.tuples(KEYS, st.none() | st.integers(0, 3)), max_size=6),
        refused=st.booleans(),
    )
    def command(self, writes: list[tuple[int, int | None]], refused: bool) -> None:
        changed = dict(self.model)
        for key, value in writes:
            if value is None:
                assert self.table.delete(key) == (key in changed)
                changed.pop(key, None)
            else:
                self.table.put(key, value)
                changed[key] = value
            assert self.table.get(key) == changed.get(key)
        if refused:
            undo_to(self.undo, 0)
        else:
            self.model = changed
            self.undo.clear()

    @rule(target=walks)
    def freeze(self) -> tuple[FrozenTable, list[Any], list[Any]]:
        return self.table.freeze(), sorted(self.model.items()), []

    @rule(target=walks, walk=consumes(walks), count=st.integers(1, 4), take=st.integers(1, 4))
    def slice(self, walk: tuple[FrozenTable, list[Any], list[Any]], count: int, take: int) -> Any:
        frozen, expected, seen = walk
        # A caller may take fewer rows than it was given, when its chunk is full.
        rows = frozen.next_rows(count)
        if rows is None:
            assert seen == expected
            return multiple()
        if rows := rows[:take]:
            frozen.passed(rows[-1][0])
            seen += rows
        assert seen == expected[: len(seen)]
        return walk

    @rule(
        bounds=st.tuples(st.none() | KEYS, st.none() | KEYS),
        reverse=st.booleans(),
        limit=st.integers(0, 5),
    )
    def scan(self, bounds: tuple[int | None, int | None], reverse: bool, limit: int) -> None:
        first, last = bounds
        expected = [
            (key, value)
            for key, value in sorted(self.model.items(), reverse=reverse)
            if (first is None or first <= key) and (last is None or key < last)
        ]
        assert self.table.count(first, last) == len(expected)
        found = list(self.table.scan(first, last, reverse=reverse, limit=limit))
        assert found == (expected[:limit] if limit else expected)
        assert self.table.keys() == sorted(self.model)
        if not reverse:
            values = [value for _, value in found]
            assert self.table.values(first, last, limit=limit) == values

    @invariant()
    def equal(self) -> None:
        if hasattr(self, "table"):
            assert list(self.table.scan()) == sorted(self.model.items())


TestTableModel = TableModel.TestCase
TestTableModel.settings = settings(max_examples=150, stateful_step_count=30)


def test_every_interleaving_of_two_writes_and_a_walk() -> None:
    """Exhaustive where the model test is random: 4 keys, any two writes, any place in the walk."""
    writes = [(key, value) for key in range(4) for value in (None, 9)]
    for first, second in itertools.product(writes, repeat=2):
        for place in itertools.product(range(4), repeat=2):
            table = table_of({0: 0, 1: 1, 2: 2})
            frozen = table.freeze()
            seen: list[Any] = []
            for step in range(5):
                for (key, value), at in zip((first, second), place, strict=True):
                    if at != step:
                        continue
                    if value is None:
                        table.delete(key)
                    else:
                        table.put(key, value)
                if rows := frozen.next_rows(1):
                    frozen.passed(rows[-1][0])
                    seen += rows
            assert seen == [(0, 0), (1, 1), (2, 2)], (first, second, place)
