"""Rules 16 and 17: what a leader may answer from its own memory. (The lease: test_office.py.)

A whole engine is driven message by message, with its disk in the test's hands; what is pure is
tested in its module's own file. test_stock_canaries.py shows what stock PySyncObj does instead.
"""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from raftkv.config import NodeConfig, RaftTimes
from raftkv.logclock import LogClock
from raftkv.parts import CorePart
from raftkv.peering import Peering
from raftkv.raft import wire
from raftkv.raft.changing import add_learner, remove
from raftkv.raft.membership import Configuration
from raftkv.raft.recovery import recover
from raftkv.replica import Replica
from raftkv.state.machine import StateMachine
from raftkv.testing.disk import SimDisk
from tests.fakes import FakeRuntime
from tests.raft.harness import (
    BEAT_S,
    DIRECTORY,
    A,
    B,
    Bench,
    C,
    D,
    E,
    FakeLink,
    accepted,
    append,
    write_log,
)


class TestRule17ReadIndex:
    def test_no_read_before_an_entry_of_the_own_term_is_committed(self) -> None:
        """What earlier terms committed is not known before."""
        bench = Bench(A)
        term = bench.elect()
        assert bench.engine.read_index("r")
        bench.runtime.settle()
        *_, early = bench.take(B, wire.Append)
        bench.receive(B, accepted(term, 2, early.round))
        assert bench.application.confirmed == []
        bench.receive(B, accepted(term, 3, early.round))
        bench.runtime.settle()
        *_, question = bench.take(B, wire.Append)
        bench.receive(B, accepted(term, 3, question.round - 1))
        assert bench.application.confirmed == [], "it was sent before the index was noted"
        bench.receive(B, accepted(term, 3, question.round))
        assert bench.application.confirmed == [("r", 3)]

    def test_a_round_is_not_confirmed_by_a_minority_or_another_round(self) -> None:
        bench = Bench(A, voters=(A, B, C, D, E))
        term = bench.lead()
        bench.engine.read_index("r")
        bench.runtime.settle()
        round_number = bench.engine.leading.reads.round
        bench.receive(B, accepted(term, 3, round_number), accepted(term, 3, round_number))
        bench.receive(C, accepted(term, 3, round_number - 1))
        bench.receive(D, accepted(term - 1, 3, round_number))
        assert bench.application.confirmed == []
        bench.receive(E, wire.AppendReply(term, False, 3, round_number, 0, 0))
        assert bench.application.confirmed == [("r", 3)]

    @pytest.mark.parametrize("voters", [(A, B), (A, B, C)])
    def test_a_round_ends_though_those_who_were_asked_are_removed(
        self, voters: tuple[str, ...]
    ) -> None:
        """The echoes that there are may be a majority of who is left; no further one need come."""
        bench = Bench(A, voters=voters)
        term = bench.lead()
        bench.engine.read_index("r")
        bench.runtime.settle()
        assert bench.application.confirmed == []
        bench.engine.change_configuration(remove(bench.engine.configuration, B), force=False)
        bench.runtime.settle()
        if C in voters:
            assert bench.application.confirmed == [], "one of two is no majority"
            round_number = bench.engine.leading.reads.round
            bench.receive(C, accepted(term, 3, round_number))
        assert bench.application.confirmed == [("r", 3)]

    def test_a_step_down_fails_the_readers(self) -> None:
        bench = Bench(A)
        term = bench.lead()
        bench.engine.read_index("r")
        bench.runtime.settle()
        bench.engine.read_index("s")
        bench.receive(B, append(term + 1, 3, term))
        assert bench.application.failed == ["r", "s"]
        assert not bench.engine.read_index("t")

    def test_the_majority_is_one_of_the_configuration_in_force(self) -> None:
        """A reader that came before a change is counted by what is in force now."""
        bench = Bench(A)
        term = bench.lead()
        bench.engine.read_index("r")
        bench.runtime.settle()
        round_number = bench.engine.leading.reads.round
        four = add_learner(bench.engine.configuration, D)
        bench.engine.change_configuration(four, force=False)
        bench.runtime.settle()
        bench.connect(D)
        bench.receive(D, accepted(term, 0, round_number), accepted(term, 0, round_number + 1))
        assert bench.application.confirmed == [], "a copy confirms nothing"
        bench.receive(B, accepted(term, 3, round_number))
        assert bench.application.confirmed == [("r", 3)]

    def test_readers_of_a_moment_share_a_round(self) -> None:
        bench = Bench(A)
        term = bench.lead()
        bench.engine.read_index("first")
        bench.runtime.settle()
        (question,) = bench.take(B, wire.Append)
        for number in range(1000):
            bench.engine.read_index(number)
        bench.runtime.settle()
        assert bench.take(B, wire.Append) == [], "they wait for the round in flight"
        bench.receive(B, accepted(term, 3, question.round))
        bench.runtime.settle()
        assert bench.application.confirmed == [("first", 3)]
        (shared,) = bench.take(B, wire.Append)
        assert shared.round > question.round
        bench.receive(B, accepted(term, 3, shared.round))
        assert len(bench.application.confirmed) == 1001

    def test_no_entry_and_no_sync_is_needed(self) -> None:
        bench = Bench(A)
        term = bench.lead()
        last, syncs = bench.wal.last_index, bench.disk.syncs_total
        bench.engine.read_index("r")
        bench.runtime.run()
        (question,) = bench.take(B, wire.Append)
        bench.receive(B, accepted(term, last, question.round))
        assert bench.application.confirmed == [("r", last)]
        assert (bench.wal.last_index, bench.disk.syncs_total) == (last, syncs)

    def test_a_leader_that_stood_still_answers_no_new_reader(self) -> None:
        """SIGSTOP: another leads by now, and the old one has not heard of it."""
        times = RaftTimes(lease_ms=200)
        bench = Bench(A, times=times)
        term = bench.lead()
        bench.runtime.advance(BEAT_S)
        *_, old = bench.take(B, wire.Append)
        bench.receive(B, accepted(term, 3, old.round, 200))
        assert bench.engine.holds_lease
        bench.runtime.now += 30.0
        assert not bench.engine.holds_lease
        bench.engine.read_index("r")
        bench.receive(B, accepted(term, 3, old.round, 200))
        assert bench.application.confirmed == []
        bench.receive(B, append(term + 1, 3, term))
        assert bench.application.failed == ["r"]


class Relay:
    """Core b, which a replicant asks; core a leads."""

    def __init__(self) -> None:
        config = NodeConfig(
            name="b",
            dir=DIRECTORY,
            peer_address="127.0.0.1:1",
            cores={"b": "127.0.0.1:1"},
            plugins=(),
        )
        write_log(disk := SimDisk(random.Random(1)), Configuration((A, B, C)), [], 1)
        self.runtime: Any = FakeRuntime(disk)
        machine = StateMachine([])
        machine.skip(1)
        replica = Replica(machine, LogClock(self.runtime), NO_OUTBOX, NO_READER)
        self.part = CorePart(
            config,
            self.runtime,
            Peering(config, NO_DIRECTORY, self.runtime, lambda fault: None),
            recover(disk, DIRECTORY, config.limits, fsync=True, belongs=False),
            replica,
            NO_READER,
            B,
            "cluster",
        )
        self.leader = FakeLink(A)
        self.leader.purpose = "raft"  # type: ignore[attr-defined]
        self.replicant = FakeLink("r-1")
        self.replicant.purpose = "follow"  # type: ignore[attr-defined]
        engine = self.part.engine
        engine.links[A] = self.leader  # type: ignore[assignment]
        engine.start()
        engine.receive(self.leader, append(2, 2, 1, commit=2))  # type: ignore[arg-type]
        engine.kick()
        self.runtime.settle()
        self.leader.messages.clear()

    def ask(self, number: int) -> None:
        question = wire.ReadRequest(number)
        self.part._on_read_request(self.replicant, question)  # type: ignore[arg-type]


NO_OUTBOX: Any = None
NO_READER: Any = SimpleNamespace(applied=lambda index: None)
NO_DIRECTORY: Any = None


class TestRule17AnUpstreamPassesQuestionsOn:
    def test_a_replicants_question_goes_to_the_leader_and_its_answer_back(self) -> None:
        relay = Relay()
        relay.ask(5)
        assert relay.replicant.messages == [], "a core does not answer from its own belief"
        (question,) = relay.leader.messages
        assert isinstance(question, wire.ReadRequest)
        answer = wire.ReadReply(question.number, 42)
        relay.part._on_read_reply(relay.leader, answer)  # type: ignore[arg-type]
        assert relay.replicant.messages == [wire.ReadReply(5, 42)]
        relay.part._on_read_reply(relay.leader, answer)  # type: ignore[arg-type]
        assert len(relay.replicant.messages) == 1

    def test_without_a_leader_it_says_that_it_cannot_answer(self) -> None:
        relay = Relay()
        relay.part.engine.become_follower(2, None)
        relay.ask(5)
        assert relay.replicant.messages == [wire.ReadReply(5, 0)]
        assert relay.leader.messages == []
