"""The keyspace against etcd's model."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftkv.errors import Refused, UnknownCommand
from raftkv.kv import (
    FROM_KEY,
    KV,
    Compare,
    DeleteRange,
    DeleteRangeOp,
    DeleteRangeResult,
    DuplicateKey,
    EmptyKey,
    KeyValue,
    LimitExceeded,
    Put,
    PutOp,
    PutResult,
    RangeOp,
    RangeResult,
    Txn,
    TxnResult,
    prefix_end,
)
from raftkv.state import StateMachine
from tests.kv.fake_host import FakeHost


@pytest.fixture
def host() -> FakeHost:
    return FakeHost()


def rows(host: FakeHost) -> dict[bytes, KeyValue]:
    assert host.machine.invariants() == []
    return dict(host.machine.view("kv").table("keys").scan())


def revision(host: FakeHost) -> int:
    found: int = host.machine.view("kv").table("meta").get("revision", 1)
    return found


def test_put(host: FakeHost) -> None:
    assert revision(host) == 1
    assert host.apply(Put(b"a", b"1")) == PutResult(2)
    assert host.apply(Put(b"a", b"2", True)) == PutResult(3, KeyValue(b"a", b"1", 2, 2, 1))
    assert host.apply(Put(b"b", b"3", True)) == PutResult(4, None)
    assert rows(host) == {
        b"a": KeyValue(b"a", b"2", 2, 3, 2),
        b"b": KeyValue(b"b", b"3", 4, 4, 1),
    }


def test_delete(host: FakeHost) -> None:
    for key in (b"a", b"b", b"c"):
        host.apply(Put(key, b""))
    assert host.apply(DeleteRange(b"x")) == DeleteRangeResult(4, 0)
    assert host.apply(DeleteRange(b"b")) == DeleteRangeResult(5, 1)
    prev = (KeyValue(b"a", b"", 2, 2, 1), KeyValue(b"c", b"", 4, 4, 1))
    assert host.apply(DeleteRange(b"\0", FROM_KEY, True)) == DeleteRangeResult(6, 2, prev)
    host.apply(Put(b"b", b"again"))
    assert rows(host) == {b"b": KeyValue(b"b", b"again", 7, 7, 1)}


@pytest.mark.parametrize(
    ("key", "end", "expected"),
    [
        (b"b", b"", [b"b"]),
        (b"bb", b"", []),
        (b"b", b"c", [b"b", b"ba"]),
        (b"b", FROM_KEY, [b"b", b"ba", b"c"]),
        (b"\0", FROM_KEY, [b"a", b"b", b"ba", b"c"]),
        (b"c", b"b", []),
        (b"b", prefix_end(b"b"), [b"b", b"ba"]),
    ],
)
def test_ranges(host: FakeHost, key: bytes, end: bytes, expected: list[bytes]) -> None:
    for name in (b"c", b"a", b"ba", b"b"):
        host.apply(Put(name, b"v"))
    result = host.apply(Txn(success=(RangeOp(key, end),))).results[0]
    assert [kv.key for kv in result.kvs] == expected
    assert (result.count, result.more, result.revision) == (len(expected), False, 5)
    assert host.apply(DeleteRange(key, end)).deleted == len(expected)
    assert set(rows(host)) == {b"a", b"b", b"ba", b"c"} - set(expected)


def test_range_limits(host: FakeHost) -> None:
    for name in (b"a", b"b", b"c"):
        host.apply(Put(name, b"v"))
    ops = (
        RangeOp(b"\0", FROM_KEY, limit=2),
        RangeOp(b"\0", FROM_KEY, limit=3),
        RangeOp(b"\0", FROM_KEY, count_only=True),
        RangeOp(b"a", keys_only=True),
    )
    limited, full, counted, keys = host.apply(Txn(success=ops)).results
    assert ([kv.key for kv in limited.kvs], limited.count, limited.more) == ([b"a", b"b"], 3, True)
    assert (len(full.kvs), full.more) == (3, False)
    assert counted == RangeResult(4, (), 3, False)
    assert keys.kvs == (KeyValue(b"a", b"", 2, 2, 1),)
    assert isinstance(host.apply(Txn(success=(RangeOp(b"a", limit=-1),))), LimitExceeded)


@pytest.mark.parametrize(
    ("prefix", "end"),
    [(b"a", b"b"), (b"a\xff", b"b"), (b"a\xff\xff", b"b"), (b"\xff", FROM_KEY), (b"", FROM_KEY)],
)
def test_prefix_end(prefix: bytes, end: bytes) -> None:
    assert prefix_end(prefix) == end


@given(st.binary(max_size=3), st.binary(max_size=4))
def test_prefix_end_bounds_just_the_prefix(prefix: bytes, key: bytes) -> None:
    end = prefix_end(prefix)
    assert key.startswith(prefix) == (key >= prefix and (end == FROM_KEY or key < end))


@pytest.mark.parametrize(
    ("compare", "holds"),
    [
        (Compare(b"a", "value", "=", b"2"), True),
        (Compare(b"a", "value", "!=", b"2"), False),
        (Compare(b"a", "value", ">", b"1"), True),
        (Compare(b"a", "value", "<", b"1"), False),
        (Compare(b"a", "version", "=", 2), True),
        (Compare(b"a", "create", "=", 2), True),
        (Compare(b"a", "mod", "=", 3), True),
        (Compare(b"a", "mod", ">", 3), False),
        (Compare(b"x", "version", "=", 0), True),
        (Compare(b"x", "create", "<", 1), True),
        (Compare(b"x", "mod", ">", 0), False),
        (Compare(b"x", "value", "=", b""), False),
        (Compare(b"x", "value", "!=", b""), False),
        (Compare(b"a", "version", ">", 0, range_end=b"c"), True),
        (Compare(b"a", "version", "=", 1, range_end=b"c"), False),
        (Compare(b"x", "version", "=", 0, range_end=b"z"), True),
        (Compare(b"x", "version", ">", 0, range_end=b"z"), False),
    ],
)
def test_compare(host: FakeHost, compare: Compare, holds: bool) -> None:
    host.apply(Put(b"a", b"1"))
    host.apply(Put(b"a", b"2"))
    host.apply(Put(b"b", b"1"))
    result = host.apply(Txn((compare,), (PutOp(b"yes", b""),), (PutOp(b"no", b""),)))
    assert result == TxnResult(5, holds, (PutResult(5),))
    assert (b"yes" in rows(host), b"no" in rows(host)) == (holds, not holds)


def test_all_comparisons_must_hold(host: FakeHost) -> None:
    absent = Compare(b"a", "version", "=", 0)
    present = Compare(b"a", "version", ">", 0)
    assert host.apply(Txn((absent, present))).succeeded is False
    assert host.apply(Txn((absent, absent))).succeeded is True
    assert host.apply(Txn()) == TxnResult(1, True, ())


def test_a_txn_takes_one_revision_and_reads_its_own_writes(host: FakeHost) -> None:
    host.apply(Put(b"old", b"1"))
    result = host.apply(
        Txn(
            success=(
                RangeOp(b"\0", FROM_KEY),
                PutOp(b"a", b"1"),
                PutOp(b"old", b"2", prev_kv=True),
                DeleteRangeOp(b"x", b"z"),
                RangeOp(b"\0", FROM_KEY),
            )
        )
    )
    before, put, replaced, deleted, after = result.results
    assert (before.revision, [kv.key for kv in before.kvs]) == (2, [b"old"])
    assert (put, deleted) == (PutResult(3), DeleteRangeResult(3, 0))
    assert replaced == PutResult(3, KeyValue(b"old", b"1", 2, 2, 1))
    assert after.kvs == (KeyValue(b"a", b"1", 3, 3, 1), KeyValue(b"old", b"2", 2, 3, 2))
    assert result.revision == revision(host) == 3


def test_a_txn_that_changes_nothing_takes_no_revision(host: FakeHost) -> None:
    host.apply(Put(b"a", b"1"))
    assert host.apply(Txn(success=(RangeOp(b"a"), DeleteRangeOp(b"x")))).revision == 2
    assert revision(host) == 2


@pytest.mark.parametrize(
    "branch",
    [
        (PutOp(b"a", b""), PutOp(b"a", b"")),
        (PutOp(b"a", b""), DeleteRangeOp(b"a")),
        (DeleteRangeOp(b"a", b"c"), PutOp(b"b", b"")),
        (DeleteRangeOp(b"a", FROM_KEY), PutOp(b"b", b"")),
    ],
)
def test_a_branch_may_not_change_a_key_twice(host: FakeHost, branch: Any) -> None:
    assert isinstance(host.apply(Txn(success=branch)), DuplicateKey)
    assert isinstance(host.apply(Txn(failure=branch)), DuplicateKey)
    assert revision(host) == 1


def test_two_deletions_of_one_key_are_allowed(host: FakeHost) -> None:
    host.apply(Put(b"a", b""))
    result = host.apply(Txn(success=(DeleteRangeOp(b"a"), DeleteRangeOp(b"a", b"c"))))
    assert [part.deleted for part in result.results] == [1, 0]
    ok = host.apply(Txn(success=(DeleteRangeOp(b"a", b"c"), PutOp(b"c", b""))))
    assert ok.succeeded


def test_empty_keys_are_refused(host: FakeHost) -> None:
    commands = [
        Put(b"", b""),
        DeleteRange(b"", FROM_KEY),
        Txn(success=(RangeOp(b""),)),
        Txn(success=(PutOp(b"", b""),)),
        Txn((Compare(b"", "version", "=", 0),)),
    ]
    for command in commands:
        assert isinstance(host.apply(command), EmptyKey)
    assert revision(host) == 1


def test_operands_must_fit_their_target(host: FakeHost) -> None:
    for compare in (Compare(b"a", "value", "=", 1), Compare(b"a", "mod", "=", b"1")):
        assert type(host.apply(Txn((compare,)))) is Refused
    nonsense = Compare(b"a", "what", "=", 1)  # type: ignore[arg-type]
    assert isinstance(host.apply(Txn((nonsense,))), UnknownCommand)


def test_sizes_are_limited(host: FakeHost) -> None:
    host.set("key_bytes_max", 2000)
    host.set("value_bytes_max", 3000)
    assert host.apply(Put(b"k" * 2000, b"v" * 3000)) == PutResult(2)
    for put in (Put(b"k" * 2001, b""), Put(b"k", b"v" * 3001)):
        assert isinstance(host.apply(put), LimitExceeded)
        txn = Txn(success=(PutOp(b"first", b""), PutOp(put.key, put.value)))
        assert isinstance(host.apply(txn), LimitExceeded)
    assert len(rows(host)) == 1


def test_the_settings_have_bounds(host: FakeHost) -> None:
    with pytest.raises(AssertionError):
        host.set("key_bytes_max", 10)
    assert host.settings["key_bytes_max"] == 65_536


def test_operations_rows_and_results_are_limited(host: FakeHost) -> None:
    host.set("txn_ops_max", 3)
    host.set("rows_max", 5)
    for number in range(6):
        host.apply(Put(b"%d" % number, b"v" * 40_000))
    four = tuple(RangeOp(b"0") for _ in range(4))
    too_many = [
        Txn(success=four),
        Txn(failure=four),
        Txn(tuple(Compare(b"a", "mod", "=", 0) for _ in range(4))),
        DeleteRange(b"\0", FROM_KEY),
        Txn(success=(RangeOp(b"\0", FROM_KEY),)),
        Txn((Compare(b"\0", "mod", ">", 0, FROM_KEY),)),
        Txn(success=(RangeOp(b"0", b"3"), DeleteRangeOp(b"0", b"3"))),
    ]
    for command in too_many:
        assert isinstance(host.apply(command), LimitExceeded), command
    assert len(rows(host)) == 6
    host.set("result_bytes_max", 100_000)
    big = [DeleteRange(b"0", b"3", True), Txn(success=(RangeOp(b"0", b"3"),))]
    for command in big:
        assert isinstance(host.apply(command), LimitExceeded), command
    assert host.apply(Txn(success=(RangeOp(b"0", FROM_KEY, count_only=True),))).succeeded
    assert host.apply(Txn(success=(RangeOp(b"0", FROM_KEY, limit=2),))).succeeded
    assert host.apply(DeleteRange(b"0", b"3")).deleted == 3


def test_invariants_see_a_bad_row(host: FakeHost) -> None:
    host.apply(Put(b"a", b""))
    keys = host.machine._all["kv"].tables["keys"]
    keys.put(b"b", KeyValue(b"c", b"", 9, 5, 0))
    assert len(host.machine.invariants()) == 3


# A model in plain Python, written from etcd's documentation and not from the code.

KEYS = st.sampled_from([b"a", b"b", b"ba", b"c"])
ENDS = st.sampled_from([b"", b"", b"b", b"bb", b"d", FROM_KEY])
OPS = st.one_of(
    st.builds(PutOp, KEYS, st.binary(max_size=1), st.booleans()),
    st.builds(DeleteRangeOp, KEYS, ENDS, st.booleans()),
    st.builds(RangeOp, KEYS, ENDS, st.integers(0, 2), st.booleans(), st.booleans()),
)
COMPARES = st.one_of(
    st.builds(
        Compare,
        KEYS,
        st.sampled_from(["version", "create", "mod"]),
        st.sampled_from(["=", "!=", ">", "<"]),
        st.integers(0, 5),
        ENDS,
    ),
    st.builds(
        Compare,
        KEYS,
        st.just("value"),
        st.sampled_from(["=", "!=", ">", "<"]),
        st.binary(max_size=1),
        ENDS,
    ),
)
COMMANDS = st.one_of(
    st.builds(Put, KEYS, st.binary(max_size=1), st.booleans()),
    st.builds(DeleteRange, KEYS, ENDS, st.booleans()),
    st.builds(
        Txn,
        st.lists(COMPARES, max_size=2).map(tuple),
        st.lists(OPS, max_size=3).map(tuple),
        st.lists(OPS, max_size=3).map(tuple),
    ),
)


class Model:
    def __init__(self) -> None:
        self.revision = 1
        self.keys: dict[bytes, dict[str, Any]] = {}

    def within(self, key: bytes, end: bytes) -> list[bytes]:
        if end == b"":
            return [name for name in self.keys if name == key]
        return sorted(n for n in self.keys if n >= key and (end == b"\0" or n < end))

    def holds(self, c: Compare) -> bool:
        found = [self.keys[name] for name in self.within(c.key, c.range_end)]
        if not found and c.target == "value":
            return False
        values = [kv[c.target] for kv in found] or [0]
        tests = {"=": "__eq__", "!=": "__ne__", ">": "__gt__", "<": "__lt__"}
        return all(getattr(value, tests[c.op])(c.operand) for value in values)

    def do(self, op: Any, at: int) -> bool:
        """Whether it changed anything."""
        if isinstance(op, Put | PutOp):
            old = self.keys.get(op.key, {"create": at, "version": 0})
            self.keys[op.key] = {
                "value": op.value,
                "create": old["create"],
                "mod": at,
                "version": old["version"] + 1,
            }
            return True
        if isinstance(op, DeleteRange | DeleteRangeOp):
            names = self.within(op.key, op.range_end)
            for name in names:
                del self.keys[name]
            return bool(names)
        return False

    def twice(self, ops: Any) -> bool:
        puts = [op.key for op in ops if isinstance(op, PutOp)]
        model = Model()
        model.keys = {key: {} for key in puts}
        ranges = [op for op in ops if isinstance(op, DeleteRangeOp)]
        return len(set(puts)) < len(puts) or any(model.within(r.key, r.range_end) for r in ranges)

    def apply(self, command: Any) -> str:
        ops: Any = (command,)
        if isinstance(command, Txn):
            if self.twice(command.success) or self.twice(command.failure):
                return "duplicate"
            ops = command.success if all(map(self.holds, command.compare)) else command.failure
        changed = [self.do(op, self.revision + 1) for op in ops]
        self.revision += any(changed)
        return "ok"


@given(st.lists(COMMANDS, max_size=25))
@settings(max_examples=200, deadline=None)
def test_against_a_model(commands: list[Any]) -> None:
    host, model = FakeHost(), Model()
    for command in commands:
        expected = model.apply(command)
        outcome = host.apply(command)
        assert isinstance(outcome, DuplicateKey) == (expected == "duplicate")
        assert revision(host) == model.revision
        if expected == "ok":
            assert outcome.revision == model.revision
    found = {
        key: {
            "value": kv.value,
            "create": kv.create_revision,
            "mod": kv.mod_revision,
            "version": kv.version,
        }
        for key, kv in rows(host).items()
    }
    assert found == model.keys
    other = StateMachine([KV()])
    other.restore(list(host.machine.freeze().slices(2)), host.machine.index)
    assert other.digest() == host.machine.digest()
