"""rows.py: a table's rows, small and sharded, behave like a sorted dict."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftkv.errors import ConfigError
from raftkv.state import StateMachine, TableSpec
from raftkv.state import rows as rows_module
from raftkv.state import tables as tables_module
from raftkv.state.rows import RunRows, ShardedRows, SmallRows, grown
from raftkv.state.runs import FrozenRun, RunTable
from raftkv.state.tables import Table, UndoLog, undo_to
from raftkv.waste import KEPT_ITEMS_MIN, Waste
from tests.state.harness import Bank

KEYS = st.one_of(st.integers(0, 40).map(lambda number: (number % 7, str(number))))
WRITES = st.lists(st.tuples(KEYS, st.none() | st.integers()), max_size=60)


def small(content: dict[Any, Any]) -> SmallRows:
    rows = SmallRows()
    for key, value in content.items():
        rows[key] = value
    return rows


@settings(max_examples=150)
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


@settings(max_examples=100)
@given(
    st.sets(st.integers(0, 400), max_size=60),
    st.lists(st.integers(1, 20), max_size=12),
    st.sets(st.integers(0, 400), max_size=40),
    st.sampled_from([SmallRows, ShardedRows]),
    st.integers(4, 9),
)
def test_rows_that_are_extended_are_a_sorted_dict(
    before: set[int], chunks: list[int], after: set[int], kind: Any, load: int
) -> None:
    """Snapshots are read so: chunk by chunk, each behind the last; then commands come."""
    rows: Any = small(dict.fromkeys(before, "before"))
    if kind is ShardedRows:
        rows = ShardedRows.of(rows)
        rows._keys._reset(load)
    model = dict.fromkeys(sorted(before), "before")
    for size in chunks:
        first = max(model, default=-1) + 1
        chunk = [(number, "chunk") for number in range(first, first + 2 * size, 2)]
        rows.extend(chunk)
        model.update(chunk)
    assert list(rows) == list(model)
    for number in after:
        rows[number] = model[number] = "after"
    for number in sorted(after)[::2]:
        del rows[number], model[number]
    ordered = sorted(model)
    assert list(rows) == ordered
    assert len(rows) == len(model)
    assert rows.pick(ordered, None) == [(number, model[number]) for number in ordered]
    assert [rows.bisect_left(number) for number in ordered] == list(range(len(ordered)))
    if isinstance(rows, ShardedRows):
        rows._keys._check()  # what a SortedList demands of its own lists


@pytest.mark.parametrize("make", [SmallRows, ShardedRows, RunRows])
@pytest.mark.parametrize("keys", [(5,), (4, 6), (8, 7), (6, 6)])
def test_rows_are_extended_behind_the_last_only(make: Any, keys: tuple[int, ...]) -> None:
    rows = make()
    rows.extend([(4, "a"), (5, "b")])
    with pytest.raises(ValueError, match=r"behind|next to"):
        rows.extend([(key, "c") for key in keys])


def test_a_snapshot_whose_rows_are_out_of_order_is_damaged() -> None:
    """The digest is of what was written; the order is what the tables stand on."""
    rows = ShardedRows()
    rows.extend([])
    assert list(rows) == []
    with pytest.raises(ValueError, match="behind"):
        rows.extend([(2, "a"), (1, "b")])


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
    frozen.passed((frozen.next_rows(1) or [])[0][0])
    crowded = [table.crowded]
    table.grow()
    assert [*crowded, table.crowded] == [True, False]
    table.put(2, 20)
    table.delete(3)
    table.put(9, 9)
    assert list(table.view.scan()) == [(0, 0), (1, 1), (2, 20), (9, 9)]
    assert table.view.get(2) == table.get(2) == 20
    seen = []
    while (part := frozen.next_rows(2)) is not None:
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
    while (part := frozen.next_rows(10)) is not None:
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


# Runs --------------------------------------------------------------------------------------------

RUN_STEPS = st.lists(
    st.sampled_from(["push", "push", "push", "shift", "shift", "take", "pop", "back", "set"])
)


def check_run(rows: RunRows, model: dict[int, int]) -> None:
    keys = sorted(model)
    assert (len(rows), list(rows), list(rows.irange())) == (len(model), keys, keys)
    assert [rows[key] for key in rows] == [model[key] for key in keys]
    low, high = (keys[0] - 2, keys[-1] + 2) if keys else (0, 3)
    for key in range(low, high + 1):
        assert (key in rows) == (key in model)
        assert rows.get(key, "none") == model.get(key, "none")
        assert rows.bisect_left(key) == sum(other < key for other in keys)
        assert list(rows.irange(key)) == [k for k in keys if k >= key]
        assert list(rows.irange(key, None, (False, False))) == [k for k in keys if k > key]
        expected = [k for k in reversed(keys) if low + 1 <= k < key]
        assert list(rows.irange(low + 1, key, (True, False), True)) == expected


@settings(max_examples=150)
@given(st.integers(-3, 10), RUN_STEPS, st.sampled_from([2, 1000]))
def test_a_run_is_a_sorted_dict_of_consecutive_numbers(
    start: int, steps: list[str], slack: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_module, "RUN_SLACK", slack)
        rows, model = RunRows(), dict[int, int]()
        for number, step in enumerate(steps):
            first, last = min(model, default=start), max(model, default=start - 1)
            if step == "push":
                rows[last + 1] = model[last + 1] = number
            elif step == "back" and model:
                rows[first - 1] = model[first - 1] = number
            elif step == "set" and model:
                rows[last] = model[last] = number
                rows.replace(first, -number)
                model[first] = -number
            elif step == "take" and len(model) > 2:
                taken = rows.take_first(2)
                assert taken == [model[first], model[first + 1]]
                if number % 2:
                    rows.put_first(taken)
                else:
                    del model[first], model[first + 1]
            elif step in ("shift", "pop") and model:
                key = first if step == "shift" else last
                del rows[key], model[key]
            check_run(rows, model)
        rows.drop_some(len(model) // 2)
        assert list(rows) == sorted(model)[: len(model) - len(model) // 2]
        rows.drop_some(1000)
        assert len(rows) == 0


def test_a_run_takes_no_other_keys() -> None:
    rows = RunRows()
    for key in range(7, 12):
        rows[key] = key
    for key in (5, 13, -1):
        with pytest.raises(ValueError, match="next to"):
            rows[key] = 0
    with pytest.raises(ValueError, match="neither end"):
        del rows[9]
    for key in (6, 12):
        with pytest.raises(KeyError):
            del rows[key]
        with pytest.raises(KeyError):
            rows[key]
    assert list(rows) == [7, 8, 9, 10, 11]


def test_a_long_run_lets_go_of_what_was_removed() -> None:
    rows = RunRows()
    for key in range(10_000):
        rows[key] = key
        if key >= 500:
            del rows[key - 500]
    assert list(rows) == list(range(9500, 10_000))
    assert len(rows._values) <= 500 + 2 * rows_module.RUN_SLACK


TABLE_STEPS = st.lists(
    st.sampled_from(["push", "shift", "cut", "set", "freeze", "walk", "thaw", "undo"])
)


@settings(max_examples=100)
@given(st.integers(0, 12), TABLE_STEPS)
def test_a_table_that_is_a_run_is_undone_and_walked_like_any_other(
    rows: int, steps: list[str]
) -> None:
    undo: UndoLog = []
    table = RunTable[int]("p", "t", undo)
    for key in range(rows):
        table.put(key, 0)
    undo.clear()
    before = now = dict(table.scan())
    frozen, expected, seen = table.freeze(), dict(now), dict[int, int]()
    for number, step in enumerate([*steps, *["walk"] * 40], 1):
        first, last = min(now, default=rows), max(now, default=rows - 1)
        if step == "push":
            table.put(last + 1, number)
            now = {**now, last + 1: number}
        elif step == "shift" and now:
            table.delete(first)
            now = {key: value for key, value in now.items() if key != first}
        elif step == "cut":
            table.delete_first(number % 4)
            now = {key: value for key, value in now.items() if key >= first + number % 4}
        elif step == "thaw":
            undo.clear()
            frozen.close()
            before, expected = now, dict(seen)
        elif step == "set" and now:
            table.put(last, number)
            now = {**now, last: number}
        elif step == "undo":
            undo_to(undo, 0)
            now = before
        elif step == "freeze":
            frozen.close()
            undo.clear()
            frozen, expected, seen, before = table.freeze(), dict(now), {}, now
        elif step == "walk":
            part = frozen.next_rows(2)
            if part:
                seen.update(part)
                frozen.passed(part[-1][0])
        assert dict(table.scan()) == now
        assert list(table.scan(2, 9, reverse=True)) == sorted(
            ((key, value) for key, value in now.items() if 2 <= key < 9), reverse=True
        )
        assert table.count(3) == sum(key >= 3 for key in now)
    assert seen == expected


def run_of(count: int, waste: Waste | None = None, undo: UndoLog | None = None) -> RunTable[int]:
    undo = [] if undo is None else undo
    table = RunTable[int]("p", "t", undo, waste)
    for key in range(count):
        table.put(key, 10 * key)
    undo.clear()
    return table


def pairs(keys: range) -> list[tuple[int, int]]:
    return [(key, 10 * key) for key in keys]


def test_what_is_cut_during_a_walk_goes_aside_as_it_was_cut() -> None:
    table = run_of(20)
    frozen = table.freeze()
    assert isinstance(frozen, FrozenRun)
    frozen.passed((frozen.next_rows(3) or [])[-1][0])
    table.delete_first(2)  # of these the walk has given all,
    assert len(frozen._cut) == 0
    table.delete_first(4)  # of these one,
    table.delete_first(5)
    table.put(20, 0)
    table.put(21, 0)
    table.delete_first(10)  # and of these one is younger.
    assert len(frozen._saved) == 0
    assert len(frozen._cut) == 17
    assert frozen.next_rows(4) == pairs(range(3, 7))
    frozen.passed(4)
    assert frozen.next_rows(100) == pairs(range(5, 20))
    frozen.passed(12)
    assert len(frozen._cut) == 9, "what is passed is let go, piece by piece"
    frozen.passed(19)
    assert frozen.next_rows(1) is None


def test_a_cut_that_is_undone_is_kept_once_and_before_what_comes_later() -> None:
    undo: UndoLog = []
    table = run_of(10, undo=undo)
    frozen = table.freeze()
    table.delete_first(4)
    undo_to(undo, 0)
    table.put(2, -1)  # it is in the piece already,
    undo.clear()
    assert len(frozen._saved) == 0
    table.delete_first(6)  # and so are the first four of these.
    undo.clear()
    assert len(frozen._cut) == 6
    assert frozen.next_rows(100) == pairs(range(10))


def test_what_a_walk_over_a_run_has_passed_is_let_go() -> None:
    table = run_of(10)
    frozen = table.freeze()
    table.put(0, -1)
    table.put(9, -1)
    table.delete_first(4)
    frozen.passed(3)
    assert len(frozen._cut) == 0
    assert list(frozen._saved) == [9]
    table.put(9, -2)
    table.delete_first(5)
    assert frozen.next_rows(100) == pairs(range(4, 10))
    frozen.passed(9)
    assert len(frozen._cut) == len(frozen._saved) == 0


def test_cuts_of_a_captured_run_are_told_row_by_row() -> None:
    undo: UndoLog = []
    table = run_of(5, undo=undo)
    table.capture(undo.append)
    table.delete_first(2)
    assert [(key, old) for _, key, old in undo] == pairs(range(2))


def test_the_remains_of_a_walk_over_a_run_are_freed_in_steps() -> None:
    waste = Waste()
    table = run_of(4 * KEPT_ITEMS_MIN, waste)
    frozen = table.freeze()
    table.delete_first(KEPT_ITEMS_MIN)
    table.delete_first(KEPT_ITEMS_MIN)
    frozen.close()
    assert len(waste) == 1
    assert waste.sweep(KEPT_ITEMS_MIN - 1)
    assert not waste.sweep(KEPT_ITEMS_MIN)
    assert table.freeze().next_rows(1) == pairs(range(2 * KEPT_ITEMS_MIN, 2 * KEPT_ITEMS_MIN + 1))


def test_a_run_of_text_is_a_wrong_declaration() -> None:
    class Wrong(Bank):
        tables = (TableSpec("t", str, int, run=True),)

    with pytest.raises(ConfigError, match="its keys are no ints"):
        StateMachine([Wrong()])


@pytest.mark.parametrize(
    ("key_of", "watched"), [(lambda n: b"%d" % n, False), (lambda n: (n % 3, n), True)]
)
def test_the_collector_never_goes_back_and_forth_on_shards(
    key_of: Callable[[int], Any], watched: bool
) -> None:
    """A shard that it lets go and takes up again is looked at, whole, in every small collection."""
    rows = ShardedRows.of(small({key_of(number): number for number in range(500)}))
    gc.collect()  # tuples of numbers are no longer tracked now
    for number in range(500, 1000):
        rows[key_of(number)] = number
    assert {gc.is_tracked(shard) for shard in rows._shards} == {watched}
    gc.collect()
    assert {gc.is_tracked(shard) for shard in rows._shards} == {watched}
    assert sorted(rows) == sorted(key_of(number) for number in range(1000))
