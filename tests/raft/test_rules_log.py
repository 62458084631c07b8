"""Rules 1 to 6: what a follower does to its log, and who is a member.

A whole engine is driven message by message, with its disk in the test's hands; what is pure is
tested in its module's own file. test_stock_canaries.py shows what stock PySyncObj does instead.
"""

from __future__ import annotations

import pytest

from raftkv.errors import DamagedLog, Diverged
from raftkv.raft import wire
from raftkv.raft.changing import remove
from raftkv.raft.membership import Configuration, decode
from raftkv.raft.wal import Wal
from tests.raft.harness import (
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
    configuration_entry,
    grant,
    sync,
)
from tests.raft.rule_tools import THREE, disk_with_snapshot, snapshot_file


class TestRule01CommitOnlyWhatIsVerified:
    """A message that verifies nothing of the log moves no commit index."""

    LOG = ((1, batch("x")), (1, batch("stale")))  # entries 3 and 4

    def test_a_heartbeat_from_before_the_tail_commits_only_its_own_prefix(self) -> None:
        bench = Bench(B, log=self.LOG)
        bench.receive(C, append(2, 3, 1, commit=2000))
        assert bench.engine.commit == 3

    def test_a_heartbeat_that_verifies_nothing_commits_nothing(self) -> None:
        bench = Bench(B, log=self.LOG)
        replies = bench.deliver(C, append(2, 0, 0, commit=2000, round_number=1))
        assert bench.engine.commit == 1
        assert replies == [accepted(2, 0, 1)]

    def test_a_chunk_of_a_snapshot_commits_nothing_before_the_install(self) -> None:
        bench = Bench(B, log=self.LOG)
        name, whole = snapshot_file(50, 2, [b"state"])
        bench.deliver(C, chunk(2, whole[:20], whole, 0, index=50, snapshot_term=2, name=name))
        assert (bench.engine.commit, bench.engine.applied) == (1, 1)
        assert bench.application.state == []

    def test_a_rejected_append_commits_nothing(self) -> None:
        bench = Bench(B, log=self.LOG)
        bench.receive(C, append(2, 4, 2, [(2, batch("new"))], commit=5))
        assert bench.engine.commit == 1


class TestRule02Append:
    """Matching entries stay; the acknowledgement is what the message verified."""

    LOG = tuple((1, batch(str(i))) for i in range(3, 7))  # entries 3 to 6

    def test_a_repeated_short_message_cuts_nothing(self) -> None:
        bench = Bench(B, log=self.LOG)
        bench.deliver(A, append(1, 6, 1, commit=6))
        assert bench.engine.commit == 6
        replies = bench.deliver(A, append(1, 2, 1, [self.LOG[0]], commit=3))
        assert bench.wal.last_index == 6
        assert bench.engine.commit == 6
        assert replies == [accepted(1, 3)], "acknowledged is prev + len, never the log's end"

    def test_the_first_conflict_cuts_and_nothing_before_it(self) -> None:
        bench = Bench(B, log=self.LOG)
        entries = [self.LOG[0], (2, batch("other")), (2, batch("more"))]
        replies = bench.deliver(C, append(2, 2, 1, entries, commit=2))
        assert [(i, t) for i, t, _ in bench.log()[1:]] == [(3, 1), (4, 2), (5, 2)]
        assert replies == [accepted(2, 5)]

    @pytest.mark.parametrize(
        "message",
        [append(2, 3, 1, [(2, batch("evil"))]), append(2, 4, 2, []), append(2, 2, 2, [])],
    )
    def test_a_conflict_with_what_is_committed_stops_the_node(self, message: wire.Append) -> None:
        bench = Bench(B, log=self.LOG)
        bench.deliver(A, append(1, 6, 1, commit=6))
        assert bench.deliver(C, message) == []
        assert [type(fault) for fault in bench.application.faults] == [Diverged]
        assert bench.wal.last_index == 6

    def test_the_configuration_falls_with_the_entries_that_are_cut(self) -> None:
        more = Configuration((A, B, C, D))
        bench = Bench(B, log=[(1, configuration_entry(more))])
        assert bench.engine.configuration == more
        bench.deliver(C, append(2, 2, 1, [(2, batch("instead"))], commit=2))
        assert bench.engine.configuration == THREE
        assert {node.id for node in bench.engine.otherNodes} == {A, C}


class TestRule04MembershipComesFromTheLog:
    def test_a_restarted_node_counts_votes_in_the_configuration_of_its_log(self) -> None:
        five = Configuration((A, B, C, D, E))
        bench = Bench(A, log=[(1, configuration_entry(five))], connected=(B, C))
        assert bench.engine.configuration == five
        bench.runtime.advance(MAX_S)
        bench.runtime.settle()
        request = bench.take(B, wire.Vote)[-1]
        bench.receive(B, grant(request, 1))
        assert bench.engine.role == 0, "two of five are no majority"
        bench.receive(C, grant(request, 1))
        assert bench.engine.role == 1

    def test_applying_a_configuration_changes_nothing(self) -> None:
        four = Configuration((A, B, C, D))
        log = [(1, configuration_entry(four)), (1, configuration_entry(THREE))]
        bench = Bench(B, log=log)
        assert bench.engine.configuration == THREE
        bench.deliver(A, append(1, 4, 1, commit=3))
        assert bench.engine.applied == 3
        assert bench.engine.configuration == THREE, "applied the older one of the two"


class TestRule05EntriesCarryTheWholeConfiguration:
    FOUR = Configuration((A, B, C, D))

    def test_a_late_apply_brings_nobody_back(self) -> None:
        """An add and a remove are in the log; applying the add must not add."""
        log = [(1, configuration_entry(self.FOUR)), (1, configuration_entry(THREE))]
        bench = Bench(B, log=log)
        bench.deliver(A, append(1, 4, 1, commit=3))
        assert bench.engine.applied == 3
        assert bench.engine.configuration == THREE

    def test_a_roll_back_of_a_change_of_nothing_removes_nobody(self) -> None:
        bench = Bench(B, log=[(1, configuration_entry(THREE))])
        bench.deliver(C, append(2, 2, 1, [(2, batch("instead"))]))
        assert bench.engine.configuration == THREE

    def test_truncation_pops_one_configuration_after_the_other(self) -> None:
        five = Configuration((A, B, C, D, E))
        log = [(1, configuration_entry(self.FOUR)), (2, configuration_entry(five))]
        bench = Bench(B, log=log, term=2)
        assert bench.engine.configuration == five
        bench.deliver(C, append(3, 3, 1, [(3, batch("x"))]))
        assert bench.engine.configuration == self.FOUR
        bench.deliver(C, append(4, 2, 1, [(4, batch("x"))]))
        assert bench.engine.configuration == THREE

    def test_a_snapshot_holds_the_configuration_at_its_own_index(self) -> None:
        bench = Bench(A)
        term = bench.lead()
        without = remove(bench.engine.configuration, C)
        bench.engine.change_configuration(without, force=False)
        bench.runtime.settle()
        assert bench.engine.configuration == without
        assert bench.engine.commit == 3
        bench.engine.snapshotting.begin()
        bench.runtime.settle()
        snapshot = bench.recovered.store.latest()
        assert snapshot is not None
        assert snapshot.meta.index == 3
        assert decode(snapshot.meta.configuration) == THREE, "not the one in force today"
        assert term == bench.engine.term


class TestRule06RecoveryKeepsTheLog:
    """What lies behind the snapshot stays; only a log without its last entry starts anew."""

    def test_a_kept_tail_survives_the_restart(self) -> None:
        log = [(1, batch(str(i))) for i in range(3, 11)]
        bench = Bench(A, disk=disk_with_snapshot(log, (5, 1)))
        assert bench.wal.first_index == 2, "entries in front of the snapshot were kept too"
        assert bench.wal.last_index == 10
        assert (bench.engine.applied, bench.engine.commit) == (5, 5)
        assert bench.application.restored == [5]

    def test_a_log_that_ends_in_front_of_the_snapshot_starts_anew_at_it(self) -> None:
        bench = Bench(A, disk=disk_with_snapshot([(1, batch("3"))], (50, 4)))
        assert (bench.wal.base_index, bench.wal.base_term, bench.wal.last_index) == (50, 4, 50)
        assert bench.engine.configuration == THREE
        assert bench.engine.term == 4

    def test_a_vote_of_an_older_term_is_none_of_the_snapshots_term(self) -> None:
        """A crash may come between the snapshot's rename and the term's own record."""
        disk = disk_with_snapshot([(1, batch("3"))], (50, 4))
        wal = Wal.open(disk, f"{DIRECTORY}/wal")
        wal.set_hard_state(3, C)
        sync(wal)
        wal.close()
        bench = Bench(A, disk=disk)
        assert (bench.engine.term, bench.engine.vote) == (4, None)
        bench.runtime.advance(MIN_S)
        (reply,) = bench.deliver(B, wire.Vote(4, 1, 50, 4, False, False))
        assert reply.granted

    def test_a_log_that_starts_behind_the_snapshot_is_damaged(self) -> None:
        disk = disk_with_snapshot([(1, batch(str(i))) for i in range(3, 11)], (5, 1))
        wal = Wal.open(disk, f"{DIRECTORY}/wal")
        wal.compact(8, 1)
        sync(wal)
        wal.close()
        with pytest.raises(DamagedLog, match="starts behind index 8"):
            Bench(A, disk=disk)

    def test_a_log_that_contradicts_the_snapshot_starts_anew_at_it(self) -> None:
        log = [(1, batch(str(i))) for i in range(3, 11)]
        bench = Bench(A, disk=disk_with_snapshot(log, (6, 3)))
        assert (bench.wal.base_index, bench.wal.last_index) == (6, 6)
