"""What the keyspace's commands cost, in rows."""

from __future__ import annotations

import msgspec
import pytest

from raftkv.errors import Refused
from raftkv.kv import (
    FROM_KEY,
    Compact,
    Compare,
    DeleteRange,
    DeleteRangeOp,
    Grant,
    Put,
    PutOp,
    PutWith,
    RangeOp,
    Revoke,
    Txn,
)
from raftkv.kv.commands import Expire, FlatTxn, NestedTxn
from raftkv.kv.cost import EXPIRE_LEASES_MAX
from raftkv.state import Envelope
from tests.kv.fake_host import FakeHost

ALL = RangeOp(b"\0", FROM_KEY)
ANY = Compare(b"\0", "version", ">", 0, FROM_KEY)


@pytest.fixture
def host() -> FakeHost:
    """A hundred keys, of which thirty have the lease 1."""
    host = FakeHost()
    host.apply(Grant(60, 1))
    for number in range(100):
        host.apply(PutWith(b"%02d" % number, b"v", lease=1 if number < 30 else 0))
    return host


def estimate(host: FakeHost, command: msgspec.Struct) -> int:
    envelope = Envelope(1, 1, 1, "kv", msgspec.msgpack.encode(command))
    return host.machine.estimate(msgspec.msgpack.encode(envelope))


def test_estimates_of_the_commands(host: FakeHost) -> None:
    put = (PutOp(b"x", b""),)
    expected: list[tuple[msgspec.Struct, int]] = [
        (Put(b"a", b""), 0),
        (PutWith(b"a", b"", lease=1), 0),
        (Grant(60), 0),
        (DeleteRange(b"05"), 1),
        (DeleteRange(b"05", b"15"), 10),
        (Revoke(1), 31),
        (Revoke(2), 0),
        (Expire(1, (1, 2)), 31),
        (Compact(50), 100),
        (Txn((), put), 1),
        (Txn((Compare(b"no", "mod", "=", 0),), put), 2),
        (Txn((ANY,), put), 101),
        (Txn((ANY, ANY), put, (ALL,)), 300),
        (Txn((), (RangeOp(b"\0", FROM_KEY, limit=7),)), 7),
        (Txn((), (RangeOp(b"\0", FROM_KEY, limit=7, descending=True),)), 100),
        (Txn((), (RangeOp(b"\0", FROM_KEY, count_only=True),)), 0),
        (Txn((), (RangeOp(b"05", revision=51),)), 51),
        (Txn((), (DeleteRangeOp(b"05", b"15"),)), 10),
        (Txn((), (NestedTxn(0),), (), (FlatTxn((ANY,), (ALL,)),)), 200),
        # Malformed ones are not followed.
        (Txn((), (NestedTxn(7), NestedTxn(0)), (), (FlatTxn((), (NestedTxn(0),)),)), 0),
    ]
    for command, rows in expected:
        assert estimate(host, command) == 1 + rows, command


@pytest.mark.parametrize(
    "command",
    [
        Txn((ANY,) * 129),
        Txn((), (DeleteRangeOp(b"05", b"15"),) * 129),
        Txn((), (NestedTxn(0),), (), (FlatTxn((), (ALL,) * 128),)),
        Txn((), (), (), (FlatTxn((ANY,)),)),
    ],
)
def test_what_is_refused_unseen_costs_its_size_and_nothing_is_counted(
    host: FakeHost, command: Txn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API sends no such transaction; a node that sends one must not hold up the leader."""

    def refuse(*arguments: object) -> int:
        raise AssertionError("counted")

    monkeypatch.setattr("raftkv.kv.cost.count_range", refuse)
    monkeypatch.setattr("raftkv.state.estimating.foreseen", lambda r, c, v: r.plugin.cost(c, v))
    assert estimate(host, command) == 1
    assert isinstance(host.apply(command), Refused)


def test_of_many_leases_to_expire_only_as_many_are_looked_at_as_may_end(host: FakeHost) -> None:
    ids = tuple(range(2, 2 + EXPIRE_LEASES_MAX))
    assert estimate(host, Expire(1, (1, *ids[:-1]))) == 1 + 31
    assert estimate(host, Expire(1, (*ids, 1))) == 1


def test_what_is_applied_costs_what_it_looked_at(host: FakeHost) -> None:
    put = (PutOp(b"x", b""),)
    expected: list[tuple[msgspec.Struct, int]] = [
        (Put(b"a", b""), 0),
        (Txn((ANY,), put), 102),
        (Txn((ANY,), (RangeOp(b"05", b"15"), *put)), 102 + 10 + 1),
        (DeleteRange(b"40", b"50"), 10),
        (Revoke(1), 30),
        (Compact(50), 0),  # the newest rows are kept for some grace
    ]
    for command, rows in expected:
        host.apply(command)
        assert host.machine.cost_applied == 1 + rows, command
