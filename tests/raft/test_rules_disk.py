"""Rules 7 to 12: votes, snapshots, and that nothing is promised before it is durable.

A whole engine is driven message by message, with its disk in the test's hands; what is pure is
tested in its module's own file. test_stock_canaries.py shows what stock PySyncObj does instead.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable

import pytest

from raftkv.config import Limits, NodeConfig
from raftkv.errors import DamagedLog, DiskFailed, MembershipRefused
from raftkv.raft import wire
from raftkv.raft.changing import add_learner, remove
from raftkv.raft.identity import DataDirectory
from raftkv.raft.membership import name_of
from raftkv.raft.recovery import recover
from raftkv.raft.snapshot import SnapshotStore
from raftkv.raft.wal import Wal
from raftkv.testing.disk import SimDisk
from raftkv.testing.patching import replaced
from tests.fakes import FakeRuntime
from tests.raft.harness import (
    BEAT_S,
    DIRECTORY,
    MAX_S,
    MIN_S,
    A,
    B,
    Bench,
    C,
    D,
    E,
    accepted,
    append,
    batch,
    chunk,
    grant,
    sync,
    write_log,
)
from tests.raft.rule_tools import THREE, snapshot_file


class TestRule07Install:
    """An install moves a node forward only, and keeps what it may keep."""

    LOG = tuple((1, batch(str(i))) for i in range(3, 11))  # entries 3 to 10

    @staticmethod
    def whole_chunk(index: int, term: int) -> wire.SnapshotChunk:
        name, whole = snapshot_file(index, term, [b"state", b"installed"])
        return chunk(2, whole, whole, 0, index=index, snapshot_term=term, name=name)

    def test_a_snapshot_of_what_is_committed_is_only_acknowledged(self) -> None:
        bench = Bench(B, log=self.LOG)
        bench.deliver(A, append(1, 10, 1, commit=8))
        state = list(bench.application.state)
        (reply,) = bench.deliver(C, self.whole_chunk(8, 1))
        assert (reply.index, reply.done) == (8, True)
        assert bench.application.restored == []
        assert bench.application.state == state
        assert (bench.wal.last_index, bench.engine.commit, bench.engine.applied) == (10, 8, 8)

    def test_a_matching_tail_is_kept(self) -> None:
        bench = Bench(B, log=self.LOG)
        bench.deliver(C, self.whole_chunk(8, 1))
        assert bench.application.state == [b"installed"]
        assert (bench.wal.last_index, bench.engine.commit, bench.engine.applied) == (10, 8, 8)
        bench.deliver(C, append(2, 10, 1, commit=10))
        assert bench.application.state == [b"installed", b"9", b"10"]

    def test_a_contradicting_log_goes(self) -> None:
        bench = Bench(B, log=self.LOG)
        bench.deliver(C, self.whole_chunk(8, 2))
        assert (bench.wal.base_index, bench.wal.base_term, bench.wal.last_index) == (8, 2, 8)
        assert bench.engine.configuration == THREE

    def test_it_is_acknowledged_when_the_logs_new_base_is_durable(self) -> None:
        bench = Bench(B)
        message = self.whole_chunk(50, 2)
        bench.receive(C, message)
        while bench.application.restored == []:
            assert bench.take(C, wire.SnapshotReply) == []
            if bench.runtime.disk:
                bench.runtime.finish_disk()
            else:
                bench.runtime.finish_bulk()
        assert bench.take(C, wire.SnapshotReply) == [], "the base is still on its way to the disk"
        bench.runtime.finish_disk()
        (reply,) = bench.take(C, wire.SnapshotReply)
        assert (reply.index, reply.done) == (50, True)

    def test_a_chunk_that_was_not_asked_for_changes_nothing(self) -> None:
        bench = Bench(B)
        name, whole = snapshot_file(50, 2, [b"state", b"x"])

        def part(start: int, end: int) -> wire.SnapshotChunk:
            return chunk(2, whole[start:end], whole, start, index=50, snapshot_term=2, name=name)

        wanted = [
            bench.deliver(C, part(*bounds))[-1].offset
            for bounds in ((0, 30), (0, 30), (60, 90), (30, 60))
        ]
        assert wanted == [30, 30, 30, 60]
        (reply,) = bench.deliver(C, part(60, len(whole)))
        assert reply.done
        assert bench.application.state == [b"x"]


class TestRule08NoSerializerHooks:
    def test_compaction_never_touches_the_stock_serializer(self) -> None:
        bench = Bench(A, voters=[A], limits=Limits(snapshot_log_entries=3, log_tail_entries=1))

        class Bomb:
            def __getattr__(self, name: str) -> object:
                raise AssertionError(f"the stock serializer's {name} was used")

        bench.engine._SyncObj__serializer = Bomb()
        bench.engine.forceLogCompaction()
        bench.elect()
        for number in range(10):
            assert bench.engine.propose([b"%d" % number])
            bench.runtime.settle()
        assert bench.wal.base_index > 1, "nothing was compacted: the test shows nothing"

    def test_the_last_good_snapshot_stays_until_the_next_is_complete(self) -> None:
        bench = Bench(A, voters=[A], limits=Limits(snapshot_log_entries=3, log_tail_entries=1))
        bench.elect()
        while bench.recovered.store.latest() is None:
            bench.engine.propose([b"x"])
            bench.runtime.settle()
        good = bench.recovered.store.latest()
        assert good is not None
        bench.engine.snapshotting.begin()
        bench.runtime.run()
        while bench.runtime.bulk:
            assert bench.disk.exists(good.path)
            bench.runtime.finish_bulk()
        newest = bench.recovered.store.latest()
        assert newest is not None
        assert newest.meta.index >= good.meta.index

    @pytest.mark.parametrize("at", ["write", "sync"])
    def test_a_failing_disk_under_a_snapshot_stops_the_node_and_keeps_the_old_one(
        self, at: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bench = Bench(A, voters=[A])
        bench.lead()
        bench.engine.snapshotting.begin()
        bench.runtime.settle()
        good = bench.recovered.store.latest()
        assert good is not None
        bench.engine.propose([b"x"])
        bench.runtime.settle()
        bench.engine.snapshotting.begin()

        def broken(*_: object) -> None:
            raise OSError(errno.EIO, "input/output error")

        monkeypatch.setattr(bench.disk, at, broken)
        bench.runtime.settle()
        assert [type(fault) for fault in bench.application.faults] == [DiskFailed]
        assert SnapshotStore(bench.disk, f"{DIRECTORY}/snapshots").latest() is not None


class TestRule09VotesAreASet:
    def test_the_same_voter_counts_once(self) -> None:
        bench = Bench(A, voters=(A, B, C, D, E))
        term = bench.ask_votes()
        bench.runtime.settle()
        request = bench.take(B, wire.Vote)[-1]
        assert not request.pre_vote
        # In reads of their own: of what waits together the newest is kept.
        for _ in range(3):
            bench.receive(B, grant(request, term))
        assert bench.engine.leading is None
        bench.receive(C, grant(request, term))
        assert bench.engine.leading is not None

    def test_a_stranger_counts_nothing(self) -> None:
        bench = Bench(A)
        term = bench.ask_votes()
        bench.runtime.settle()
        request = bench.take(B, wire.Vote)[-1]
        bench.receive("z-1", grant(request, term))
        assert bench.engine.leading is None

    def test_grants_of_an_earlier_attempt_count_nothing(self) -> None:
        bench = Bench(A)
        bench.runtime.advance(MAX_S)
        early = bench.take(B, wire.Vote)[0]
        bench.runtime.advance(MAX_S)
        late = bench.take(B, wire.Vote)[-1]
        assert early.attempt < late.attempt
        bench.receive(B, grant(early, 1))
        assert bench.engine.term == 1
        bench.receive(B, grant(late, 1))
        assert bench.engine.term == 2

    @pytest.mark.parametrize("me", [D, E])
    def test_a_learner_and_a_removed_node_never_campaign(self, me: str) -> None:
        bench = Bench(me, voters=(A, B, C), learners=(D,))
        bench.runtime.advance(10 * MAX_S)
        assert bench.engine.term == 1
        assert [bench.take(peer, wire.Vote) for peer in (A, B, C)] == [[], [], []]
        bench.receive(A, append(1, 2, 1))
        bench.receive(A, wire.TimeoutNow(1))
        assert bench.engine.role == 0, "a transfer makes no voter of it"


class TestRule10AWipedNodeIsANewNode:
    """Under its old id it would have forgotten votes and acknowledgements."""

    @staticmethod
    def directory(world: FakeRuntime) -> DataDirectory:
        config = NodeConfig(
            name="c",
            dir="data",
            peer_address="127.0.0.1:1",
            cores={"c": "127.0.0.1:1"},
            plugins=(),
        )
        return DataDirectory(config, world)  # type: ignore[arg-type]

    def test_its_raft_id_is_its_name_and_what_was_minted_with_the_directory(self) -> None:
        world = FakeRuntime()
        first = self.directory(world).identity.raft_id
        assert name_of(first) == "c"
        wiped = self.directory(FakeRuntime(seed=2)).identity.raft_id
        assert name_of(wiped) == "c"
        assert wiped != first

    def test_a_member_that_lost_only_its_log_does_not_start(self) -> None:
        with pytest.raises(DamagedLog, match="log is gone"):
            recover(SimDisk(random.Random(1)), "data", Limits(), fsync=True, belongs=True)

    def test_what_a_wiped_node_says_counts_for_nothing(self) -> None:
        """Its old id is a voter; it speaks under its new one."""
        bench = Bench(A)
        term = bench.lead()
        bench.engine.propose([b"x"])
        bench.runtime.settle()
        bench.receive("c-2", accepted(term, bench.wal.last_index))
        assert bench.engine.commit == bench.wal.last_index - 1
        term = Bench(A).ask_votes()
        candidate = Bench(A)
        candidate.ask_votes()
        candidate.runtime.settle()
        request = candidate.take(C, wire.Vote)[-1]
        candidate.receive("c-2", grant(request, term))
        assert candidate.engine.leading is None

    def test_it_joins_as_a_copy_and_only_after_the_old_id_was_removed(self) -> None:
        with pytest.raises(MembershipRefused, match="remove it first"):
            add_learner(THREE, "c-2")
        joined = add_learner(remove(THREE, C), "c-2")
        assert (joined.voters, joined.learners) == ((A, B), ("c-2",))
        assert not joined.majority(["c-2", A])


class TestRule11TornOrDamaged:
    """What was never acknowledged is cut; a bit that fell over in what was stops the node."""

    @staticmethod
    def log(batches: int) -> tuple[bytes, list[int]]:
        """The file of a log, and where each of its batches ends."""
        disk = SimDisk(random.Random(3))
        disk.makedirs("wal")
        wal = Wal.open(disk, "wal")
        stops = []
        for index in range(2, 2 + batches):
            wal.append(b"\x00" + bytes([index]) * 700, index, 1)
            sync(wal)
            data = disk.open("wal/0000000000000001.wal", "r").pread(0, 1 << 20)
            stops.append(len(data))
        return data, stops

    @staticmethod
    def reopened(data: bytes) -> Wal:
        disk = SimDisk(random.Random(4))
        disk.makedirs("wal")
        file = disk.open("wal/0000000000000001.wal", "w")
        file.write(data)
        file.datasync()
        disk.sync_dir("wal")
        return Wal.open(disk, "wal")

    def test_a_write_that_ended_half_way_is_cut(self) -> None:
        data, stops = self.log(3)
        for size in range(stops[1], stops[2], 97):
            assert self.reopened(data[:size]).last_index == 3

    def test_sectors_that_were_never_written_are_cut(self) -> None:
        data, stops = self.log(3)
        sector = (stops[1] // 512 + 1) * 512
        torn = (data[:sector] + bytes(512) + data[sector + 512 :])[: len(data)]
        assert self.reopened(torn).last_index == 3

    @pytest.mark.parametrize("where", [0.05, 0.4, 0.7, 0.999])
    def test_a_flipped_bit_in_what_was_synced_is_never_cut(self, where: float) -> None:
        data, _ = self.log(3)
        place = int(len(data) * where)
        flipped = data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]
        with pytest.raises(DamagedLog):
            self.reopened(flipped)

    def test_what_was_recovered_is_synced_before_the_first_message(self) -> None:
        """After a crash of the process it may be in the page cache only."""
        disk = SimDisk(random.Random(5))
        write_log(disk, THREE, [(1, batch("x"))], 1)
        before = disk.syncs_total
        bench = Bench(B, disk=disk, start=False)
        assert disk.syncs_total > before
        assert bench.wal.durable_index == 3
        assert bench.take(A) == []
        disk.crash()
        assert Bench(B, disk=disk).wal.last_index == 3


class TestRule12GroupCommit:
    """Nothing promises what the disk does not hold yet."""

    def test_nothing_happens_before_the_start(self) -> None:
        """Peers may dial while plugins are still starting: their messages wait."""
        bench = Bench(B, start=False)
        bench.runtime.advance(10 * MAX_S)
        bench.receive(C, wire.Vote(2, 1, 2, 1, False, False))
        assert (bench.engine.term, bench.take(A), bench.take(C)) == (1, [], [])
        bench.engine.start()
        assert bench.deliver(C) == [wire.VoteReply(1, 2, 1, False, False)], "rule 16: no vote yet"

    def test_a_single_core_commits_only_what_its_disk_holds(self) -> None:
        bench = Bench(A, voters=[A])
        bench.runtime.advance(MAX_S)
        assert bench.engine.leading is not None
        assert (bench.wal.last_index, bench.engine.commit) == (3, 1)
        bench.engine.propose([b"x"])
        bench.runtime.run()
        assert bench.engine.commit == 1, "the sync of the no-op is still under way"
        bench.runtime.finish_disk()
        assert bench.engine.commit == 3
        assert bench.application.state == []
        bench.runtime.finish_disk()
        assert bench.application.state == [b"x"]

    def test_a_lone_voters_first_appends_wait_for_its_term(self) -> None:
        """Else a learner could hold entries of a term that a crash lets the leader lead again."""
        bench = Bench(A, voters=[A], learners=[B])
        bench.runtime.advance(MAX_S)
        assert bench.engine.leading is not None
        assert bench.take(B) == []
        bench.runtime.finish_disk()
        assert [len(m.entries) for m in bench.take(B, wire.Append)][:1] == [1]
        bench.runtime.settle()
        bench.engine.propose([b"x"])
        bench.receive(B, accepted(2, 3))
        assert [len(m.entries) for m in bench.take(B, wire.Append)][-1:] == [1]

    def test_a_followers_acknowledgement_waits_for_its_disk(self) -> None:
        bench = Bench(B)
        bench.receive(A, append(1, 2, 1, [(1, batch("x"))], commit=2))
        assert bench.wal.last_index == 3
        assert bench.take(A) == []
        bench.runtime.finish_disk()
        assert bench.take(A) == [accepted(1, 3)]
        assert bench.disk.syncs_total

    def test_an_acknowledgement_that_still_waits_ends_with_its_term(self) -> None:
        """Two leaders' messages are handled in one tick; the second cuts off what A was to hear.

        A's acknowledgement would have left without the disk ever having held its entry 4.
        """
        bench = Bench(B)
        bench.receive(A, append(1, 2, 1, [(1, batch("x"))], commit=2))
        bench.receive(A, append(1, 3, 1, [(1, batch("y"))]))
        bench.receive(C, append(2, 3, 1, [(2, batch("z"))]))
        assert bench.wal.last_index == 3, "the disk works: the last two wait"
        bench.runtime.settle()
        assert [entry.term for entry in bench.wal.entries(3)] == [1, 2]
        assert bench.take(A) == [accepted(1, 3)]
        assert bench.take(C) == [accepted(2, 4)]

    def test_a_vote_waits_for_its_disk(self) -> None:
        bench = Bench(B)
        bench.runtime.advance(MIN_S)
        bench.receive(C, wire.Vote(2, 1, 2, 1, False, False))
        assert (bench.engine.term, bench.engine.vote) == (2, C)
        assert bench.take(C) == []
        bench.runtime.finish_disk()
        assert bench.take(C) == [wire.VoteReply(2, 2, 1, False, True)]

    def test_a_request_for_votes_waits_for_its_term_and_own_vote(self) -> None:
        bench = Bench(A)
        bench.ask_votes()
        assert [m for m in bench.take(C, wire.Vote) if not m.pre_vote] == []
        bench.runtime.finish_disk()
        assert [m.pre_vote for m in bench.take(C, wire.Vote)] == [False]

    def test_appends_leave_beside_the_sync_and_count_only_after_it(self) -> None:
        bench = Bench(A)
        term = bench.lead()
        last = bench.wal.last_index
        bench.engine.propose([b"x"])
        bench.runtime.run()
        assert [len(m.entries) for m in bench.take(B, wire.Append)] == [1]
        bench.receive(B, accepted(term, last + 1))
        assert bench.engine.commit == last, "messages wait while the disk works"
        bench.runtime.finish_disk()
        assert bench.engine.commit == last + 1

    def test_a_majority_without_the_leaders_own_disk_commits_too(self) -> None:
        """The leader counts itself by its disk; the others may be a majority without it."""
        bench = Bench(A)
        term = bench.lead()
        last = bench.wal.last_index
        bench.engine.propose([b"x"])
        bench.runtime.run()
        bench.receive(B, accepted(term, last + 1))
        bench.receive(C, accepted(term, last + 1))
        bench.runtime.finish_disk()
        assert bench.engine.commit == last + 1

    def test_a_failed_sync_discards_what_was_held_and_stops_the_node(self) -> None:
        bench = Bench(B)
        bench.receive(A, append(1, 2, 1, [(1, batch("x"))], commit=2))
        bench.runtime.finish_disk(OSError(errno.EIO, "input/output error"))
        assert [type(fault) for fault in bench.application.faults] == [DiskFailed]
        assert "Check the disk and replace it if it is bad" in str(bench.application.faults[0])
        bench.runtime.advance(10.0)
        assert bench.take(A) == []
        assert bench.engine.stopped
        assert not bench.engine.propose([b"y"])

    def test_only_heartbeats_leave_during_a_sync_and_a_hung_one_ends_them(self) -> None:
        """Rule 26 belongs here: a dead disk must not stay in office."""
        bench = Bench(A)
        bench.lead()
        bench.engine.propose([b"x"])
        bench.runtime.run()
        bench.take(B)
        bench.runtime.advance(MIN_S)
        beats = bench.take(B)
        assert len(beats) >= 5
        assert all(isinstance(m, wire.Append) and not m.entries for m in beats)
        bench.runtime.advance(2 * BEAT_S)
        bench.take(B)
        bench.runtime.advance(5 * MAX_S)
        assert bench.take(B) == []

    def test_a_follower_campaigns_although_its_deadline_passed_during_a_sync(self) -> None:
        bench = Bench(B)
        bench.receive(A, append(1, 2, 1, [(1, batch("x"))], commit=2))
        bench.runtime.advance(2 * MAX_S)
        bench.runtime.finish_disk()
        bench.runtime.advance(2 * MAX_S)
        assert [m.pre_vote for m in bench.take(A, wire.Vote)][:1] == [True]

    def test_a_disk_that_fails_while_a_snapshot_arrives_stops_the_node(self) -> None:
        bench = Bench(B)
        name, whole = snapshot_file(50, 2, [b"state"])
        bench.disk.fail_syncs = True
        piece = chunk(2, whole, whole, 0, index=50, snapshot_term=2, name=name)
        assert bench.deliver(C, piece) == []
        assert [type(fault) for fault in bench.application.faults] == [DiskFailed]


class TestWhatAStartReadsIsOnTheDisk:
    """A process that dies may leave a name unsynced; the next one must not act on it before."""

    @pytest.mark.parametrize("seed", range(10))
    def test_the_cluster_of_a_directory_is(self, seed: int) -> None:
        world = FakeRuntime(seed=seed)
        open_directory = TestRule10AWipedNodeIsANewNode.directory
        directory, known = open_directory(world), "58e0899393d7273a"
        self.dies_before_the_directory_is_synced(world.files, lambda: directory.join(known))
        directory.close()
        assert open_directory(world).identity.cluster_id == known
        world.files.crash()
        assert open_directory(world).identity.cluster_id == known

    @pytest.mark.parametrize("seed", range(10))
    def test_the_newest_snapshot_is(self, seed: int) -> None:
        disk = SimDisk(random.Random(seed))
        SnapshotStore(disk, "data")
        disk.sync_dir("data")
        file = disk.open("data/0000000000000009-0000000000000002.snap", "w")
        file.write(b"content")
        file.datasync()
        known = SnapshotStore(disk, "data")._keys()
        assert len(known) == 1
        disk.crash()
        assert SnapshotStore(disk, "data")._keys() == known

    @staticmethod
    def dies_before_the_directory_is_synced(disk: SimDisk, act: Callable[[], None]) -> None:
        def dies(path: str) -> None:
            raise OSError(errno.EIO, "the process dies", path)

        with replaced(SimDisk, "sync_dir", lambda disk, path: dies(path)):
            with pytest.raises(OSError, match="the process dies"):
                act()
