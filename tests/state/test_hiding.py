"""A command that is applied in slices: readers see the state before it until it has ended."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftkv.errors import Refused
from raftkv.kv import (
    KV,
    DeleteRange,
    DeleteRangeOp,
    Grant,
    Put,
    PutOp,
    PutWith,
    RangeOp,
    Txn,
)
from raftkv.kv.changing import SLICE_KEYS
from raftkv.state.hiding import Hidden
from raftkv.state.machine import StateMachine
from raftkv.state.rows import ShardedRows
from raftkv.state.tables import Table, UndoLog
from raftkv.waste import Waste
from tests.state.test_slices import Log, puts

KEYS = 5 * SLICE_KEYS
ALL = (b"\0", b"\0")


def filled(keys: int = KEYS) -> Log:
    log = Log()
    log.machine.apply(3, log.body(*puts(keys)))
    return log


def look(machine: StateMachine) -> tuple[Any, ...]:
    """All that a reader can find in the keyspace."""
    view = machine.view("kv")
    keys = view.table("keys")
    return (
        list(keys.scan()),
        list(keys.scan(reverse=True, limit=3)),
        len(keys),
        keys.count(b"000100", b"000200"),
        keys.get(b"000150"),
        b"000150" in keys,
        view.table("meta").get("revision"),
        list(view.table("history").scan())[-1],
        list(view.table("attached").scan()),
        keys.values(),
        keys.values(b"000100", b"000200", limit=5),
    )


def test_readers_see_the_state_before_a_deletion_until_all_keys_are_gone() -> None:
    log = filled()
    before = look(log.machine)
    slices = 0
    for outcomes in log.machine.slices(4, log.body(DeleteRange(*ALL))):
        if outcomes:
            break
        assert look(log.machine) == before
        slices += 1
    assert slices > 2 * KEYS // SLICE_KEYS
    assert log.machine.index == 4
    assert outcomes[0][2].deleted == KEYS
    assert look(log.machine)[2] == 0
    assert log.revision == before[6] + 1


def test_callers_of_the_commands_before_it_are_answered_first() -> None:
    log = filled()
    commands = [Put(b"a", b""), DeleteRange(*ALL), Put(b"b", b"")]
    steps = list(log.machine.slices(4, log.body(*commands)))
    assert len(steps[0]) == 1
    assert [len(outcomes) for outcomes in steps[-2:]] in ([1, 1], [0, 2], [2])
    assert sum(map(len, steps)) == 3


@pytest.mark.parametrize(
    "command",
    [
        DeleteRange(*ALL),
        DeleteRange(b"000100", b"\0", prev_kv=True),
        Txn(
            success=(
                PutOp(b"z", b"1"),
                DeleteRangeOp(b"0", b"1"),
                RangeOp(b"\0", b"\0"),
                PutOp(b"y", b"2"),
            )
        ),
    ],
)
def test_in_slices_and_at_once_are_the_same(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for slice_keys in (SLICE_KEYS, 10, 10**9):
        monkeypatch.setattr("raftkv.kv.changing.SLICE_KEYS", slice_keys)
        log = filled(2 * SLICE_KEYS)
        outcomes = log.machine.apply(4, log.body(command, Put(b"x", b"")))
        found.append((outcomes, log.machine.digest()))
    assert found[0] == found[1] == found[2]


def test_a_command_that_is_refused_in_the_middle_leaves_nothing() -> None:
    log = filled()
    digest_before = log.machine.digest()
    before = look(log.machine)
    fails = Txn(success=(DeleteRangeOp(*ALL), PutOp(b"z", b"1", lease=12345)))
    outcome = log.machine.apply(4, log.body(fails))[0][2]
    assert isinstance(outcome, Refused)
    assert look(log.machine) == before
    # Only the session's outcome is new.
    again = filled()
    again.machine.apply(4, again.body(fails))
    assert again.machine.digest() == log.machine.digest() != digest_before


def test_what_a_gate_refuses_at_the_end_is_undone_in_slices_unseen() -> None:
    log = filled()
    before = look(log.machine)
    routed = log.machine._all["kv"]
    plain = routed.apply

    def refusing(command: Any, ctx: Any) -> Any:
        def steps() -> Any:
            yield from plain(command, ctx)
            raise Refused("at the end")

        return steps()

    routed.apply = refusing
    steps = []
    for outcomes in log.machine.slices(4, log.body(DeleteRange(*ALL))):
        steps.append(outcomes)
        assert look(log.machine) == before
    assert isinstance(steps[-1][0][2], Refused)
    assert len(steps) > 2 * KEYS // SLICE_KEYS + 2, "the undo was not sliced"
    routed.apply = plain
    log.machine.apply(5, log.body(DeleteRange(*ALL)))
    assert look(log.machine)[2] == 0


def test_the_writes_of_the_last_slice_are_undone_unseen() -> None:
    """They were not taken up, for no reader has had a turn since."""
    keys = 2 * SLICE_KEYS - 1
    log = Log()
    log.machine.apply(3, log.body(Grant(600, 7)))
    log.machine.apply(4, log.body(*[PutWith(put.key, put.value, lease=7) for put in puts(keys)]))
    before = look(log.machine)
    routed = log.machine._all["kv"]
    plain = routed.apply

    def refusing(command: Any, ctx: Any) -> Any:
        yield from plain(command, ctx)
        raise Refused("at the end")

    routed.apply = refusing
    for _ in log.machine.slices(5, log.body(DeleteRange(*ALL))):
        assert look(log.machine) == before
    assert log.machine.index == 5


def test_listeners_get_the_revision_whole() -> None:
    log = filled()
    got: list[int] = []
    log.machine.subscribe(lambda index, changes: got.append(len(changes)), ("kv",))
    log.machine.apply(4, log.body(DeleteRange(*ALL)))
    assert got == [KEYS + 2]


def test_a_snapshot_that_was_begun_before_goes_on_over_the_state_that_it_froze() -> None:
    log = filled()
    copy = log.machine.freeze()
    expected = b"".join(log.machine.freeze().slices(500))
    chunks = copy.slices(500)
    read = [next(chunks)]
    for _ in log.machine.slices(4, log.body(DeleteRange(*ALL))):
        read += [chunk for chunk in [next(chunks, b"")] if chunk]
    assert b"".join([*read, *chunks]) == expected


def test_a_snapshot_replaces_a_command_in_the_middle() -> None:
    log, other = filled(), filled()
    other.machine.apply(4, other.body(Put(b"z", b"z")))
    slices = log.machine.slices(4, log.body(DeleteRange(*ALL)))
    for _ in range(8):
        next(slices)
    log.machine.restore(list(other.machine.freeze().slices(100)), 4)
    del slices
    assert log.machine.digest() == other.machine.digest()
    assert look(log.machine) == look(other.machine)


def test_a_stop_in_the_middle_shows_no_half_of_a_command() -> None:
    log = filled()
    before = look(log.machine)
    slices = log.machine.slices(4, log.body(DeleteRange(*ALL)))
    for _ in range(8):
        next(slices)
    del slices
    assert look(log.machine) == before


def test_rows_of_a_run_are_written_in_the_last_slice_or_the_plugin_has_failed() -> None:
    log = filled(10)
    routed = log.machine._all["kv"]

    def apply(command: Any, ctx: Any) -> Any:
        ctx.table("history").delete_first(1)
        yield

    routed.apply = apply
    before = look(log.machine)
    outcome = log.machine.apply(4, log.body(Put(b"a", b"")))[0][2]
    assert isinstance(outcome, Refused)
    assert look(log.machine) == before


Writes = st.lists(
    st.tuples(st.integers(0, 40), st.sampled_from(["put", "delete"]), st.booleans()), max_size=60
)


@given(st.sets(st.integers(0, 40)), Writes, st.booleans(), st.booleans())
def test_before_is_the_table_as_it_was(
    keys: set[int], writes: list[tuple[int, str, bool]], grown: bool, undone: bool
) -> None:
    undo: UndoLog = []
    table: Table[int, int] = Table("p", "t", undo)
    for key in sorted(keys):
        table.put(key, -key)
    if grown:
        table._swap(ShardedRows.of(table._rows))  # type: ignore[arg-type]
    undo.clear()
    was = list(table.view.scan())
    hidden = Hidden(undo, Waste())
    for number, (key, what, pause) in enumerate(writes):
        if what == "put":
            table.put(key, number)
        else:
            table.delete(key)
        if pause:
            hidden.take_up()
            _check(table, was)
    hidden.take_up()
    _check(table, was)
    now = was
    if undone:
        while hidden.undo_some():
            _check(table, was)
        _check(table, was)
    else:
        now = [(key, table[key]) for key in table._rows]
    hidden.lift()
    assert list(table.view.scan()) == now
    assert table.view._rows is table._rows


def _check(table: Table[int, int], was: list[tuple[int, int]]) -> None:
    view, rng = table.view, random.Random(1)
    rows = dict(was)
    assert len(view) == len(was)
    low, high = sorted((rng.randrange(42), rng.randrange(42)))
    for first, last in ((None, None), (low, high), (None, high), (low, None)):
        wanted = [
            (key, value)
            for key, value in was
            if (first is None or first <= key) and (last is None or key < last)
        ]
        assert list(view.scan(first, last)) == wanted
        assert list(view.scan(first, last, reverse=True)) == wanted[::-1]
        assert view.count(first, last) == len(wanted)
    for key in range(42):
        assert view.get(key, None) == rows.get(key)
        assert (key in view) == (key in rows)
        if key in rows:
            assert view[key] == rows[key]
        else:
            with pytest.raises(KeyError):
                view[key]


def test_a_view_of_the_plugin_is_the_same_object_throughout() -> None:
    """Readers keep views; what lies behind them is exchanged."""
    log = filled()
    keys = log.machine.view("kv").table("keys")
    next(iter(log.machine.slices(4, log.body(DeleteRange(*ALL)))))
    assert log.machine.view("kv").table("keys") is keys
    assert KV.name == "kv"
