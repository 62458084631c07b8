"""Each named difference happens as docs/etcd-differences.md says, with real etcd on the other side.

A difference that has gone, on either side, fails here: then the page is out of date.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bench.differential.differences import NAMES, OF_WATCHES, named_watch
from bench.differential.example import Mismatch, Pair
from bench.differential.words import Step

pytestmark = pytest.mark.cluster


@pytest.fixture
def apart(pair: Pair) -> Iterator[Pair]:
    """Both at the same revision, although what one side alone takes drives them apart."""
    pair.align()
    yield pair
    pair.align()


def put(key: bytes, size: int) -> Step:
    return Step("/v3/kv/put", {"key": key, "value": b"v" * size})


def overlap(end: bytes) -> Step:
    written = {"request_put": {"key": b"b", "value": b"1"}}
    deleted = {"request_delete_range": {"key": b"a", "range_end": end}}
    return Step("/v3/kv/txn", {"success": [written, deleted]})


def inside(step: Step) -> Step:
    """The same transaction as an inner one."""
    return Step(step.path, {"success": [{"request_txn": step.body}]})


PUT_THEN_DELETE = {
    "success": [
        {"request_txn": {"success": [{"request_put": {"key": b"a", "value": b"1"}}]}},
        {"request_txn": {"failure": [{"request_delete_range": {"key": b"a"}}]}},
    ]
}
MANY_FAULTS = {
    "success": [{"request_txn": {"success": [{"request_put": {"key": b"a", "value": b"1",
                                                              "ignore_value": True}}, {}]}}]
}  # fmt: skip

CASES = [
    ("malformed-text", Step("/v3/kv/range", b'{"key":')),
    ("malformed-text", Step("/v3/kv/range", {"key": "YQ"})),
    ("malformed-text", Step("/v3/kv/range", {"key": b"a", "limit": 1.5})),
    ("malformed-text", Step("/v3/kv/range", {"key": b"a", "sort_order": "UP"})),
    ("malformed-stream", Step("/v3/lease/keepalive", b'{"ID":')),
    ("malformed-stream", Step("/v3/lease/keepalive", b'{"ID":"77"}garbage')),
    ("malformed-stream", Step("/v3/lease/keepalive", b'{"ID":"77"}null')),
    ("which-error", Step("/v3/kv/txn", MANY_FAULTS)),
    ("unknown-path", Step("/v3/no/such/word", {})),
    ("unknown-path", Step("/v3/kv/range", b"", "GET")),
    ("health-type", Step("/health", b"", "GET")),
    ("size-limits", put(b"k", 1_200_000)),
    ("size-limits", put(b"k" * 70_000, 1)),
    ("size-limits", put(b"k", 3_500_000)),
    ("from-key-overlap", overlap(b"\0")),
    ("from-key-overlap", inside(overlap(b"\0"))),
    ("put-then-delete", Step("/v3/kv/txn", PUT_THEN_DELETE)),
    ("database-size", Step("/v3/maintenance/status", {})),
    ("enum-number", Step("/v3/kv/range", {"key": b"a", "sort_order": 7})),
    ("spaced-number", Step("/v3/kv/range", {"key": b"a", "limit": " 1"})),
    ("not-served", Step("/v3/auth/enable", {})),
    ("not-served", Step("/v3/maintenance/snapshot", {})),
    ("not-served", Step("/v3/cluster/member/remove", {"ID": 5})),
    ("more-pages", Step("/livez", b"", "GET")),
    ("more-pages", Step("/v3/maintenance/hashkv", {})),
]


@pytest.mark.parametrize(
    ("name", "step"), CASES, ids=lambda each: each if type(each) is str else ""
)
def test_the_difference_is_there(apart: Pair, name: str, step: Step) -> None:
    before = apart.counts.named[name]
    apart.ask(step)
    assert apart.counts.named[name] == before + 1


def test_every_name_has_a_case() -> None:
    # Those of watches are a matter of time; the random requests meet them now and then.
    assert {name for name, _ in CASES} == set(NAMES) - set(OF_WATCHES)


CREATED = {"created": True}
CANCELLED = {"canceled": True, "compact_revision": 5}
DELETED = {"type": "DELETE", "kv": {"key": "YQ==", "mod_revision": 3}}
WRITTEN = {"kv": {"key": "YQ==", "mod_revision": 4}}


def seen(*events: object, cancelled: bool = False) -> dict[str, Any]:
    return {"said": [CREATED, CANCELLED] if cancelled else [CREATED], "events": list(events)}


def test_what_streams_may_differ_by() -> None:
    whole, without = seen(DELETED, WRITTEN), seen(WRITTEN)
    assert named_watch(3, 3, 3, without, whole) == "deleted-when-compacted"
    assert named_watch(2, 2, 2, without, whole) is None
    assert named_watch(None, 3, 3, without, whole) is None
    assert named_watch(3, 3, 3, seen(DELETED), whole) is None
    cut = seen(cancelled=True)
    assert named_watch(3, 2, 5, cut, whole) == "compacted-while-behind"
    assert named_watch(3, 3, 5, cut, whole) == "compacted-while-behind"
    late = {"said": [CREATED, {**CANCELLED, "compact_revision": 2}], "events": []}
    assert named_watch(1, 2, 5, cut, late) == "compacted-while-behind"
    assert named_watch(1, 2, 2, cut, late) is None
    # Nothing was compacted meanwhile, or only what the watch did not ask for.
    assert named_watch(3, 2, 2, cut, whole) is None
    assert named_watch(6, 2, 5, cut, whole) is None


def test_what_has_no_name_is_a_mismatch(apart: Pair) -> None:
    apart.etcd.ask("/v3/kv/put", {"key": b"only here"})
    with pytest.raises(Mismatch, match="raftkv"):
        apart.ask(Step("/v3/kv/range", {"key": b"only here"}))


def test_overlaps_with_an_end_are_seen_by_both(apart: Pair) -> None:
    theirs, ours = apart.ask(overlap(b"c"))
    assert theirs.status == ours.status == 400
