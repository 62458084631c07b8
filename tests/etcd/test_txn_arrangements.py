"""Nested transactions beside real etcd: where its check differs from the rule of raftkv."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from bench.differential.doors import Door
from bench.differential.example import Pair
from bench.differential.words import Step
from tests.kv.arrangements import KEY, RANGE, all_arrangements, overlooked_by_etcd, refused

pytestmark = pytest.mark.cluster

DUPLICATE = "etcdserver: duplicate key given in txn request"
OPERATIONS: dict[str, dict[str, Any]] = {
    "put": {"request_put": {"key": KEY}},
    "delete": {"request_delete_range": {"key": KEY}},
    "range": {"request_delete_range": {"key": RANGE[0], "range_end": RANGE[1]}},
}


@pytest.fixture
def apart(pair: Pair) -> Iterator[Pair]:
    """Both sides, at the same revision again afterwards."""
    yield pair
    pair.align()


def body(branch: tuple[Any, ...]) -> list[dict[str, Any]]:
    return [
        OPERATIONS[item]
        if isinstance(item, str)
        else {"request_txn": {"success": body(item[0]), "failure": body(item[1])}}
        for item in branch
    ]


def is_refused(side: Door, branch: tuple[Any, ...]) -> bool:
    side.send(Step("/v3/kv/txn", {"success": body(branch)}))
    answer = side.answer()
    if answer.status == 200:
        return False
    assert answer.document["error"] == DUPLICATE
    return True


def test_etcd_overlooks_a_deletion_behind_the_put_and_nothing_else(apart: Pair) -> None:
    counted: Counter[tuple[bool, bool]] = Counter()
    for branch in all_arrangements():
        overlooked = overlooked_by_etcd(branch)
        assert is_refused(apart.etcd, branch) == (refused(branch) and not overlooked), branch
        counted[refused(branch), overlooked] += 1
    assert min(counted[True, True], counted[True, False], counted[False, False]) > 300


def test_the_http_api_refuses_what_the_oracle_refuses(apart: Pair) -> None:
    for branch in list(all_arrangements())[::10]:
        assert is_refused(apart.raftkv, branch) == refused(branch), branch
