"""The outcomes of a client's session are bounded in bytes, from core format 2 on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from raftkv.errors import OutcomeExpired, Refused
from raftkv.kv import KV, Put, RangeOp, Txn
from raftkv.state import Envelope, SettleOutcome, StateMachine
from raftkv.state.batch import encode_batch
from raftkv.state.core import OpenSession
from raftkv.state.sessions import DROPPED, OUTCOME_BYTES_MAX, Session
from tests.state.harness import copy_of, encode, node_up

VALUE = b"x" * 100_000
READ = encode(Txn(success=(RangeOp(b"big"),)))


class Cluster:
    """One machine with a node and a client, and commands that are answered with VALUE."""

    def __init__(self, core_format: int = 2) -> None:
        self.machine = StateMachine([KV()])
        if core_format > 1:
            self.machine.raise_format(self.machine.index + 1, msgspec.msgpack.encode(core_format))
        up = node_up(9, "n1", self.machine)
        self.node = self.apply(Envelope(0, 9, 0, "core", encode(up)))[0].session
        self.apply(Envelope(self.node, 1, 0, "kv", encode(Put(b"big", VALUE))))
        self.client = self.apply(Envelope(0, 77, 0, "core", encode(OpenSession(77))))[0].session

    def apply(self, *envelopes: Envelope) -> list[Any]:
        body = encode_batch(1, envelopes)
        return [each[2] for each in self.machine.apply(self.machine.index + 1, body)]

    def read(self, seq: int, floor: int = 0) -> Any:
        return self.apply(Envelope(self.client, seq, floor, "kv", READ))[0]

    def size(self) -> int:
        return sum(map(len, self.machine.freeze().slices()))

    @property
    def session(self) -> Session:
        return self.machine._sessions.by_id[self.client]


def test_small_requests_for_large_answers_do_not_fill_the_snapshots() -> None:
    cluster = Cluster()
    before = cluster.size()
    for seq in range(1, 201):
        assert not isinstance(cluster.read(seq), Refused)
    assert cluster.size() - before < OUTCOME_BYTES_MAX + 2 * len(VALUE)
    assert cluster.session.bytes <= OUTCOME_BYTES_MAX


def test_a_dropped_outcome_is_expired_and_its_command_is_not_executed_again() -> None:
    cluster = Cluster()
    write = encode(Put(b"counted", b"1"))
    cluster.apply(Envelope(cluster.client, 1, 0, "kv", write))
    for seq in range(2, 30):
        cluster.read(seq)
    serial = cluster.machine.serial
    assert isinstance(cluster.apply(Envelope(cluster.client, 1, 0, "kv", write))[0], OutcomeExpired)
    assert cluster.machine.serial == serial, "it was not run"
    assert not isinstance(cluster.read(29), Refused), "the newest ones are there"
    settle = Envelope(cluster.node, 2, 0, "core", encode(SettleOutcome(cluster.client, 1)))
    assert cluster.apply(settle)[0].verdict == "expired"


def test_the_newest_outcome_is_kept_whatever_its_size_and_number() -> None:
    cluster = Cluster()
    for seq in range(100, 2, -1):
        answer = cluster.read(seq)
        assert cluster.session.done[seq] is not DROPPED
        assert cluster.read(seq) == answer
    large = Envelope(cluster.client, 2, 0, "kv", encode(Txn(success=(RangeOp(b"big"),) * 12)))
    answer = cluster.apply(large)
    assert cluster.session.bytes > OUTCOME_BYTES_MAX
    assert cluster.apply(large) == answer
    assert all(cluster.session.done[seq] is DROPPED for seq in range(3, 101))


def test_the_bytes_of_what_the_floor_has_passed_are_free() -> None:
    cluster = Cluster()
    for seq in range(1, 200):
        cluster.read(seq, floor=max(0, seq - 3))
        assert cluster.session.bytes < 4 * (len(VALUE) + 100)
    assert DROPPED not in cluster.session.done.values()
    cluster.read(300, floor=300)
    assert cluster.session.bytes < len(VALUE) + 100


def test_at_core_format_1_nothing_is_dropped_until_the_format_is_raised() -> None:
    cluster = Cluster(core_format=1)
    for seq in range(1, 31):
        cluster.read(seq)
    assert DROPPED not in cluster.session.done.values()
    machine = cluster.machine
    machine.raise_format(machine.index + 1, msgspec.msgpack.encode(2))
    cluster.read(31)
    assert cluster.session.bytes <= OUTCOME_BYTES_MAX
    assert cluster.session.done[1] is DROPPED


STEPS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 10)), min_size=25, max_size=60)


@settings(max_examples=30, deadline=None)
@given(STEPS, st.integers(0, 24), st.sampled_from([1, 2]))
def test_a_machine_that_was_restored_drops_the_same(
    steps: Sequence[tuple[int, int]], restored_at: int, core_format: int
) -> None:
    cluster = Cluster(core_format)
    twin: Cluster | None = None
    for number, (seq, floor) in enumerate(steps):
        if number == restored_at:
            twin = Cluster(core_format)
            twin.machine = copy_of(cluster.machine, [KV()])
        if number == restored_at + 5:
            for each in (cluster, twin):
                assert each is not None
                if core_format == 1:
                    machine = each.machine
                    machine.raise_format(machine.index + 1, msgspec.msgpack.encode(2))
        answer = cluster.read(seq, floor)
        if twin is not None:
            again = twin.read(seq, floor)
            assert type(again) is type(answer)
    assert twin is not None
    assert twin.machine.digest() == cluster.machine.digest()
    assert twin.session.bytes == cluster.session.bytes
