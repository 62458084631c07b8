"""Nested transactions: refused exactly where one execution could change a key twice."""

from __future__ import annotations

from typing import Any

import pytest

from raftkv.kv import KV, Compare, DeleteRangeOp, DuplicateKey, PutOp, TxnOp, TxnOutcome
from raftkv.kv.transactions import flatten
from tests.kv.arrangements import KEY, RANGE, all_arrangements, overlooked_by_etcd, refused
from tests.kv.fake_host import FakeHost

HOLDS = (Compare(KEY, "version", ">", -1),)
OPERATIONS = {
    "put": PutOp(KEY, b""),
    "delete": DeleteRangeOp(KEY),
    "range": DeleteRangeOp(*RANGE),
}


def tree(branch: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        OPERATIONS[item] if isinstance(item, str) else TxnOp(HOLDS, tree(item[0]), tree(item[1]))
        for item in branch
    )


def is_refused(host: FakeHost, branch: tuple[Any, ...], *, failure: bool = False) -> bool:
    operations = tree(branch)
    outcome = host.apply(flatten(HOLDS, *((), operations) if failure else (operations, ())))
    assert isinstance(outcome, DuplicateKey | TxnOutcome)
    return isinstance(outcome, DuplicateKey)


def test_every_arrangement_is_refused_exactly_where_both_can_run() -> None:
    host = FakeHost()
    arrangements = list(all_arrangements())
    assert len(arrangements) == len(set(arrangements)) == 5_027
    wrong = [each for each in arrangements if is_refused(host, each) != refused(each)]
    assert wrong == []
    assert host.machine.invariants() == []


def test_the_failure_branch_is_checked_alike() -> None:
    host = FakeHost()
    some = list(all_arrangements())[::7]
    assert [is_refused(host, each, failure=True) for each in some] == [*map(refused, some)]


def test_opposite_branches_of_one_comparison_are_allowed() -> None:
    host = FakeHost()
    assert not is_refused(host, (((("put"),), (("delete"),)),))
    operations = (OPERATIONS["put"],), (OPERATIONS["range"],)
    assert isinstance(host.apply(flatten(HOLDS, *operations)), TxnOutcome)


@pytest.mark.parametrize("version", [3, KV.version])
def test_before_format_4_a_later_deletion_in_an_inner_txn_is_let_pass(version: int) -> None:
    host = FakeHost(version)
    some = [each for each in all_arrangements() if overlooked_by_etcd(each)]
    assert len(some) > 300
    assert {is_refused(host, each) for each in some} == {version == KV.version}
