"""`node.kv`: what it proposes, what it reads, what it refuses before it proposes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar, cast

import pytest

from raftkv.errors import TooLarge
from raftkv.kv import (
    FROM_KEY,
    Compare,
    DeleteRangeOp,
    DuplicateKey,
    EmptyKey,
    Grant,
    KeyNotFound,
    KeyValue,
    KVApi,
    LeaseGiven,
    LeaseNotFound,
    PutOp,
    PutResult,
    RangeOp,
    RangeResult,
    TxnOp,
    TxnResult,
    ValueGiven,
)
from tests.kv.fake_host import FakeHost

T = TypeVar("T")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(coroutine)


def fill(kv: KVApi) -> None:
    for key in (b"a", b"b/1", b"b/2", b"c"):
        run(kv.put(key, b"v" + key))


def test_put_and_get(kv: KVApi, host: FakeHost) -> None:
    assert run(kv.get(b"k")) is None
    assert run(kv.put(b"k", b"1")).revision == 2
    assert run(kv.put(b"k", b"2", prev_kv=True)).prev == KeyValue(b"k", b"1", 2, 2, 1)
    assert run(kv.get(b"k", consistency="local", timeout_s=2)) == KeyValue(b"k", b"2", 2, 3, 2)
    assert host.barriers == [("linearizable", None), ("local", 2)]
    assert kv.revision == 3


def test_range(kv: KVApi, host: FakeHost) -> None:
    fill(kv)

    def keys(**arguments: Any) -> list[bytes]:
        return [found.key for found in run(kv.range(**arguments)).kvs]

    assert keys() == [b"a", b"b/1", b"b/2", b"c"]
    assert keys(prefix=b"") == keys()
    assert keys(prefix=b"b/") == [b"b/1", b"b/2"]
    assert keys(first=b"b/2") == [b"b/2", b"c"]
    assert keys(last=b"b/2") == [b"a", b"b/1"]
    assert keys(first=b"b", last=b"c") == [b"b/1", b"b/2"]
    assert keys(limit=1) == [b"a"]
    answer = run(kv.range(limit=1, keys_only=True, consistency="local"))
    assert (answer.count, answer.more, answer.revision) == (4, True, 5)
    assert answer.kvs[0].value == b""
    assert run(kv.range(count_only=True)).count == 4
    assert run(kv.read(RangeOp(b"b/1"))).count == 1
    assert host.barriers[-2:] == [("linearizable", None)] * 2


@pytest.mark.parametrize(
    "bounds",
    [(b"c", b"a"), (b"a", b"a"), (None, b"\0"), (None, b""), (b"a", b"\0"), (b"", b"")],
)
def test_a_range_without_room_never_means_all_keys(kv: KVApi, host: FakeHost, bounds: Any) -> None:
    fill(kv)
    for call in (kv.range(*bounds), kv.delete(*bounds)):
        with pytest.raises(ValueError, match="no key between"):
            run(cast("Coroutine[Any, Any, Any]", call))
    assert run(kv.range(count_only=True)).count == 4


def test_a_watch_takes_a_key_or_the_bounds_of_a_range(kv: KVApi) -> None:
    class Hub:
        def open(self, key: bytes, range_end: bytes, **words: Any) -> tuple[bytes, bytes]:
            return key, range_end

    kv.hub = cast("Any", Hub())
    assert kv.watch(b"k") == (b"k", b"")
    assert kv.watch(first=b"k") == (b"k", b"\0")
    assert kv.watch(first=b"k", last=b"m") == kv.watch(b"k", b"m") == (b"k", b"m")
    assert kv.watch(first=b"") == kv.watch() == kv.watch(prefix=b"") == (b"\0", b"\0")
    for wrong in ({"key": b"a", "first": b"b"}, {"first": b"a", "prefix": b"b"}):
        with pytest.raises(TypeError, match="not both"):
            kv.watch(**cast("Any", wrong))


def test_delete(kv: KVApi) -> None:
    fill(kv)
    assert run(kv.delete(b"x")).deleted == 0
    assert run(kv.delete(b"a")).deleted == 1
    deleted = run(kv.delete(prefix=b"b/", prev_kv=True))
    assert [found.key for found in deleted.prev] == [b"b/1", b"b/2"]
    assert run(kv.delete(b"b", b"z")).deleted == 1
    assert run(kv.range(count_only=True)).count == 0


def test_delete_wants_to_be_told_what(kv: KVApi) -> None:
    with pytest.raises(TypeError, match="key or a prefix"):
        run(kv.delete())
    for call in (kv.delete(b"a", b"c", prefix=b"b"), kv.delete(b"a", prefix=b"b")):
        with pytest.raises(TypeError, match="not both"):
            run(call)


def test_txn(kv: KVApi) -> None:
    absent = [Compare(b"k", "version", "=", 0)]
    won = run(kv.txn(absent, [PutOp(b"k", b"me")], [RangeOp(b"k")]))
    lost = run(kv.txn(absent, [PutOp(b"k", b"you")], [RangeOp(b"k")]))
    assert (won.succeeded, won.revision) == (True, 2)
    assert lost.succeeded is False
    assert lost.results[0].kvs == (KeyValue(b"k", b"me", 2, 2, 1),)  # type: ignore[union-attr]
    with pytest.raises(DuplicateKey):
        run(kv.txn(success=[PutOp(b"k", b""), PutOp(b"k", b"")]))


def test_put_with_options(kv: KVApi, host: FakeHost) -> None:
    host.apply(Grant(5, 7))
    run(kv.put(b"k", b"1", lease=7))
    run(kv.put(b"k", b"2", ignore_lease=True))
    put = run(kv.put(b"k", b"", ignore_value=True, lease=7, prev_kv=True))
    assert put.prev == KeyValue(b"k", b"2", 2, 3, 2, 7)
    assert run(kv.get(b"k")) == KeyValue(b"k", b"2", 2, 4, 3, 7)
    proposed = host.proposed
    with pytest.raises(ValueGiven):
        run(kv.put(b"k", b"x", ignore_value=True))
    with pytest.raises(LeaseGiven):
        run(kv.put(b"k", b"", lease=7, ignore_lease=True))
    with pytest.raises(ValueGiven):
        run(kv.txn(success=[PutOp(b"k", b"x", ignore_value=True)]))
    assert host.proposed == proposed
    with pytest.raises(LeaseNotFound):
        run(kv.put(b"k", b"", lease=8))
    with pytest.raises(KeyNotFound):
        run(kv.put(b"x", b"", ignore_value=True))


def test_range_with_options(kv: KVApi) -> None:
    fill(kv)

    def keys(**arguments: Any) -> list[bytes]:
        return [found.key for found in run(kv.range(**arguments)).kvs]

    assert keys(descending=True, limit=2) == [b"c", b"b/2"]
    assert keys(sort_by="value", descending=True, prefix=b"b/") == [b"b/2", b"b/1"]
    assert keys(min_mod_revision=3, max_mod_revision=4) == [b"b/1", b"b/2"]
    assert keys(min_create_revision=5) == [b"c"]
    assert keys(max_create_revision=2) == [b"a"]
    assert keys(revision=3) == [b"a", b"b/1"]


def test_delete_range_in_etcds_words(kv: KVApi) -> None:
    fill(kv)
    assert run(kv.delete_range(DeleteRangeOp(b"b/2", FROM_KEY))).deleted == 2
    assert run(kv.delete_range(DeleteRangeOp(b"a"))).deleted == 1
    with pytest.raises(EmptyKey):
        run(kv.delete_range(DeleteRangeOp(b"", FROM_KEY)))


def test_a_txn_is_a_tree(kv: KVApi, host: FakeHost) -> None:
    inner = TxnOp((Compare(b"k", "version", "=", 0),), (PutOp(b"k", b"1"),), (RangeOp(b"k"),))
    first = run(kv.txn(success=[inner]))
    again = run(kv.txn(success=[inner]))
    assert first == TxnResult(2, True, (TxnResult(2, True, (PutResult(2),)),))
    found = RangeResult(2, (KeyValue(b"k", b"1", 2, 2, 1),), 1, False)
    assert again == TxnResult(2, True, (TxnResult(2, False, (found,)),))
    proposed = host.proposed
    with pytest.raises(TypeError):
        run(kv.txn(success=[TxnOp((), (PutOp("k", b""),))]))  # type: ignore[arg-type]
    deep = inner
    for _ in range(40):
        deep = TxnOp((), (deep,))
    with pytest.raises(TooLarge, match="deep"):
        run(kv.txn(success=[deep]))
    host.set("txn_ops_max", 2)
    puts = tuple(PutOp(b"%d" % n, b"") for n in range(2))
    with pytest.raises(TooLarge, match="an inner transaction with 2"):
        run(kv.txn(success=[TxnOp((), puts)]))
    assert host.proposed == proposed


def test_what_is_too_large_is_not_proposed(kv: KVApi, host: FakeHost) -> None:
    host.set("key_bytes_max", 2000)
    host.set("value_bytes_max", 2000)
    host.set("txn_ops_max", 2)
    before = host.proposed
    calls: list[Coroutine[Any, Any, Any]] = [
        kv.put(b"k" * 2001, b""),
        kv.put(b"k", b"v" * 2001),
        kv.delete(b"k" * 2001),
        kv.get(b"k" * 2001),
        kv.txn(success=[PutOp(b"k", b"v" * 2001)]),
        kv.txn(failure=[PutOp(b"k%d" % n, b"") for n in range(3)]),
    ]
    for call in calls:
        with pytest.raises(TooLarge):
            run(call)
    assert host.proposed == before
    assert run(kv.put(b"k" * 2000, b"v" * 2000)).revision == 2


def test_mistakes_of_the_caller(kv: KVApi, host: FakeHost) -> None:
    texts: list[Coroutine[Any, Any, Any]] = [
        kv.put("k", b""),  # type: ignore[arg-type]
        kv.put(b"k", "v"),  # type: ignore[arg-type]
        kv.get("k"),  # type: ignore[arg-type]
    ]
    for call in texts:
        with pytest.raises(TypeError, match="bytes"):
            run(call)
    empty: list[Coroutine[Any, Any, Any]] = [kv.put(b"", b""), kv.get(b""), kv.delete(b"")]
    for call in empty:
        with pytest.raises(EmptyKey):
            run(call)
    with pytest.raises(ValueError, match="limit"):
        run(kv.range(limit=-1))
    assert host.proposed == 0
