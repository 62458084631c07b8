"""A disk that is full for snapshots: the node goes on, within bounds, and comes back by itself."""

from __future__ import annotations

import errno

import pytest

from raftkv.config import Limits
from raftkv.raft import free_space, snapshotting, wire
from raftkv.raft.snapshot import SnapshotStore
from raftkv.runtime import Space
from raftkv.testing.disk import SPACE
from tests.raft.harness import DIRECTORY, A, B, Bench, C, accepted, append, batch, chunk
from tests.raft.rule_tools import snapshot_file

LIMITS = Limits(
    snapshot_log_entries=5,
    snapshot_log_bytes=1_000_000,
    log_tail_entries=1,
    disk_reserve_bytes=1_000,
    log_kept_bytes_max=1_000,
    snapshot_log_percent=0,
)
MIB = 1 << 20
PLENTY = Space(1_000 * MIB, 1_000 * MIB)


def alone(limits: Limits = LIMITS) -> Bench:
    bench = Bench(A, voters=[A], limits=limits)
    bench.lead()
    return bench


def put(bench: Bench, count: int = 1, command: bytes = b"x") -> int:
    """How many of so many commands were taken."""
    taken = 0
    for _ in range(count):
        taken += bench.engine.propose([command])
        bench.runtime.settle()
    return taken


def wait(bench: Bench, seconds: float) -> None:
    """Let time pass, the disk's threads keeping up."""
    until = bench.runtime.now + seconds
    while bench.runtime.now < until:
        bench.runtime.advance(min(0.25, until - bench.runtime.now))
        bench.runtime.settle()


def room_for_snapshots(bench: Bench, free_bytes: int) -> None:
    """Snapshots are on a volume of their own with this amount of free space."""
    small = Space(free_bytes, 1_000 * MIB)

    def space(path: str) -> Space:
        return small if "snapshots" in path else PLENTY

    bench.disk.space = space  # type: ignore[method-assign]


def temporaries(bench: Bench) -> list[str]:
    return [path for path in bench.disk.paths() if path.endswith(".tmp")]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_snapshot_without_room_is_tried_again_and_leaves_nothing(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quota: the volume has room, and a write fails all the same."""
    bench = alone()
    real = bench.disk.write

    def write(inode: object, data: bytes) -> None:
        if bench.disk._is_snapshot(inode):  # type: ignore[arg-type]
            raise OSError(number, "no room")
        real(inode, data)  # type: ignore[arg-type]

    monkeypatch.setattr(bench.disk, "write", write)
    assert put(bench, 6) == 6
    assert bench.application.faults == []
    assert bench.engine.snapshotting.space.alarm
    assert (bench.engine.counts.snapshots_failed, temporaries(bench)) == (1, [])
    put(bench, 6)
    assert bench.engine.counts.snapshots_failed == 1, "it waits before it tries again"
    wait(bench, 300.0)
    tries = bench.engine.counts.snapshots_failed
    steady = 300 / snapshotting.ROOM_RETRY_MAX_S
    assert steady - 2 <= tries <= steady + 6
    monkeypatch.setattr(bench.disk, "write", real)
    wait(bench, snapshotting.ROOM_RETRY_MAX_S + free_space.LOOK_S)
    assert bench.engine.counts.snapshots_written == 1, "also without a further entry"
    assert not bench.engine.snapshotting.space.alarm
    assert bench.wal.base_index > 5


def test_what_the_file_system_reports_late_leaves_nothing_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With delayed allocation, or over NFS, it is the sync that finds no room."""
    bench = alone()
    put(bench, 2)
    real = bench.disk.sync

    def sync(inode: object) -> None:
        if bench.disk._is_snapshot(inode):  # type: ignore[arg-type]
            raise OSError(errno.ENOSPC, "no room")
        real(inode)  # type: ignore[arg-type]

    monkeypatch.setattr(bench.disk, "sync", sync)
    put(bench, 4)
    assert bench.engine.counts.snapshots_failed == 1
    assert bench.application.faults == []
    assert temporaries(bench) == []


def test_no_snapshot_is_begun_that_would_take_the_reserve(caplog: pytest.LogCaptureFixture) -> None:
    bench = alone()
    seen = bench.engine.snapshotting
    put(bench, 6)
    assert bench.engine.counts.snapshots_written == 1
    known = seen.store.known
    assert known is not None
    bench.disk.fail_snapshots = True
    bench.disk.space_of_snapshots = Space(1_000, 1_000 * MIB)
    wait(bench, free_space.LOOK_S)
    assert seen.space.alarm
    assert "alarm DISK" in caplog.text
    put(bench, 12)
    assert bench.engine.counts.snapshots_written == 1
    assert bench.disk.snapshot_failures_total == 0, "not even begun"
    # A little more is not enough: it would come and go.
    need = seen.expected_bytes + seen.space.reserve_bytes
    bench.disk.space_of_snapshots = Space(need + 10, 1_000 * MIB)
    wait(bench, free_space.LOOK_S)
    assert seen.space.alarm
    bench.disk.fail_snapshots = False
    wait(bench, free_space.LOOK_S)
    assert not seen.space.alarm
    assert bench.engine.counts.snapshots_written == 2
    assert "has ended" in caplog.text


def test_the_reserve_is_a_small_part_of_a_small_volume() -> None:
    bench = alone(Limits())
    seen = bench.engine.snapshotting.space
    seen._judge(Space(50 * MIB, 64 * MIB), Space(50 * MIB, 64 * MIB), 0)
    assert not seen.alarm
    assert seen.reserve_bytes == 64 * MIB // free_space.RESERVE_PART


def test_the_log_kept_meanwhile_is_bounded_and_deletions_still_work() -> None:
    bench = alone()
    bench.disk.fail_snapshots = True
    taken = put(bench, 200, b"x" * 50)
    behind = bench.engine.snapshotting.log_bytes
    kept = bench.engine.snapshotting.log_kept_bytes_max
    assert kept == 2_000_000, "twice of what begins a snapshot, at least"
    assert taken == 200, behind
    limits = Limits(
        snapshot_log_entries=5,
        snapshot_log_bytes=1_000,
        log_tail_entries=1,
        log_kept_bytes_max=4_000,
        snapshot_log_percent=0,
    )
    bench = alone(limits)
    bench.disk.fail_snapshots = True
    taken = put(bench, 200, b"x" * 50)
    assert 10 < taken < 100
    behind = bench.engine.snapshotting.log_bytes
    assert 4_000 <= behind <= 4_400
    refused = bench.engine.counts.commands_refused
    assert refused == 200 - taken
    assert put(bench, 1, b"delete") == 1
    assert put(bench, 200, b"delete") < 100, "the reserve ends, too"
    assert bench.engine.snapshotting.log_bytes <= 5_400
    bench.disk.fail_snapshots = False
    wait(bench, snapshotting.ROOM_RETRY_MAX_S + free_space.LOOK_S)
    assert put(bench, 3, b"x" * 50) == 3


def test_a_leader_at_its_end_hands_leadership_over_but_not_all_the_time() -> None:
    bench = Bench(A, limits=LIMITS)
    term = bench.lead()
    offers = []

    def count() -> bool:
        offers.append(bench.runtime.now)
        return False

    bench.engine.hand_over = count  # type: ignore[method-assign]
    seen = bench.engine.snapshotting.space
    seen._judge(PLENTY, Space(499, 1_000 * MIB), bench.wal.written_bytes)
    assert (seen.alarm, seen.at_end, seen.full) == (True, True, False)
    seen._leave()
    seen._leave()
    assert len(offers) == 1
    bench.runtime.now += free_space.HAND_OVER_MIN_S
    seen._leave()
    bench.runtime.now += free_space.HAND_OVER_MIN_S
    seen._leave()
    assert len(offers) == 2, "each pause is longer"
    assert term == bench.engine.term


def test_what_the_log_has_grown_by_since_the_last_look_counts() -> None:
    bench = alone()
    seen = bench.engine.snapshotting.space
    seen._judge(PLENTY, Space(2_000, 1_000 * MIB), bench.wal.written_bytes)
    assert not seen.at_end
    assert put(bench, 100, b"x" * 50) < 100
    assert seen.left_bytes is not None
    assert 250 < seen.left_bytes < 500


def full_follower() -> Bench:
    bench = Bench(B, limits=LIMITS)
    bench.deliver(A, append(1, 2, 1, [(1, batch("x"))], commit=2))
    bench.disk.space = lambda path: Space(100, 1_000 * MIB)  # type: ignore[method-assign]
    bench.runtime.advance(free_space.LOOK_S)
    bench.runtime.settle()
    assert bench.engine.snapshotting.space.full
    return bench


def test_a_full_follower_takes_no_entries_and_stays_a_follower() -> None:
    bench = full_follower()
    last = bench.wal.last_index
    for number in range(40):
        replies = bench.deliver(
            A, append(1, last, 1, [(1, batch("y"))], commit=3, round_number=number + 1)
        )
        (reply,) = replies
        assert isinstance(reply, wire.AppendReply)
        assert (reply.accepted, reply.round, reply.term) == (False, number + 1, 1)
        bench.tick(0.1)
    assert bench.wal.last_index == last
    assert bench.engine.commit == 3, "what it holds is committed all the same"
    assert bench.engine.term == 1, "it has not campaigned"
    bench.disk.space = lambda path: PLENTY  # type: ignore[method-assign]
    bench.runtime.advance(free_space.LOOK_S)
    bench.runtime.settle()
    (reply,) = bench.deliver(A, append(1, last, 1, [(1, batch("y"))]))
    assert reply.accepted
    assert bench.wal.last_index == last + 1


def test_a_leader_keeps_offering_to_a_full_follower_once_a_heartbeat() -> None:
    """Its answer is a sign of life, no loss of what it had acknowledged and no demand for more."""
    bench = Bench(A)
    term = bench.lead()
    bench.engine.propose([b"y"])
    bench.runtime.settle()
    bench.receive(B, accepted(term, bench.wal.last_index))
    bench.disconnect(C)
    bench.connect(C)
    bench.runtime.settle()
    sent = 0
    for _ in range(50):
        offered = [m for m in bench.take(C, wire.Append) if m.entries]
        sent += len(offered)
        for message in offered:
            bench.receive(C, wire.AppendReply(term, False, 0, message.round, 0, 0))
        bench.receive(B, accepted(term, bench.wal.last_index))
        bench.tick(0.06)
    assert 20 <= sent <= 55
    assert bench.engine.leading is not None
    assert not bench.engine.leading._forgetful


def test_a_snapshot_that_arrives_without_room_for_it_is_taken_later() -> None:
    bench = Bench(B, limits=LIMITS)
    name, whole = snapshot_file(50, 2, [b"state", b"x" * 100])
    first = chunk(2, whole[:40], whole, 0, index=50, snapshot_term=2, name=name)
    second = chunk(2, whole[40:], whole, 40, index=50, snapshot_term=2, name=name)
    (reply,) = bench.deliver(C, first)
    assert reply.offset == 40
    bench.disk.fail_snapshots = True
    assert bench.deliver(C, second) == []
    assert bench.application.faults == []
    assert temporaries(bench) == []
    assert bench.engine.snapshotting.space.alarm
    bench.disk.fail_snapshots = False
    assert bench.deliver(C, second) == [], "not at once"
    wait(bench, snapshotting.ROOM_RETRY_MIN_S)
    (reply,) = bench.deliver(C, second)
    assert reply.offset == 0, "from the start: nothing of it was kept"
    (reply,) = bench.deliver(C, first)
    replies = bench.deliver(C, second)
    assert replies[-1].done
    assert not bench.engine.snapshotting.space.alarm
    assert SnapshotStore(bench.disk, f"{DIRECTORY}/snapshots").latest() is not None


def test_a_snapshot_that_would_take_the_reserve_is_not_received() -> None:
    bench = Bench(B, limits=LIMITS)
    seen = bench.engine.snapshotting.space
    name, whole = snapshot_file(50, 2, [b"state", b"x" * 5_000])
    first = chunk(2, whole[:40], whole, 0, index=50, snapshot_term=2, name=name)
    rest = chunk(2, whole[40:], whole, 40, index=50, snapshot_term=2, name=name)
    need = len(whole) + LIMITS.disk_reserve_bytes
    room_for_snapshots(bench, need - 1)
    assert bench.deliver(C, first) == []
    assert temporaries(bench) == []
    assert bench.application.faults == []
    assert seen.alarm
    # It lasts as long as the snapshot is missing and would not fit, and does not come and go.
    for _ in range(30):
        wait(bench, 1.0)
        assert bench.deliver(C, first) == []
        assert seen.alarm
    assert temporaries(bench) == []
    room_for_snapshots(bench, 2 * need)
    wait(bench, free_space.LOOK_S)
    assert seen.low is False
    wait(bench, snapshotting.ROOM_RETRY_MAX_S)
    bench.deliver(C, first)
    assert bench.deliver(C, rest)[-1].done
    assert not seen.alarm


def test_a_snapshot_whose_room_goes_while_it_is_received_is_given_up() -> None:
    bench = Bench(B, limits=LIMITS)
    name, whole = snapshot_file(50, 2, [b"state", b"x" * 5_000])
    room_for_snapshots(bench, 1_000 * MIB)
    first = chunk(2, whole[:40], whole, 0, index=50, snapshot_term=2, name=name)
    (reply,) = bench.deliver(C, first)
    assert reply.offset == 40
    room_for_snapshots(bench, LIMITS.disk_reserve_bytes + 100)
    second = chunk(2, whole[40:100], whole, 40, index=50, snapshot_term=2, name=name)
    assert bench.deliver(C, second) == []
    assert temporaries(bench) == []
    assert bench.engine.snapshotting.space.alarm


def test_an_alarm_about_a_snapshot_that_is_not_needed_any_more_ends() -> None:
    bench = Bench(B, limits=LIMITS)
    name, whole = snapshot_file(50, 2, [b"state"])
    bench.disk.fail_snapshots = True
    bench.disk.space_of_snapshots = SPACE
    bench.deliver(C, chunk(2, whole, whole, 0, index=50, snapshot_term=2, name=name))
    seen = bench.engine.snapshotting.space
    assert seen.alarm
    bench.runtime.advance(free_space.LOOK_S)
    bench.runtime.settle()
    assert not seen.alarm


def test_deletions_end_the_alarm_once_the_smaller_snapshot_fits() -> None:
    """How large the next snapshot is shows only when it is written."""
    bench = alone()
    seen = bench.engine.snapshotting
    put(bench, 6, b"x" * 5_000)
    wait(bench, 1.0)
    known = seen.store.known
    assert known is not None
    room_for_snapshots(bench, known.size_bytes * 9 // 10)
    wait(bench, free_space.LOOK_S)
    assert seen.space.alarm
    for _ in range(20):
        put(bench, 1, b"delete")
        bench.application.state.clear()
        wait(bench, 5.0)
    assert not seen.space.alarm
    assert bench.engine.counts.snapshots_written > 1


def test_a_snapshot_that_would_take_the_reserve_is_given_up() -> None:
    bench = alone()
    seen = bench.engine.snapshotting
    put(bench, 6, b"x" * 5_000)
    wait(bench, 1.0)
    written = bench.engine.counts.snapshots_written
    room_for_snapshots(bench, 20_000)
    wait(bench, free_space.LOOK_S)
    put(bench, 12, b"x" * 5_000)
    wait(bench, 60.0)
    assert seen.space.alarm
    assert bench.engine.counts.snapshots_written == written
    assert bench.engine.counts.snapshots_failed > 0
    assert temporaries(bench) == []
    assert bench.application.faults == []


def test_commands_that_were_taken_beside_others_may_not_be_called_not_applied() -> None:
    bench = alone()
    seen = bench.engine.snapshotting.space
    seen._judge(PLENTY, Space(499, 1_000 * MIB), bench.wal.written_bytes)
    assert seen.at_end
    assert not seen.full
    assert not bench.engine.propose([b"x"])
    assert bench.engine.propose([b"delete", b"x"])
    bench.runtime.settle()
    assert [body for body in bench.application.state if b"delete" in body] == [b"delete"]
