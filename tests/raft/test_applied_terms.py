"""`apply` is given the term of the entry, not that of the node that applies it."""

from __future__ import annotations

import pytest

from tests.raft.harness import Bench, C, append, batch
from tests.test_rules_node import Replicant

LOG = ((1, batch("x")), (3, batch("y")))  # entries 3 and 4


def test_a_core_that_has_received_the_entries() -> None:
    bench = Bench(term=7)
    bench.receive(C, append(7, 2, 1, [*LOG, (7, batch("z"))], commit=5))
    bench.runtime.settle()
    assert bench.application.terms == {3: 1, 4: 3, 5: 7}
    assert bench.engine.term == 7


def test_a_core_that_reads_them_from_its_log_after_a_restart() -> None:
    bench = Bench(log=LOG, term=7)
    bench.receive(C, append(8, 4, 3, commit=4))
    bench.runtime.settle()
    assert bench.application.terms == {3: 1, 4: 3}
    assert bench.engine.term == 8


@pytest.mark.parametrize("at_once", [True, False])
def test_a_replicant(at_once: bool) -> None:
    replicant = Replicant()
    replicant.follower.term = 7
    if at_once:
        replicant.feed(1, 0, LOG)
    else:
        replicant.feed(1, 0, LOG[:1])
        replicant.feed(2, 1, LOG[1:])
    assert replicant.copied.terms == [1, 3]
