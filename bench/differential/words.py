"""What is asked: hypothesis strategies for requests in the words of etcd's JSON gateway.

A request's body is written with `bytes` for base64, and with two marks that mean something else on
either side: `Rev(2)` is the revision at the start of the example plus two, `Granted(0)` the first
lease of the example whose id the server chose. Keys are few, so that requests meet.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any, Final

import msgspec
from hypothesis import strategies as st

__all__ = [
    "STEPS",
    "WATCHES",
    "Example",
    "Granted",
    "Rev",
    "Step",
    "Watch",
    "examples",
]


class Rev(msgspec.Struct, frozen=True):
    """The revision at the start of the example, and so many more."""

    after: int


class Granted(msgspec.Struct, frozen=True):
    """The id that the server chose for the n-th lease without one; an unknown id if it did not."""

    number: int


class Step(msgspec.Struct, frozen=True):
    """One request. `body` is a document with marks, or the very bytes to send."""

    path: str
    body: Any
    method: str = "POST"


class Watch(msgspec.Struct, frozen=True):
    """A watch that is created before the step `before` and read until the end of the example."""

    create: dict[str, Any]
    before: int = 0


class Example(msgspec.Struct, frozen=True):
    """A few watches and many requests."""

    watches: list[Watch]
    steps: list[Step]


KEYS: Final = (b"a", b"b", b"ab", b"a\0", b"a\xff", b"b/1", b"b/2", b"\0", b"\xff\xff", b"zz")
VALUES: Final = (b"", b"1", b"2", b"\0\xff", b"10", b"v" * 40)
ENDS: Final = (b"\0", b"b", b"b0", b"ac", b"\xff\xff\xff", b"\0\0", b"z")
LEASES: Final[tuple[Any, ...]] = (101, 102, 103, Granted(0), Granted(1))

keys = st.sampled_from(KEYS)
values = st.sampled_from(VALUES)
ends = st.one_of(st.just(b""), st.sampled_from(ENDS))
leases = st.sampled_from(LEASES)
revisions = st.integers(-1, 25).map(Rev)
flags = st.just(True)


def body(
    required: dict[str, st.SearchStrategy[Any]], **optional: st.SearchStrategy[Any]
) -> st.SearchStrategy[dict[str, Any]]:
    """A document with the required fields and some of the others."""
    return st.fixed_dictionaries(required, optional=optional)


ranges = body(
    {"key": keys},
    range_end=st.sampled_from(ENDS),
    limit=st.one_of(st.integers(-1, 4), st.sampled_from(["0", "2"])),
    revision=revisions,
    sort_order=st.sampled_from(["NONE", "ASCEND", "DESCEND", 0, 1, 2]),
    sort_target=st.sampled_from(["KEY", "VERSION", "CREATE", "MOD", "VALUE", 0, 3, 4]),
    serializable=flags,
    keys_only=flags,
    count_only=flags,
    min_mod_revision=revisions,
    max_mod_revision=revisions,
    min_create_revision=revisions,
    max_create_revision=revisions,
)
plain_ranges = body({"key": keys, "range_end": ends})
puts = st.one_of(
    body({"key": keys, "value": values}, prev_kv=flags),
    body({"key": keys, "value": values}, lease=leases),
    body({"key": keys, "prev_kv": flags, "value": values}, lease=st.just(101)),
    body(
        {"key": keys},
        value=values,
        prev_kv=flags,
        lease=leases,
        ignore_value=flags,
        ignore_lease=flags,
    ),
)
deletions = body({"key": keys}, range_end=st.sampled_from(ENDS), prev_kv=flags)
# etcd does not notice that a deletion "from this key on" meets a put of the same transaction;
# raftkv does (differences.py: from-key-overlap). After that nothing would agree any more.
inner_deletions = body({"key": keys}, range_end=st.sampled_from(ENDS[1:]), prev_kv=flags)
comparisons = st.one_of(
    body(
        {"key": keys, "target": st.just("VALUE"), "value": values},
        result=st.sampled_from(["EQUAL", "GREATER", "LESS", "NOT_EQUAL", 0, 3]),
        range_end=st.sampled_from(ENDS),
    ),
    body(
        {"key": keys, "target": st.just("VERSION"), "version": st.integers(0, 3)},
        result=st.sampled_from(["EQUAL", "GREATER", "LESS", "NOT_EQUAL"]),
        range_end=st.sampled_from(ENDS),
    ),
    body(
        {"key": keys, "target": st.just("CREATE"), "create_revision": revisions},
        result=st.sampled_from(["EQUAL", "GREATER", "LESS", "NOT_EQUAL"]),
        range_end=st.sampled_from(ENDS),
    ),
    body(
        {"key": keys, "target": st.just("MOD"), "mod_revision": revisions},
        result=st.sampled_from(["EQUAL", "GREATER", "LESS", "NOT_EQUAL"]),
        range_end=st.sampled_from(ENDS),
    ),
    body(
        {"key": keys, "target": st.just("LEASE"), "lease": leases},
        result=st.sampled_from(["EQUAL", "GREATER", "LESS", "NOT_EQUAL"]),
        range_end=st.sampled_from(ENDS),
    ),
    body({"key": keys}),
)


def _txns(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    operations = st.lists(
        st.one_of(
            puts.map(lambda each: {"request_put": each}),
            ranges.map(lambda each: {"request_range": each}),
            inner_deletions.map(lambda each: {"request_delete_range": each}),
            inner,
        ),
        max_size=4,
    )
    return body(
        {},
        compare=st.lists(comparisons, max_size=3),
        success=operations,
        failure=operations,
    )


_leaf = st.one_of(
    st.just({}),
    puts.map(lambda each: {"request_put": each}),
)
_inner_txns = _txns(_leaf).map(lambda each: {"request_txn": each})
txns = _txns(_inner_txns)

_watched = st.one_of(
    st.just({"key": b"\0", "range_end": b"\0"}),
    st.just({"key": b"a", "range_end": b"c"}),
    body({"key": keys}, range_end=st.sampled_from(ENDS)),
)
_watch_options = body(
    {},
    start_revision=st.integers(-1, 12).map(Rev),
    prev_kv=flags,
    filters=st.lists(st.sampled_from(["NOPUT", "NODELETE", 0, 1]), max_size=1),
    progress_notify=flags,
    fragment=flags,
    watch_id=st.sampled_from([1, 7]),
)
watches = st.builds(lambda what, how: {**what, **how}, _watched, _watch_options)

WATCHES: Final = st.builds(Watch, watches, st.integers(0, 12))


def _word(path: str) -> Callable[[Any], Step]:
    return lambda document: Step(path, document)


# What an example may begin with, so that there are leases to attach to.
GRANTS: Final = (
    Step("/v3/lease/grant", {"TTL": 60, "ID": 101}),
    Step("/v3/lease/grant", {"TTL": 500}),
)

lease_steps = st.one_of(
    st.sampled_from(
        [
            Step("/v3/lease/grant", {"TTL": 60, "ID": 101}),
            Step("/v3/lease/grant", {"TTL": "300", "ID": "102"}),
            Step("/v3/lease/grant", {"TTL": 1000, "ID": 103}),
            Step("/v3/lease/grant", {"TTL": 500}),
            Step("/v3/lease/grant", {"TTL": 9_000_000_001, "ID": 103}),
            Step("/v3/lease/leases", {}),
            Step("/v3beta/lease/leases", {}),
            Step("/v3beta/kv/range", {"key": b"a", "range_end": b"z"}),
            Step("/v3/kv/lease/leases", {}),
            Step("/v3/lease/revoke", {}),
            Step("/v3/lease/keepalive", {}),
            Step("/v3/lease/timetolive", {}),
        ]
    ),
    body({"ID": leases}).map(_word("/v3/lease/revoke")),
    body({"ID": leases}).map(_word("/v3/kv/lease/revoke")),
    body({"ID": leases}).map(_word("/v3/lease/keepalive")),
    body({"ID": leases}, keys=flags).map(_word("/v3/lease/timetolive")),
    body({"ID": leases}, keys=flags).map(_word("/v3/kv/lease/timetolive")),
)

# What may stand in the place of anything.
ODD: Final[tuple[Any, ...]] = (
    None, True, False, 5, -1, 1.5, "x", "", [], {}, "YQ", "YQ==", "Y Q==", "_-8=", [97], "1e3",
    "1.0", 1.0, "01", "+1", 2**63, str(2**63 - 1), str(2**63), "-1", "NaN", "true", [[]],
    {"key": "YQ=="}, "K\u00e4se",
)  # fmt: skip

SPOILT_PATHS: Final = (
    "/v3/kv/range", "/v3/kv/put", "/v3/kv/deleterange", "/v3/kv/txn", "/v3/kv/compaction",
    "/v3/lease/grant", "/v3/lease/revoke", "/v3/lease/timetolive", "/v3/lease/leases",
    "/v3/lease/keepalive",
)  # fmt: skip

# TTL stays whole: a lease without one lives for two seconds, which is a race of two clocks.
# sort_target does, because etcd 3.4 ends with a panic on a number that it does not know.
NEVER_SPOILT: Final = frozenset({"TTL", "sort_target"})


@st.composite
def spoilt(draw: st.DrawFn) -> Step:
    """A request in which one field is something odd, or has a name that nobody knows."""
    found: Step = draw(good_steps)
    if not isinstance(found.body, dict):
        return found
    document = dict(found.body)
    fields = [*sorted(set(document) - NEVER_SPOILT), "no_such_field"]
    document[draw(st.sampled_from(fields))] = draw(st.sampled_from(ODD))
    return Step(found.path, document)


@st.composite
def cut(draw: st.DrawFn) -> Step:
    """A request whose JSON has been cut off, or has something behind it, or is something else."""
    whole = json.dumps({"key": "YQ==", "value": base64.b64encode(b"cut").decode()}).encode()
    data = draw(
        st.one_of(
            st.integers(0, len(whole)).map(lambda end: whole[:end]),
            st.sampled_from([b" ", b"\n", b" {}", b"garbage"]).map(lambda more: whole + more),
            st.sampled_from([b"null", b"1", b'"x"', b"[]", b"[{}]", b"\xff", b"{}", b"{'key':1}"]),
        )
    )
    path = draw(st.sampled_from([path for path in SPOILT_PATHS if not path.endswith("grant")]))
    return Step(path, data)


other_steps = st.sampled_from(
    [
        Step("/v3/no/such/word", {}),
        Step("/v3/kv", {}),
        Step("/v3/kv/range/", {}),
        Step("/nothing", {}),
        Step("/", {}),
        Step("/v3/kv/range", b"", "GET"),
        Step("/v3/kv/put", b"{}", "PUT"),
        Step("/v3/kv/put", b"", "DELETE"),
        Step("/v3/lease/grant", b"", "GET"),
        Step("/v3/maintenance/status", {}),
        Step("/v3/cluster/member/list", {}),
        Step("/health", b"", "GET"),
        Step("/version", b"", "GET"),
    ]
)

good_steps = st.one_of(
    puts.map(_word("/v3/kv/put")),
    puts.map(_word("/v3/kv/put")),
    ranges.map(_word("/v3/kv/range")),
    plain_ranges.map(_word("/v3/kv/range")),
    deletions.map(_word("/v3/kv/deleterange")),
    txns.map(_word("/v3/kv/txn")),
    txns.map(_word("/v3/kv/txn")),
    body({"revision": revisions}, physical=flags).map(_word("/v3/kv/compaction")),
    lease_steps,
)

STEPS: Final[st.SearchStrategy[Step]] = st.one_of(
    good_steps, good_steps, good_steps, good_steps, good_steps, good_steps, spoilt(), cut(),
    other_steps,
)  # fmt: skip


def examples() -> st.SearchStrategy[Example]:
    """Whole examples. Lists of lists, because hypothesis makes a single list short."""
    steps = st.lists(st.lists(STEPS, min_size=1, max_size=10), min_size=1, max_size=10)
    return st.builds(
        lambda watches, leases, parts: Example(
            watches, leases + [step for part in parts for step in part]
        ),
        st.lists(WATCHES, max_size=2),
        st.sampled_from([list(GRANTS[:count]) for count in range(len(GRANTS) + 1)]),
        steps,
    )
