"""The core format that a log leads to, whether its entries are applied or not."""

from __future__ import annotations

import msgspec

from raftkv.raft.engine import FORMAT
from tests.raft.harness import Bench, batch


def raise_to(core_format: int) -> bytes:
    return bytes([FORMAT]) + msgspec.msgpack.encode(core_format)


def test_without_a_raise_it_is_the_one_that_is_applied() -> None:
    bench = Bench(log=[(1, batch("x"))])
    assert bench.engine.core_format_ahead() == bench.engine.application.core_format


ENTRIES = (batch("x"), raise_to(8), batch("y"), raise_to(9), batch("z"))


def test_a_raise_that_is_not_applied_counts_and_the_last_one_decides() -> None:
    bench = Bench(log=[(1, entry) for entry in ENTRIES])
    assert bench.engine.core_format_ahead() == 9
