"""Leases in the replicated state: granting, attaching, ending, the lessor's claim."""

from __future__ import annotations

import pytest

from raftkv.kv import (
    FROM_KEY,
    ClaimLessor,
    ClaimLessorResult,
    Compare,
    DeleteRange,
    Expire,
    ExpireResult,
    Grant,
    GrantResult,
    KeyNotFound,
    KeyValue,
    LeaseExists,
    LeaseGiven,
    LeaseNotFound,
    LeaseRow,
    LeaseTtlTooLarge,
    LimitExceeded,
    NotLessor,
    Put,
    PutOp,
    PutResult,
    PutWith,
    Revoke,
    RevokeResult,
    Txn,
    ValueGiven,
    events_of,
    keyspace,
)
from raftkv.kv.leasing import claimed_ms, due_ms, due_rows, keys_of, lessor_epoch
from raftkv.state import StateView
from tests.kv.fake_host import FakeHost


@pytest.fixture
def host() -> FakeHost:
    return FakeHost()


def view(host: FakeHost) -> StateView:
    assert host.machine.invariants() == []
    return host.machine.view("kv")


def put(key: bytes, lease: int) -> PutWith:
    return PutWith(key, b"v", lease=lease)


def test_grant(host: FakeHost) -> None:
    assert host.apply(Grant(5, 7)) == GrantResult(7, 5, 1)
    now = host.machine.now
    assert view(host).table("leases").get(7) == LeaseRow(5, now + 5000)
    assert due_ms(view(host), 7) == now + 5000
    assert due_ms(view(host), 8) is None
    # At least lease_ttl_min_s, whatever was asked for.
    assert [host.apply(Grant(ttl, 10 + ttl)).ttl_s for ttl in (-1, 0, 1, 2, 3)] == [2, 2, 2, 2, 3]
    assert isinstance(host.apply(Grant(5, 7)), LeaseExists)
    assert host.apply(Grant(9_000_000_000, 20)).ttl_s == 9_000_000_000
    assert isinstance(host.apply(Grant(9_000_000_001)), LeaseTtlTooLarge)
    assert host.machine.view("kv").table("meta").get("revision", 1) == 1


def test_the_id_is_chosen_the_same_on_every_node(host: FakeHost) -> None:
    other = FakeHost()
    ids = [host.apply(Grant(5)).id for _ in range(200)]
    assert ids == [other.apply(Grant(5)).id for _ in range(200)]
    assert len(set(ids)) == 200
    assert all(0 < id < 2**63 for id in ids)


def test_a_chosen_id_is_a_free_one(host: FakeHost) -> None:
    taken = FakeHost().apply(Grant(5)).id
    other = FakeHost()
    other.machine.serial -= 1
    other.apply(Grant(5, taken))
    chosen = other.apply(Grant(5)).id
    # Made of the same number, and yet another one.
    other.machine.serial -= 1
    assert chosen != taken
    assert other.apply(Grant(5)).id not in (taken, chosen)


def test_leases_are_limited(host: FakeHost) -> None:
    host.set("leases_max", 2)
    assert [host.apply(Grant(5, id)).id for id in (1, 2)] == [1, 2]
    assert "leases_max = 2" in str(host.apply(Grant(5)))
    host.apply(Revoke(1))
    assert host.apply(Grant(5, 3)).id == 3


def test_a_put_attaches_moves_and_detaches(host: FakeHost) -> None:
    for id in (1, 2):
        host.apply(Grant(5, id))
    assert host.apply(put(b"a", 1)) == PutResult(2)
    host.apply(put(b"b", 1))
    assert keys_of(view(host), 1) == (b"a", b"b")
    assert view(host).table("keys").get(b"a") == KeyValue(b"a", b"v", 2, 2, 1, 1)
    host.apply(put(b"a", 1))
    host.apply(put(b"b", 2))
    assert (keys_of(view(host), 1), keys_of(view(host), 2)) == ((b"a",), (b"b",))
    # A put without a lease detaches, on the short way as on the long one.
    host.apply(Put(b"a", b"x"))
    host.apply(PutWith(b"b", b"x"))
    assert [keys_of(view(host), id) for id in (1, 2)] == [(), ()]
    assert view(host).table("leases")[1].keys == 0
    assert host.apply(Revoke(1)) == RevokeResult(7, 0)


def test_a_deleted_key_is_detached(host: FakeHost) -> None:
    host.apply(Grant(5, 1))
    for key in (b"a", b"b"):
        host.apply(put(key, 1))
    host.apply(DeleteRange(b"a"))
    assert keys_of(view(host), 1) == (b"b",)
    host.apply(DeleteRange(b"\0", FROM_KEY))
    assert keys_of(view(host), 1) == ()


def test_a_lease_that_does_not_exist(host: FakeHost) -> None:
    assert isinstance(host.apply(put(b"a", 5)), LeaseNotFound)
    assert isinstance(host.apply(Txn(success=(PutOp(b"a", b"", lease=5),))), LeaseNotFound)
    assert isinstance(host.apply(Revoke(5)), LeaseNotFound)
    assert len(view(host).table("keys")) == 0


def test_ignore_value_and_ignore_lease(host: FakeHost) -> None:
    for id in (1, 2):
        host.apply(Grant(5, id))
    host.apply(PutWith(b"a", b"first", lease=1))
    host.apply(PutWith(b"a", b"second", ignore_lease=True))
    kept = KeyValue(b"a", b"second", 2, 3, 2, 1)
    assert view(host).table("keys").get(b"a") == kept
    host.apply(PutWith(b"a", b"", lease=2, ignore_value=True))
    assert view(host).table("keys").get(b"a") == KeyValue(b"a", b"second", 2, 4, 3, 2)
    host.apply(PutWith(b"a", b"", ignore_value=True, ignore_lease=True))
    assert keys_of(view(host), 2) == (b"a",)
    host.apply(PutWith(b"a", b"", ignore_value=True))
    assert keys_of(view(host), 2) == ()
    for id, kind in ((2, KeyNotFound), (3, LeaseNotFound)):
        assert isinstance(host.apply(PutWith(b"x", b"", False, id, True)), kind)
    assert isinstance(host.apply(PutWith(b"x", b"", ignore_lease=True)), KeyNotFound)
    assert isinstance(host.apply(PutWith(b"a", b"x", ignore_value=True)), ValueGiven)
    assert isinstance(host.apply(PutWith(b"a", b"x", lease=2, ignore_lease=True)), LeaseGiven)


def test_an_ignored_value_is_within_the_limits_still(host: FakeHost) -> None:
    host.apply(Put(b"a", b"x" * 3000))
    host.set("value_bytes_max", 2000)
    assert isinstance(host.apply(PutWith(b"a", b"", ignore_value=True)), LimitExceeded)


def test_comparing_leases(host: FakeHost) -> None:
    host.apply(Grant(5, 7))
    host.apply(put(b"a", 7))
    for operand, holds in ((7, True), (0, False)):
        assert host.apply(Txn((Compare(b"a", "lease", "=", operand),))).succeeded is holds
    assert host.apply(Txn((Compare(b"x", "lease", "=", 0),))).succeeded


def test_the_keys_of_a_lease_end_in_one_revision_in_order(host: FakeHost) -> None:
    host.apply(Grant(5, 1))
    for key in (b"c", b"a", b"b", b"\xff"):
        host.apply(put(key, 1))
    host.apply(Put(b"other", b""))
    assert host.apply(Revoke(1)) == RevokeResult(7, 4)
    events = events_of(view(host).table("history")[7])
    assert [event.kv.key for event in events] == [b"a", b"b", b"c", b"\xff"]
    assert all(event.kv.version == 0 and event.prev is not None for event in events)
    assert [key for key, _ in view(host).table("keys").scan()] == [b"other"]
    assert [len(view(host).table(name)) for name in ("leases", "attached", "due")] == [0, 0, 0]


def test_the_keys_of_a_lease_are_limited(host: FakeHost) -> None:
    host.set("lease_keys_max", 2)
    host.set("rows_max", 1)
    host.apply(Grant(5, 1))
    for key in (b"a", b"b", b"b"):
        assert isinstance(host.apply(put(key, 1)), PutResult)
    assert "lease_keys_max = 2" in str(host.apply(put(b"c", 1)))
    assert keys_of(view(host), 1) == (b"a", b"b")
    # However low the limit of rows, a lease can end.
    assert host.apply(Revoke(1)).deleted == 2


def test_a_claim_extends_every_lease_by_its_whole_time(host: FakeHost) -> None:
    host.apply(Grant(5, 1))
    host.apply(Grant(60, 2))
    assert (lessor_epoch(view(host)), claimed_ms(view(host))) == (0, 0)
    rows = list(view(host).table("leases").scan())
    host.advance(4000)
    claimed = host.apply(ClaimLessor())
    now = host.machine.now
    assert claimed == ClaimLessorResult(1, now)
    assert (due_ms(view(host), 1), due_ms(view(host), 2)) == (now + 5000, now + 60_000)
    # One number was written, however many leases there are.
    assert list(view(host).table("leases").scan()) == rows
    host.advance(1000)
    host.apply(Grant(5, 3))
    assert due_ms(view(host), 3) == host.machine.now + 5000
    assert host.apply(ClaimLessor()).epoch == 2


def test_expiry(host: FakeHost) -> None:
    for id in (1, 2):
        host.apply(Grant(5 * id, id))
        host.apply(put(b"k%d" % id, id))
    assert isinstance(host.apply(Expire(1, (1,))), NotLessor)
    host.apply(ClaimLessor())
    due = due_ms(view(host), 1)
    assert due is not None
    host.advance(due - host.machine.now - 2)
    assert host.apply(Expire(1, (1, 2, 9))) == ExpireResult(())  # a millisecond too early
    assert host.apply(Expire(1, (9, 1, 2, 1))) == ExpireResult((1,))
    assert [key for key, _ in view(host).table("keys").scan()] == [b"k2"]
    host.apply(ClaimLessor())
    assert isinstance(host.apply(Expire(1, (2,))), NotLessor)
    host.advance(9000)
    assert host.apply(Expire(2, (2,))) == ExpireResult(())
    host.advance(2000)
    assert host.apply(Expire(2, (2,))) == ExpireResult((2,))


def test_each_lease_ends_in_a_revision_of_its_own(host: FakeHost) -> None:
    for id in (1, 2, 3):
        host.apply(Grant(5, id))
    for key, id in ((b"a", 1), (b"b", 3), (b"c", 1)):
        host.apply(put(key, id))
    host.apply(ClaimLessor())
    host.advance(6000)
    assert host.apply(Expire(1, (1, 2, 3))) == ExpireResult((1, 2, 3))
    history = view(host).table("history")
    keys = {n: [event.kv.key for event in events_of(row)] for n, row in history.scan(5)}
    assert keys == {5: [b"a", b"c"], 6: [b"b"]}


def test_one_command_ends_a_bounded_number(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyspace, "EXPIRE_LEASES_MAX", 3)
    monkeypatch.setattr(keyspace, "EXPIRE_KEYS", 2)
    for id in range(1, 8):
        host.apply(Grant(5, id))
    for number in range(3):
        host.apply(put(b"%d" % number, 5))
    host.apply(ClaimLessor())
    host.advance(6000)
    ids = tuple(range(1, 8))
    assert host.apply(Expire(1, ids)).ids == (1, 2, 3)
    assert host.apply(Expire(1, ids)).ids == (4, 5)
    assert host.apply(Expire(1, ids)).ids == (6, 7)


def test_leases_in_the_order_of_their_due_times(host: FakeHost) -> None:
    for ttl, id in ((50, 4), (5, -3), (20, 2), (20, 1)):
        host.apply(Grant(ttl, id))
    found = list(due_rows(view(host)))
    assert [id for _, id in found] == [-3, 2, 1, 4]
    assert list(due_rows(view(host), found[1], 1)) == [found[2]]
    host.apply(Revoke(2))
    assert list(due_rows(view(host), found[0])) == found[2:]
