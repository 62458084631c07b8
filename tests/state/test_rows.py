"""rows.py: a table's rows, small and sharded, behave like a sorted dict."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftkv.state import rows as rows_module
from raftkv.state import tables as tables_module
from raftkv.state.rows import ShardedRows, SmallRows, grown
from raftkv.state.tables import Table, UndoLog
from raftkv.waste import KEPT_ITEMS_MIN, Waste

KEYS = st.one_of(st.integers(0, 40).map(lambda number: (number % 7, str(number))))
WRITES = st.lists(st.tuples(KEYS, st.none() | st.integers()), max_size=60)


def small(content: dict[Any, Any]) -> SmallRows:
    rows = SmallRows()
    for key, value in content.items():
        rows[key] = value
    return rows


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(KEYS, st.integers()), WRITES)
def test_sharded_rows_are_a_sorted_dict(
    before: dict[Any, int], writes: list[tuple[Any, int | None]]
) -> None:
    rows, model = ShardedRows.of(small(before)), dict(before)
    for key, value in writes:
        assert (key in rows) == (key in model)
        assert rows.get(key) == model.get(key)
        if value is None and key in model:
            del rows[key], model[key]
        elif value is not None:
            rows[key] = model[key] = value
            rows.replace(key, value)
    assert len(rows) == len(model)
    assert list(rows) == list(rows.irange()) == sorted(model)
    assert [rows[key] for key in rows] == [model[key] for key in sorted(model)]
    for key in model:
        assert rows.bisect_left(key) == sorted(model).index(key)
    rows.drop_some(len(model) // 2)
    assert list(rows) == sorted(model)[: len(model) - len(model) // 2]


def test_a_missing_key_is_a_key_error() -> None:
    rows = ShardedRows()
    with pytest.raises(KeyError):
        rows[1]
    with pytest.raises(KeyError):
        del rows[1]
    assert rows.get(1, "none") == "none"


def test_rows_grow_once_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "SMALL_ROWS_MAX", 3)
    rows = small({1: 1, 2: 2, 3: 3})
    assert grown(rows) is rows
    rows[4] = 4
    sharded = grown(rows)
    assert isinstance(sharded, ShardedRows)
    assert list(sharded) == [1, 2, 3, 4]
    assert grown(sharded) is sharded


def test_a_table_that_grows_keeps_its_views_its_walks_and_its_undo(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rows_module, "SMALL_ROWS_MAX", 3)
    monkeypatch.setattr(tables_module, "SMALL_ROWS_MAX", 3)
    undo: UndoLog = []
    table: Table[int, int] = Table("p", "t", undo)
    for key in range(4):
        table.put(key, key)
    frozen = table.freeze()
    frozen.passed(frozen.next_rows(1)[0][0])
    crowded = [table.crowded]
    table.grow()
    assert [*crowded, table.crowded] == [True, False]
    table.put(2, 20)
    table.delete(3)
    table.put(9, 9)
    assert list(table.view.scan()) == [(0, 0), (1, 1), (2, 20), (9, 9)]
    assert table.view.get(2) == table.get(2) == 20
    seen = []
    while part := frozen.next_rows(2):
        seen += part
        frozen.passed(part[-1][0])
    assert seen == [(1, 1), (2, 2), (3, 3)]
    tables_module.undo_to(undo, 4)
    assert list(table.scan()) == [(0, 0), (1, 1), (2, 2), (3, 3)]


def test_what_was_saved_is_let_go_as_the_walk_passes() -> None:
    table: Table[int, int] = Table("p", "t", [])
    for key in range(100):
        table.put(key, key)
    frozen = table.freeze()
    for key in range(100):
        table.delete(key)
    kept = []
    while part := frozen.next_rows(10):
        frozen.passed(part[-1][0])
        kept.append((len(frozen._saved), len(frozen._ghosts)))
    assert kept[0] == (90, 90)
    assert kept[-1] == (0, 0)


def test_replaced_rows_are_freed_after_the_last_walk_over_them() -> None:
    waste = Waste()
    table: Table[int, int] = Table("p", "t", [], waste)
    for key in range(KEPT_ITEMS_MIN + 1):
        table.put(key, key)
    walks = [table.freeze(), table.freeze()]
    table.replace_all(small({1: 1}))
    assert len(waste) == 0
    walks[0].close()
    assert len(waste) == 0
    assert walks[1].next_rows(2) == [(0, 0), (1, 1)]
    walks[1].close()
    assert len(waste) == 1
    table.replace_all(None)
    assert len(waste) == 1, "a small table is freed at once"
