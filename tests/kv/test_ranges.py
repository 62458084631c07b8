"""Range reads: sorting, filters, limits, in etcd's order of steps."""

from __future__ import annotations

from typing import Any

import pytest

from raftkv.kv import FROM_KEY, Put, RangeOp, Txn
from raftkv.kv.history import revision_of
from raftkv.kv.ranges import in_range, read_range
from tests.kv.fake_host import FakeHost


@pytest.fixture
def host() -> FakeHost:
    """a: version 3, value 1. b: version 1, value 3. c: version 2, value 2."""
    host = FakeHost()
    for key, value in (b"a1", b"b3", b"c2", b"c2", b"a1", b"a1"):
        host.apply(Put(bytes([key]), bytes([value])))
    return host


def read(host: FakeHost, **options: Any) -> Any:
    operation = RangeOp(b"\0", FROM_KEY, **options)
    view = host.machine.view("kv")
    found = read_range(view.table("keys"), operation, revision_of(view))
    assert host.apply(Txn(success=(operation,))).results == (found,)
    return found


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"descending": True}, "cba"),
        ({"sort_by": "version"}, "bca"),
        ({"sort_by": "version", "descending": True}, "acb"),
        ({"sort_by": "create"}, "abc"),
        ({"sort_by": "mod"}, "bca"),
        ({"sort_by": "value"}, "acb"),
        ({"sort_by": "value", "descending": True}, "bca"),
        ({"sort_by": "value", "limit": 2}, "ac"),
        ({"descending": True, "limit": 1}, "c"),
        ({"min_mod_revision": 5}, "ac"),
        ({"max_mod_revision": 4}, "b"),
        ({"min_mod_revision": 4, "max_mod_revision": 6}, "c"),
        ({"min_create_revision": 3}, "bc"),
        ({"max_create_revision": 3}, "ab"),
        ({"max_create_revision": 3, "limit": 1, "descending": True}, "b"),
        ({"min_mod_revision": 9}, ""),
    ],
)
def test_sorting_and_filters(host: FakeHost, options: dict[str, Any], expected: str) -> None:
    found = read(host, **options)
    assert b"".join(kv.key for kv in found.kvs).decode() == expected
    assert found.count == 3  # of the range, whatever was left out
    assert found.more is (options.get("limit", 0) > 0)
    bare = read(host, keys_only=True, **options)
    assert [kv.key for kv in bare.kvs] == [kv.key for kv in found.kvs]
    assert not any(kv.value for kv in bare.kvs)
    assert read(host, count_only=True, **options).kvs == ()


def test_more_tells_of_the_limit_alone(host: FakeHost) -> None:
    assert read(host, limit=3).more is False
    assert read(host, limit=2).more is True
    assert read(host, limit=2, min_create_revision=3).more is False
    assert read(host, min_create_revision=3).more is False


def test_equal_ones_stand_in_key_order(host: FakeHost) -> None:
    host.apply(Put(b"d", b"3"))
    found = read(host, sort_by="value", descending=True)
    assert [kv.key for kv in found.kvs] == [b"b", b"d", b"c", b"a"]


def test_a_sorted_read_counts_the_whole_range(host: FakeHost) -> None:
    host.set("rows_max", 2)
    plain, ordered = (RangeOp(b"\0", FROM_KEY, 1), RangeOp(b"\0", FROM_KEY, 1, descending=True))
    assert host.apply(Txn(success=(plain,))).succeeded
    assert "rows_max" in str(host.apply(Txn(success=(ordered,))))


def test_which_keys_lie_in_a_range() -> None:
    assert in_range(b"a", b"a", b"")
    assert not in_range(b"aa", b"a", b"")
    assert in_range(b"aa", b"a", b"b")
    assert not in_range(b"b", b"a", b"b")
    assert in_range(b"z", b"a", FROM_KEY)
    assert not in_range(b"A", b"a", FROM_KEY)
