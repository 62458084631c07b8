"""Transactions that compare or read many keys are applied in slices that no reader sees."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from raftkv.kv import FROM_KEY, KV, Compare, DeleteRangeOp, PutOp, RangeOp
from raftkv.kv.commands import Txn, TxnOutcome, TxnTooCostly
from raftkv.kv.large import Chosen
from raftkv.kv.transactions import flatten
from raftkv.state import Envelope, NodeUp, SetSetting, StateMachine, encode_batch

KEYS = 7_000
LONG = Compare(b"k", "version", "=", 1, b"l")


class Log:
    """One state machine with many keys; `core_format` is in force from its first entry on."""

    def __init__(self, core_format: int = 2) -> None:
        self.machine = StateMachine([KV()])
        if core_format > 1:
            self.machine.raise_format(1, msgspec.msgpack.encode(core_format))
        version = KV.version if core_format > 1 else 3
        up = NodeUp(1, "n1", "core", "n1", "", None, (("kv", version),))
        self.seq = 0
        [opened] = self.apply("core", up, session=0, seq=1)
        self.session = opened.session
        for first in range(0, KEYS, 100):
            puts = tuple(PutOp(b"k%05d" % key, b"v") for key in range(first, first + 100))
            self.apply("kv", flatten((), puts, ()))

    def body(self, plugin: str, command: msgspec.Struct, session: int, seq: int) -> bytes:
        data = msgspec.msgpack.encode(command)
        return encode_batch(1_000, [Envelope(session, seq, 0, plugin, data)])

    def apply(self, plugin: str, command: msgspec.Struct, session: int = -1, seq: int = 0) -> Any:
        return [
            outcome
            for *_, outcome in self.machine.apply(
                self.machine.index + 1, self.next(plugin, command, session, seq)
            )
        ]

    def next(self, plugin: str, command: msgspec.Struct, session: int = -1, seq: int = 0) -> bytes:
        self.seq += 1
        return self.body(plugin, command, self.session if session < 0 else session, seq or self.seq)

    def slices(self, txn: Txn) -> Iterator[list[Any]]:
        for some in self.machine.slices(self.machine.index + 1, self.next("kv", txn)):
            yield [outcome for *_, outcome in some]


TXNS: dict[str, Txn] = {
    "compare": flatten([LONG], [PutOp(b"a", b"1")], [PutOp(b"a", b"2")]),
    "compare of values": flatten(
        [Compare(b"k", "value", "=", b"v", b"l")], [PutOp(b"a", b"1")], []
    ),
    "compare that fails": flatten(
        [LONG, Compare(b"k05000", "version", ">", 1, b"l")], [], [PutOp(b"a", b"2")]
    ),
    "compare of nothing": flatten(
        [LONG, Compare(b"x", "version", "=", 0, b"y"), Compare(b"x", "value", "=", b"", b"y")],
        [],
        [PutOp(b"a", b"3")],
    ),
    "sorted ranges": flatten(
        [],
        [PutOp(b"a", b"1"), *[RangeOp(b"k", b"l", limit=2, sort_by="mod")] * 4, PutOp(b"b", b"")],
        [],
    ),
    "compare, read, delete": flatten(
        [LONG], [RangeOp(b"a", FROM_KEY, keys_only=True), DeleteRangeOp(b"k", b"k06000")], []
    ),
}


@pytest.mark.parametrize("core_format", [1, 2])
@pytest.mark.parametrize("name", list(TXNS))
def test_the_loop_runs_in_between_and_readers_see_nothing(name: str, core_format: int) -> None:
    log, other = Log(core_format), Log(core_format)
    view = log.machine.view("kv")
    before = dict(view.table("keys").scan()), view.table("meta")["revision"]
    slices = 0
    outcomes: list[Any] = []
    for some in log.slices(TXNS[name]):
        outcomes += some
        if not outcomes:
            slices += 1
            if slices % 4 == 1:
                assert (dict(view.table("keys").scan()), view.table("meta")["revision"]) == before
    assert slices >= 3
    assert type(outcomes[0]) is TxnOutcome, outcomes
    # All at once it is the same.
    assert other.apply("kv", TXNS[name]) == outcomes
    assert other.machine.digest() == log.machine.digest()


def test_a_refusal_in_the_middle_leaves_nothing() -> None:
    log = Log()
    log.apply("core", SetSetting.of("kv", "rows_max", 3 * KEYS - 1))
    before = log.machine.view("kv").table("meta")["revision"]
    outcomes = [
        each for some in log.slices(flatten([LONG] * 3, [PutOp(b"a", b"")], [])) for each in some
    ]
    assert [type(outcome) for outcome in outcomes] == [TxnTooCostly]
    assert log.machine.view("kv").table("meta")["revision"] == before


def test_a_few_comparisons_are_made_at_once() -> None:
    log = Log()
    txn = flatten([Compare(b"k0000", "version", "=", 1, b"k0001")], [PutOp(b"a", b"")], [])
    assert len(list(log.slices(txn))) <= 2


def test_a_comparison_reads_no_further_than_the_first_key_that_fails() -> None:
    log = Log()
    for first in range(0, 1_100, 100):
        puts = [PutOp(b"k%05d" % key, b"v" * 8_000) for key in range(first, first + 100)]
        log.apply("kv", flatten((), puts, ()))
    # The values of one slice are more than may be compared.
    log.apply("core", SetSetting.of("kv", "rows_max", 1_100))
    long = Compare(b"k", "value", "=", b"w" * 8_000, b"k01100")
    [outcome] = log.apply("kv", flatten([long], [], [PutOp(b"a", b"")]))
    assert type(outcome) is TxnOutcome, outcome
    assert not outcome.succeeded


@pytest.mark.parametrize("limit", [2**63, 2**64 - 1])
@pytest.mark.parametrize("core_format", [1, 2])
def test_any_limit_that_an_encoding_can_hold_is_a_limit(core_format: int, limit: int) -> None:
    log = Log(core_format)
    read = RangeOp(b"k", b"k00010", limit=limit)
    [outcome] = log.apply("kv", flatten([], [PutOp(b"a", b""), read], []))
    assert type(outcome) is TxnOutcome, outcome
    assert len(outcome.results[1].kvs) == 10
    chosen = Chosen(RangeOp(b"k", b"k00010", limit=limit, descending=True))
    chosen.add(outcome.results[1].kvs)
    assert list(chosen.in_order()) == list(outcome.results[1].kvs)[::-1]
