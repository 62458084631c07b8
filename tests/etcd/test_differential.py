"""The same random requests to real etcd and to raftkv: equal answers, but for named differences.

The long version is `tools/differential`. A failure prints the shortest example of it.
"""

from __future__ import annotations

import itertools
import re
import time
from pathlib import Path

import pytest

from bench.differential import differences
from bench.differential.command import run_examples
from bench.differential.example import Pair
from bench.differential.words import Example, Rev, Step, Watch

PAGE = Path(__file__).resolve().parents[2] / "docs" / "etcd-differences.md"

SECONDS = 8.0
EXAMPLES_MAX = 150
# Far below what a quiet machine does in that time; a slow one goes on until it has done so many.
REQUESTS_MIN = 300
HANGS_S = 90.0

pytestmark = pytest.mark.cluster


def test_random_requests_are_answered_alike(pair: Pair) -> None:
    before, latest_s = pair.counts.requests, time.monotonic() + HANGS_S
    for chance in itertools.count(20):
        run_examples(pair, EXAMPLES_MAX, chance, until_s=time.monotonic() + SECONDS)
        if pair.counts.requests - before > REQUESTS_MIN:
            break
        assert time.monotonic() < latest_s
    assert pair.counts.events > 0


def test_both_are_at_the_same_revision_after_all_that(pair: Pair) -> None:
    theirs, ours = (
        door.ask("/v3/kv/range", {"key": b"a"})["header"]["revision"] for door in pair.doors
    )
    assert theirs == ours


def put(key: bytes, value: bytes = b"1", **more: object) -> Step:
    return Step("/v3/kv/put", {"key": key, "value": value, **more})


@pytest.mark.parametrize(
    "steps",
    [
        # A transaction's own writes, read back within it; one revision for all of them.
        [
            put(b"a"),
            Step(
                "/v3/kv/txn",
                {
                    "compare": [{"key": b"a", "target": "VALUE", "value": b"1"}],
                    "success": [
                        {"request_put": {"key": b"b", "value": b"2", "prev_kv": True}},
                        {"request_range": {"key": b"a", "range_end": b"c"}},
                        {"request_delete_range": {"key": b"a", "prev_kv": True}},
                        {"request_txn": {"success": [{"request_range": {"key": b"b"}}]}},
                    ],
                },
            ),
            Step("/v3/kv/range", {"key": b"a", "range_end": b"c", "revision": Rev(1)}),
        ],
        # Nothing changes, so nothing is counted.
        [
            Step("/v3/kv/deleterange", {"key": b"gone"}),
            Step("/v3/kv/txn", {"success": [{"request_range": {"key": b"a"}}]}),
            put(b"a"),
        ],
        # Reads before and after a compaction, and beyond the present.
        [
            put(b"a"),
            put(b"a", b"2"),
            put(b"a", b"3"),
            Step("/v3/kv/range", {"key": b"a", "revision": Rev(1)}),
            Step("/v3/kv/compaction", {"revision": Rev(2)}),
            Step("/v3/kv/range", {"key": b"a", "revision": Rev(1)}),
            Step("/v3/kv/range", {"key": b"a", "revision": Rev(2)}),
            Step("/v3/kv/range", {"key": b"a", "revision": Rev(4)}),
            Step("/v3/kv/compaction", {"revision": Rev(2)}),
            Step("/v3/kv/compaction", {"revision": Rev(9)}),
        ],
        # Leases: attached keys go with them, in one revision.
        [
            Step("/v3/lease/grant", {"TTL": 100, "ID": 7}),
            Step("/v3/lease/grant", {"TTL": 100, "ID": 7}),
            put(b"a", lease=7),
            put(b"b", lease="7"),
            Step("/v3/lease/timetolive", {"ID": 7, "keys": True}),
            put(b"b", b"2", ignore_lease=True),
            Step("/v3/lease/revoke", {"ID": 7}),
            Step("/v3/kv/range", {"key": b"\0", "range_end": b"\0"}),
            put(b"a", lease=7),
            Step("/v3/lease/revoke", {"ID": 7}),
        ],
        # Both spellings of a name, null, numbers as text, an array for bytes, what nobody knows.
        [
            Step("/v3/kv/put", b'{"key":"YQ==","value":null,"prevKv":true,"no_such":[1,{}]}'),
            Step("/v3/kv/put", b'{"key":[97],"value":"Yg==","prev_kv":true}'),
            Step("/v3/kv/range", b'{"key":"YQ==","rangeEnd":"AA==","limit":"1"}'),
        ],
    ],
    ids=["transaction", "nothing", "compaction", "lease", "spelling"],
)
def test_a_chosen_story_is_told_alike(pair: Pair, steps: list[Step]) -> None:
    everything = {"key": b"\0", "range_end": b"\0", "prev_kv": True}
    pair.run(Example([Watch(everything)], steps))


def test_the_page_lists_the_differences_that_the_tests_allow() -> None:
    listed = re.findall(r"^\| `([a-z-]+)` \|", PAGE.read_text(encoding="utf-8"), re.M)
    assert sorted(listed) == sorted(differences.NAMES)
