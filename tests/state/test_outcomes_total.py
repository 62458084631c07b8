"""The outcomes of all clients' sessions together are bounded, from core format 2 on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftkv.errors import OutcomeExpired, Refused
from raftkv.kv import KV, Put, RangeOp, Txn
from raftkv.state import Envelope, SettleOutcome, StateMachine
from raftkv.state.batch import encode_batch
from raftkv.state.core import OpenSession
from raftkv.state.sessions import OUTCOME_BYTES_MAX, OUTCOMES_BYTES_MAX, Sessions
from tests.state.harness import encode, node_up

VALUE = b"x" * 10_000
READ = encode(Txn(success=(RangeOp(b"big"),)))
CLIENTS = 6


class Cluster:
    """One machine with a node and some clients, whose outcomes may have `bytes_max` in all."""

    def __init__(self, bytes_max: int, core_format: int = 2) -> None:
        self.machine = self._machine(bytes_max)
        if core_format > 1:
            self.machine.raise_format(self.machine.index + 1, msgspec.msgpack.encode(core_format))
        self.node = self.apply(Envelope(0, 9, 0, "core", encode(node_up(9, "n1", self.machine))))
        self.node = self.node.session
        self.apply(Envelope(self.node, 1, 0, "kv", encode(Put(b"big", VALUE))))
        self.seq = 1
        opened = [
            self.apply(Envelope(0, nonce, 0, "core", encode(OpenSession(nonce))))
            for nonce in range(1, CLIENTS + 1)
        ]
        self.clients = [each.session for each in opened]

    @staticmethod
    def _machine(bytes_max: int) -> StateMachine:
        return StateMachine([KV()], sessions=Sessions(bytes_max=bytes_max))

    def twin(self) -> Cluster:
        """Restored from a snapshot of this one."""
        other = object.__new__(Cluster)
        other.node, other.clients, other.seq = self.node, self.clients, self.seq
        other.machine = self._machine(self.machine._sessions.bytes_max)
        other.machine.restore(list(self.machine.freeze().slices(3)), self.machine.index)
        return other

    def apply(self, *envelopes: Envelope) -> Any:
        body = encode_batch(1, envelopes)
        return self.machine.apply(self.machine.index + 1, body)[-1][2]

    def read(self, client: int, seq: int, floor: int = 0) -> Any:
        return self.apply(Envelope(self.clients[client], seq, floor, "kv", READ))

    def settle(self, client: int, seq: int) -> str:
        self.seq += 1
        question = SettleOutcome(self.clients[client], seq)
        answer = self.apply(Envelope(self.node, self.seq, self.seq, "core", encode(question)))
        verdict: str = answer.verdict
        return verdict

    def kept(self, client: int) -> list[int]:
        return sorted(self.machine._sessions.by_id[self.clients[client]].done)

    @property
    def counted(self) -> int:
        return self.machine._sessions.outcome_bytes


def test_the_raise_of_the_format_applies_the_bound_at_once() -> None:
    """Not only the next command of a client: there may be none (seed 875)."""
    cluster = Cluster(bytes_max=4 * len(VALUE), core_format=1)
    for client in range(CLIENTS):
        cluster.read(client, 1)
    assert cluster.counted > 5 * len(VALUE)
    cluster.machine.raise_format(cluster.machine.index + 1, msgspec.msgpack.encode(2))
    assert 0 < cluster.counted <= 4 * len(VALUE)
    assert cluster.kept(CLIENTS - 1) == [1]
    assert cluster.settle(0, 1) == "expired"


def test_the_raise_of_the_format_bounds_each_session_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("raftkv.state.machine.OUTCOME_BYTES_MAX", 2 * len(VALUE) + 500)
    cluster = Cluster(bytes_max=100 * len(VALUE), core_format=1)
    for seq in (1, 3, 2, 4):
        cluster.read(0, seq)
    cluster.read(1, 1)
    twin = cluster.twin()
    for each in (cluster, twin):
        each.machine.raise_format(each.machine.index + 1, msgspec.msgpack.encode(2))
        assert [each.settle(0, seq) for seq in (1, 2, 3, 4)] == [
            "expired",
            "expired",
            "applied",
            "applied",
        ]
        assert each.settle(1, 1) == "applied"
    assert cluster.counted == twin.counted < 4 * len(VALUE)


def test_session_eviction_by_large_outcomes_spares_those_that_keep_little() -> None:
    cluster = Cluster(bytes_max=10 * len(VALUE))
    write = Envelope(cluster.clients[0], 1, 0, "kv", encode(Put(b"small", b"1")))
    answer = cluster.apply(write)
    for round in range(4):
        for client in range(1, CLIENTS):
            for seq in range(3 * round + 1, 3 * round + 4):
                cluster.read(client, seq)
            assert cluster.kept(0) == [1], "it keeps least, and was used least recently"
    assert cluster.counted <= 10 * len(VALUE)
    serial = cluster.machine.serial
    assert cluster.apply(write) == answer
    assert cluster.machine.serial == serial, "it was not run again"


def test_session_eviction_begins_with_the_session_that_keeps_most() -> None:
    cluster = Cluster(bytes_max=8 * (len(VALUE) + 500))
    for client, reads in ((0, 1), (1, 2), (2, 3), (3, 2)):
        for seq in range(reads):
            cluster.read(client, seq)
    cluster.read(4, 1)
    assert [cluster.kept(client) for client in range(5)] == [[0], [0, 1], [], [0, 1], [1]]


def test_of_sessions_that_keep_as_much_the_least_recently_used_loses_first() -> None:
    cluster = Cluster(bytes_max=10 * (len(VALUE) + 500))
    for client in range(5):
        for seq in (1, 2):
            cluster.read(client, seq)
    cluster.read(0, 3)
    assert cluster.kept(0) == [1, 2, 3]
    assert cluster.kept(1) == []
    assert cluster.kept(4) == [1, 2]
    assert cluster.counted <= 10 * (len(VALUE) + 500)


def test_what_was_dropped_is_expired_and_never_executed_again() -> None:
    cluster = Cluster(bytes_max=3 * len(VALUE))
    write = Envelope(cluster.clients[0], 5, 0, "kv", encode(Put(b"counted", b"1")))
    cluster.apply(write)
    for seq in range(1, 5):
        cluster.read(1, seq)
    assert cluster.kept(0) == []
    serial = cluster.machine.serial
    for seq in (5, 4):  # 4 had not come: what it is sent for is not known, either
        again = cluster.apply(msgspec.structs.replace(write, seq=seq))
        assert isinstance(again, OutcomeExpired)
    assert cluster.machine.serial == serial, "it was not run"
    assert cluster.settle(0, 5) == "expired"
    assert not isinstance(cluster.apply(msgspec.structs.replace(write, seq=6)), Refused)


def test_the_session_in_use_keeps_its_own() -> None:
    cluster = Cluster(bytes_max=len(VALUE))
    for seq in range(1, 20):
        answer = cluster.read(0, seq)
        assert cluster.read(0, seq) == answer
    assert cluster.kept(0) == list(range(1, 20))
    cluster.read(1, 1)
    assert (cluster.kept(0), cluster.kept(1)) == ([], [1])


def test_at_core_format_1_nothing_is_dropped() -> None:
    cluster = Cluster(bytes_max=len(VALUE), core_format=1)
    for client in range(CLIENTS):
        cluster.read(client, 1)
    assert all(cluster.kept(client) == [1] for client in range(CLIENTS))


def test_the_bound_leaves_room_for_sessions_at_their_own() -> None:
    assert OUTCOMES_BYTES_MAX >= 64 * OUTCOME_BYTES_MAX
    assert StateMachine([KV()])._sessions.bytes_max == OUTCOMES_BYTES_MAX


def test_sessions_that_end_and_floors_that_rise_free_what_they_held() -> None:
    cluster = Cluster(bytes_max=10**9)
    cluster.read(0, 1)
    one = cluster.counted
    cluster.read(1, 1)
    assert cluster.counted == 2 * one
    cluster.read(1, 2, floor=2)
    assert cluster.counted == 2 * one
    for _ in range(CLIENTS):
        cluster.machine._sessions._end_client(
            next(iter(cluster.machine._sessions._clients.values()))
        )
    assert cluster.counted == 0


STEP = st.one_of(
    st.tuples(st.integers(0, CLIENTS - 1), st.integers(0, 12), st.integers(0, 6)),
    st.tuples(st.integers(0, CLIENTS - 1), st.integers(0, 12), st.none()),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(STEP, min_size=25, max_size=60), st.integers(0, 24), st.integers(1, 8))
def test_a_machine_that_was_restored_drops_the_same(
    steps: Sequence[tuple[int, int, int | None]], restored_at: int, room: int
) -> None:
    cluster = Cluster(bytes_max=room * len(VALUE))
    both = [cluster]
    for number, (client, seq, floor) in enumerate(steps):
        if number == restored_at:
            both.append(cluster.twin())
            frozen, was = cluster.machine.freeze(), cluster.machine.digest()
        answers = [
            each.settle(client, seq) if floor is None else type(each.read(client, seq, floor))
            for each in both
        ]
        assert len(set(answers)) == 1
    assert both[1].machine.digest() == cluster.machine.digest()
    assert both[1].counted == cluster.counted
    for _ in frozen.slices():
        pass
    assert frozen.digest == was, "a walk sees the sessions as they were"


def test_a_drop_makes_room_for_many_commands() -> None:
    cluster = Cluster(bytes_max=80 * len(VALUE))
    drops = 0
    for seq in range(1, 400):
        before = cluster.counted
        cluster.read(seq % 2, seq // 2, floor=0)
        drops += cluster.counted < before
    assert drops <= 400 // 10 + 1
