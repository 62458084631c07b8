"""Rules 15, 18 and 19 of consensus: what stands around the engine owes to them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from raftkv.config import NodeConfig
from raftkv.errors import Diverged, NodeFault, Timeout
from raftkv.kv import KV
from raftkv.kv.commands import Put, PutResult
from raftkv.logclock import STEP_MAX_MS, LogClock
from raftkv.outbox import ABANDONED_KEPT_S
from raftkv.parts import CorePart
from raftkv.raft import wire
from raftkv.replicant.follower import Follower
from raftkv.replicant.upstream import STATUS_S, Feeds
from raftkv.state.core import OutcomeReport, SettleOutcome
from raftkv.state.machine import StateMachine
from raftkv.testing import LocalCluster
from tests.fakes import FakeRuntime
from tests.raft.harness import MAX_S, A, B, Bench, FakeLink, append, batch
from tests.test_membership import in_loop, until
from tests.test_replica import Bench as Origin

WALL = 1_700_000_000_000


class TestRule15AnInstallJumpsOverWaitingEntries:
    def test_what_the_snapshot_knows_is_answered_from_it(self) -> None:
        origin = Origin()
        answer = origin.submit()
        origin.apply(*origin.sent)
        origin.jump()
        assert isinstance(answer.result(), PutResult)

    def test_what_it_does_not_know_is_sent_again_and_answered_once(self) -> None:
        origin = Origin()
        answer = origin.submit()
        origin.jump()
        assert not answer.done()
        origin.outbox.office_changed()
        assert len(origin.sent) == 2
        origin.apply(*origin.sent)
        origin.jump()
        assert isinstance(answer.result(), PutResult)
        assert origin.elsewhere.view("kv").table("keys").get(b"k").version == 1

    def test_what_may_have_been_applied_before_its_session_ended_is_unknown(self) -> None:
        origin = Origin()
        answer = origin.submit()
        origin.apply(*origin.sent)
        session, _ = origin.up(nonce=6)
        origin.jump()
        origin.outbox.open(session)
        with pytest.raises(Timeout, match="may have been applied"):
            answer.result()

    def test_a_caller_that_timed_out_holds_the_floor_for_a_bounded_time(self) -> None:
        """Rule 14's last clause: until then the outcome can be asked for; then it is decided."""
        origin = Origin()
        answer = origin.outbox.submit("kv", Put(b"k", b"v"), 1.0)
        origin.runtime.run()
        origin.runtime.advance(1.1)
        assert isinstance(answer.exception(), Timeout)
        floors = []
        for wait in (0.0, ABANDONED_KEPT_S / 2):
            origin.runtime.advance(wait)
            origin.submit()
            floors.append(msgspec.msgpack.decode(origin.sent[-1])[2])
        assert floors == [1, 1]
        origin.runtime.advance(ABANDONED_KEPT_S)
        _, number, floor, plugin, command = msgspec.msgpack.decode(origin.sent[-1])
        assert (floor, plugin) == (1, "core")
        settle = msgspec.msgpack.decode(command, type=SettleOutcome)
        assert settle.seq == 1, "the log is asked before the floor passes the number"
        origin.outbox.settle(number, OutcomeReport("not_applied"))
        origin.submit()
        assert msgspec.msgpack.decode(origin.sent[-1])[2] > 1


class Copied:
    """What a replicant's follower drives."""

    def __init__(self) -> None:
        self.state: list[bytes] = []
        self.terms: list[int] = []
        self.faults: list[NodeFault] = []
        self._chunks: list[bytes] = []

    def apply(self, index: int, body: bytes, term: int) -> None:
        self.state.append(body)
        self.terms.append(term)

    def skip(self, index: int) -> None:
        """An entry without commands."""

    def loading(self) -> Copied:
        self._chunks = []
        return self

    def add(self, chunk: bytes) -> None:
        self._chunks.append(chunk)

    def adopt(self, index: int) -> None:
        self.state = self._chunks

    def discard(self) -> None:
        self._chunks = []

    def progressed(self) -> None:
        """Tests look at the follower."""

    def office_changed(self) -> None:
        """Tests look at the follower."""

    def faulted(self, fault: NodeFault) -> None:
        self.faults.append(fault)


class UpstreamLink(FakeLink):
    """The replicant's end of a stream that it has dialled."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name}-1")
        self.peer_name = name
        self.dialled = "somewhere"

    def abort(self) -> None:
        self.closed = True


class Replicant:
    """A replicant's follower; the test says what its upstreams send."""

    def __init__(self) -> None:
        cores = {"a": "127.0.0.1:1", "b": "127.0.0.1:2"}
        config = NodeConfig(
            name="r", dir="r", peer_address="127.0.0.1:9", cores=cores, role="replicant"
        )
        self.runtime: Any = FakeRuntime()
        self.copied = Copied()
        hub: Any = None  # nothing is dialled here
        self.follower = Follower(
            config, hub, self.runtime, self.copied, lambda: sorted(cores.items())
        )
        self.link = self.moves_to("a")

    def moves_to(self, name: str) -> UpstreamLink:
        self.link = UpstreamLink(name)
        self.follower.link_up(self.link)  # type: ignore[arg-type]
        return self.link

    def feed(self, prev: int, prev_term: int, entries: Sequence[tuple[int, bytes]]) -> None:
        message = wire.Feed(prev, prev_term, prev + len(entries), list(entries))
        self.follower.on_feed(self.link, message)  # type: ignore[arg-type]
        self.runtime.run()

    def snapshot(self, index: int, term: int, state: bytes) -> None:
        for number, data in enumerate((state, b"")):
            self.follower.on_snapshot(
                self.link,  # type: ignore[arg-type]
                wire.FeedSnapshot(index, term, number, data == b"", data),
            )
        self.runtime.run()


class TestRule18Replicants:
    def test_it_asks_from_where_it_stands(self) -> None:
        replicant = Replicant()
        assert replicant.link.messages == [wire.Follow(1, 0)]
        replicant.feed(1, 0, [(1, batch("x")), (2, batch("y"))])
        assert replicant.moves_to("b").messages == [wire.Follow(3, 2)]

    @pytest.mark.parametrize(("prev", "term"), [(2, 2), (1, 1), (4, 1), (0, 0)])
    def test_what_does_not_continue_its_log_stops_it(self, prev: int, term: int) -> None:
        replicant = Replicant()
        replicant.feed(1, 0, [(1, batch("x"))])
        replicant.feed(prev, term, [(2, batch("y"))])
        assert [type(fault) for fault in replicant.copied.faults] == [Diverged]
        assert replicant.copied.state == [b"x"]

    def test_a_snapshot_at_or_below_what_it_holds_changes_nothing(self) -> None:
        replicant = Replicant()
        replicant.feed(1, 0, [(1, batch("x")), (1, batch("y"))])
        for index in (2, 3):
            replicant.snapshot(index, 1, b"older")
        assert replicant.copied.state == [b"x", b"y"]
        assert replicant.follower.applied == 3
        replicant.snapshot(9, 1, b"newer")
        assert replicant.copied.state == [b"newer"]
        assert replicant.follower.applied == 9

    def test_an_upstream_that_stands_lower_waits_until_it_has_caught_up(self) -> None:
        core = Bench(B, log=[(1, batch("3")), (1, batch("4"))])
        feeds = Feeds(core.engine)
        link = UpstreamLink("r")
        feeds.link_up(link)  # type: ignore[arg-type]
        feeds.on_follow(link, wire.Follow(4, 1))  # type: ignore[arg-type]
        assert core.engine.commit < 4
        assert not any(isinstance(m, wire.Feed | wire.FeedSnapshot) for m in link.messages)
        core.deliver(A, append(1, 4, 1, [(1, batch("5"))], commit=5))
        feeds.progressed()
        (feed,) = [m for m in link.messages if isinstance(m, wire.Feed)]
        assert (feed.prev_index, feed.prev_term, len(feed.entries)) == (4, 1, 1)

    def test_a_replicant_that_holds_another_entry_is_told_so(self) -> None:
        core = Bench(B, log=[(1, batch("3")), (1, batch("4"))])
        core.deliver(A, append(1, 4, 1, commit=4))
        feeds = Feeds(core.engine)
        link = UpstreamLink("r")
        feeds.link_up(link)  # type: ignore[arg-type]
        feeds.on_follow(link, wire.Follow(4, 2))  # type: ignore[arg-type]
        assert [m.code for m in link.messages if isinstance(m, wire.Refusal)] == ["diverged"]
        assert link.closed

    def test_a_history_that_was_given_up_is_discarded(self) -> None:
        """A forced recovery begins another epoch (peering.py, epoch.py)."""
        replicant = Replicant()
        replicant.feed(1, 0, [(1, batch("x"))])
        replicant.follower.begin_anew()
        assert replicant.moves_to("a").messages == [wire.Follow(1, 0)]

    def test_an_upstream_says_for_how_long_it_has_known_no_leader(self) -> None:
        """Rule 17's last clause; the replicant moves when that exceeds an election time-out."""
        core = Bench(B)
        core.deliver(A, append(1, 2, 1))
        feeds = Feeds(core.engine)
        link = UpstreamLink("r")
        feeds.link_up(link)  # type: ignore[arg-type]
        core.runtime.advance(3 * MAX_S)
        *_, last = [m for m in link.messages if isinstance(m, wire.LeaderChanged)]
        assert last.leader == ""
        assert last.age_ms >= (2 * MAX_S - STATUS_S) * 1000 - 100
        replicant = Replicant()
        replicant.follower.on_leader_changed(
            replicant.link,  # type: ignore[arg-type]
            wire.LeaderChanged("", 1, int(MAX_S * 1000) - 1),
        )
        assert not replicant.link.closed
        replicant.follower.on_leader_changed(replicant.link, last)  # type: ignore[arg-type]
        assert replicant.link.closed


class TestRule19TheLogsClock:
    def test_a_new_leader_starts_behind_the_largest_stamp_of_the_unapplied_tail(self) -> None:
        origin = Origin()
        stamp = origin.runtime.wall_ms() + 5_000
        body = b"\x92" + msgspec.msgpack.encode(stamp) + b"\x90"
        bench = Bench(A, log=[(1, b"\x00" + body)])
        origin.replica.elected(bench.wal)
        assert origin.replica.clock.now_ms() == stamp

    def test_it_advances_by_monotonic_time_whatever_the_wall_clock_does(self) -> None:
        runtime: Any = FakeRuntime()
        clock = LogClock(runtime)
        clock.elected(WALL)
        start = clock.now_ms()
        runtime.wall += 10**9
        runtime.advance(1.5)
        runtime.wall -= 10**10
        assert clock.now_ms() == start + 1500

    def test_a_jump_of_the_wall_clock_is_bounded(self) -> None:
        runtime: Any = FakeRuntime()
        runtime.wall = WALL + 100 * STEP_MAX_MS
        clock = LogClock(runtime)
        clock.elected(WALL)
        assert clock.now_ms() == WALL + STEP_MAX_MS
        runtime.wall = WALL - STEP_MAX_MS
        clock.elected(WALL)
        assert clock.now_ms() == WALL

    def test_it_is_clamped_again_at_apply_and_is_part_of_the_snapshot(self) -> None:
        machine = StateMachine([KV()])
        machine.skip(1)
        for index, stamp in ((2, WALL), (3, WALL - 50)):
            machine.apply(index, b"\x92" + msgspec.msgpack.encode(stamp) + b"\x90")
        assert machine.now == WALL
        restored = StateMachine([KV()])
        restored.restore(list(machine.freeze().slices()), machine.index)
        assert restored.now == WALL


class TestRule23GivingUpANode:
    def test_who_stops_dialling_still_hears_on_the_stream_that_is_up(self) -> None:
        """A lagging configuration may say that its leader was removed (under an older id)."""

        @in_loop
        async def test() -> None:
            async with LocalCluster(cores=3) as cluster:
                # A cluster is ready before its followers know each other.
                await until(
                    lambda: all(len(node._part.engine.links) == 2 for node in cluster.nodes)
                )
                for node in cluster.nodes:
                    for other in cluster.nodes:
                        node._peering.hub.stop_dialling(other.name)
                await asyncio.sleep(0)
                for node in cluster.nodes:
                    await node.kv.put(node.name.encode(), b"v")
                    part = node._part
                    assert isinstance(part, CorePart)
                    assert [link.up for link in part.engine.links.values()] == [True, True]

        test()
