"""Feeds of replicants: what the log keeps for them, what memory they take, who is given up."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest

from raftkv.config import Limits
from raftkv.failure_detector import FailureDetector, Observed, Suspect
from raftkv.presence import Presences
from raftkv.raft import wire
from raftkv.raft.membership import EMPTY, Configuration, decode
from raftkv.replicant import upstream
from raftkv.replicant.upstream import Feeds
from raftkv.state import Member
from tests.raft.harness import A, Bench

SMALL = Limits(snapshot_log_entries=10, log_tail_entries=2)


class FollowLink:
    """The link of a replicant, which takes what it is sent as told."""

    def __init__(self, name: str) -> None:
        self.peer_id = f"{name}-aa"
        self.peer_name = name
        self.up = True
        self.unsent_bytes = 0
        self.snapshots: list[int] = []
        self.configurations: list[wire.FeedConfiguration] = []
        self.frames: list[bytes] = []
        self.feeds: Feeds | None = None

    def send(self, message: Any) -> None:
        if isinstance(message, wire.FeedConfiguration):
            self.configurations.append(message)
        if isinstance(message, wire.FeedSnapshot) and message.last:
            self.snapshots.append(message.index)

    def send_frame(self, frame: bytes) -> None:
        self.frames.append(frame)

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        self.up = False
        assert self.feeds is not None
        self.feeds.link_down(self)  # type: ignore[arg-type]


class Core:
    """A core that leads alone, is written to, and feeds replicants."""

    def __init__(self, limits: Limits = SMALL) -> None:
        self.bench = Bench(A, voters=(A,), limits=limits)
        self.bench.elect()
        self.feeds = Feeds(self.bench.engine)
        self.bench.engine.snapshotting.fed = self.feeds.in_transit
        self.write(30)

    @property
    def commit(self) -> int:
        return self.bench.engine.commit

    def write(self, count: int, size: int = 1) -> None:
        for _ in range(count):
            self.bench.engine.propose([bytes(size)])
            self.bench.runtime.settle()
        self.feeds.progressed()
        self.bench.runtime.settle()

    def follow(self, link: FollowLink, index: int, term: int) -> None:
        link.feeds = self.feeds
        given: Any = link
        self.feeds.link_up(given)
        self.feeds.on_follow(given, wire.Follow(index, term))

    def progressed(self, link: FollowLink, index: int) -> None:
        self.feeds.on_progressed(link, wire.Progressed(index))  # type: ignore[arg-type]


def test_the_log_keeps_what_lies_behind_a_snapshot_on_its_way() -> None:
    """Else a replicant of a core that is written to fast gets snapshots only."""
    core = Core()
    assert core.bench.wal.base_index > 2
    link = FollowLink("r")
    core.follow(link, 1, 0)
    core.bench.runtime.advance(0)
    for _ in range(30):  # the core writes snapshots of its own meanwhile
        core.bench.runtime.advance(0.01)
        core.write(10)
    (index,) = link.snapshots
    assert core.bench.wal.base_index <= index
    core.progressed(link, index)
    assert link.frames, "what came behind it is sent"
    core.progressed(link, core.commit)
    core.write(30)
    assert core.bench.wal.base_index > index, "nothing is kept any more"
    assert len(link.snapshots) == 1


def test_the_log_waits_for_nobody_who_takes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    core = Core()
    link = FollowLink("r")
    link.unsent_bytes = core.bench.limits.snapshot_inflight_bytes_max + 3
    core.follow(link, 1, 0)
    core.bench.runtime.advance(0.1)
    index = core.feeds.in_transit()[0]
    for _ in range(2):
        # As long as it takes a little it is waited for.
        core.bench.runtime.advance(upstream.SNAPSHOT_STALL_S - 1)
        link.unsent_bytes -= 1
        core.bench.runtime.advance(0.1)
        assert core.feeds.in_transit() == [index]
    core.bench.runtime.advance(upstream.SNAPSHOT_STALL_S + 1)
    assert not link.up
    assert core.feeds.in_transit() == []
    assert "r takes nothing of a snapshot" in caplog.text
    core.write(30)
    assert core.bench.wal.base_index > index


def test_a_snapshot_that_is_never_reported_as_installed_keeps_nothing_for_ever() -> None:
    core = Core()
    link = FollowLink("r")
    core.follow(link, 1, 0)
    core.bench.runtime.advance(1)
    (index,) = link.snapshots
    core.write(30)
    assert core.bench.wal.base_index <= index
    core.bench.runtime.advance(upstream.SNAPSHOT_STALL_S + 1)
    core.write(30)
    assert core.bench.wal.base_index > index


def test_frames_of_one_that_lags_are_not_kept() -> None:
    core = Core(Limits())
    link, second = FollowLink("r"), FollowLink("s")
    core.follow(link, 1, 0)
    core.follow(second, core.commit, core.bench.engine.term)
    core.write(20, size=200_000)
    core.progressed(link, core.commit)
    core.bench.runtime.advance(1)
    assert len(link.frames) > 5
    assert sum(map(len, core.feeds._frames.values())) <= 2 * upstream.MESSAGE_BYTES_MAX
    # Those at the head share one.
    core.progressed(second, core.commit)
    core.write(1)
    assert link.frames[-1] is second.frames[-1]


def blocked(core: Core, name: str, unsent_bytes: int = 1) -> FollowLink:
    """A replicant that needs a snapshot and takes only its first chunk.

    `unsent_bytes`: what it has to take beyond the window until it gets more.
    """
    link = FollowLink(name)
    link.unsent_bytes = core.bench.limits.snapshot_inflight_bytes_max + unsent_bytes
    core.follow(link, 1, 0)
    core.bench.runtime.advance(0.1)
    return link


def test_snapshots_for_replicants_are_sent_a_few_at_once_and_in_order() -> None:
    """Every one under way costs each command that is applied meanwhile."""
    limits = Limits(snapshot_log_entries=10, log_tail_entries=2, replicant_snapshots_max=2)
    core = Core(limits)
    links = [blocked(core, f"r{number}") for number in range(6)]
    assert (core.feeds.snapshots_sending, core.feeds.snapshots_waiting) == (2, 4)
    assert len(core.feeds.in_transit()) == 2, "who waits holds up nothing"
    done: list[FollowLink] = []
    links[3].close()  # it has gone before its turn came
    for link in (each for each in links if each.up):
        link.unsent_bytes = 0
        core.bench.runtime.advance(0.1)
        assert len(link.snapshots) == 1
        done.append(link)
        assert core.feeds.snapshots_sending == min(2, 5 - len(done))
    assert links[3].snapshots == []
    assert core.feeds.snapshots_waiting == 0


def test_a_replicant_that_is_cut_off_or_goes_makes_room_for_the_next() -> None:
    limits = Limits(snapshot_log_entries=10, log_tail_entries=2, replicant_snapshots_max=1)
    core = Core(limits)
    first, second, third = (blocked(core, f"r{number}") for number in range(3))
    third.unsent_bytes = 0
    core.bench.runtime.advance(upstream.SNAPSHOT_STALL_S + 1)
    assert not first.up, "it takes nothing"
    second.close()
    core.bench.runtime.advance(1)
    (index,) = third.snapshots
    assert index == core.commit, "the state as it is when its turn has come"
    assert (core.feeds.snapshots_sending, core.feeds.snapshots_waiting) == (0, 0)


def test_a_replicant_that_takes_a_snapshot_too_slowly_loses_its_turn_to_one_that_waits() -> None:
    limits = Limits(snapshot_log_entries=10, log_tail_entries=2, replicant_snapshots_max=1)
    core = Core(limits)
    slow = blocked(core, "slow", 10_000)
    for _ in range(20):
        # It takes a little now and then: no reason to cut it off as long as no other waits.
        core.bench.runtime.advance(upstream.SNAPSHOT_TURN_S / 2)
        slow.unsent_bytes -= 1
    assert slow.up
    second = blocked(core, "second")
    second.unsent_bytes = 0
    for _ in range(4):
        core.bench.runtime.advance(upstream.SNAPSHOT_TURN_S / 2)
        slow.unsent_bytes -= 1
    assert not slow.up
    assert core.feeds.snapshot_turns_lost == 1
    assert len(second.snapshots) == 1
    # It dials again, and has its turn when there is one.
    again = blocked(core, "slow")
    again.unsent_bytes = 0
    core.bench.runtime.advance(1)
    assert len(again.snapshots) == 1


def test_one_that_takes_enough_keeps_its_turn() -> None:
    limits = Limits(snapshot_log_entries=10, log_tail_entries=2, replicant_snapshots_max=1)
    core = Core(limits)
    least = int(upstream.SNAPSHOT_BYTES_PER_S_MIN * upstream.SNAPSHOT_TURN_S)
    steady, waiting = blocked(core, "steady", 20 * least), blocked(core, "waiting")
    for _ in range(10):
        steady.unsent_bytes -= least
        core.bench.runtime.advance(upstream.SNAPSHOT_TURN_S / 2)
    assert steady.up
    assert waiting.snapshots == []


def told(link: FollowLink) -> list[tuple[int, Configuration]]:
    return [(each.index, decode(each.configuration)) for each in link.configurations]


def test_a_stream_begins_with_the_configuration_in_force() -> None:
    core = Core(Limits())
    engine = core.bench.engine
    in_force = engine.configuration
    link, other = FollowLink("r"), FollowLink("s")
    index = core.commit
    core.follow(link, index, engine.wal.term_at(index) or 0)
    assert told(link) == [(index, in_force)]
    core.write(3)
    assert len(told(link)) == 1  # from there on the entries tell it
    core.follow(other, core.commit + 5, 1)  # this core has yet to catch up with it
    assert told(other) == []
    core.write(10)
    assert told(other)[0][0] >= core.commit - 10


def test_a_snapshot_brings_the_configuration_at_its_index() -> None:
    core = Core()
    link = FollowLink("r")
    core.follow(link, 1, 0)
    core.bench.runtime.advance(0.1)
    first, last = told(link)
    assert first == (1, EMPTY)  # where it stood: no log has one there
    assert last == (link.snapshots[0], core.bench.engine.configuration)


def test_nodes_of_the_former_format_are_sent_no_configuration_until_it_is_raised() -> None:
    core = Core()
    core.bench.application.core_format = 1
    link = FollowLink("r")
    core.follow(link, 1, 0)
    core.bench.runtime.advance(2 * upstream.STATUS_S)
    assert link.snapshots
    assert told(link) == []
    core.bench.application.core_format = 2
    core.bench.runtime.advance(2 * upstream.STATUS_S)
    assert told(link) == [(link.snapshots[0], core.bench.engine.configuration)]


def test_a_replicant_that_waits_for_its_snapshot_is_no_silent_one() -> None:
    """It sends no presence before it has the state, and the log calls it up already."""
    core = Core(Limits(snapshot_log_entries=10, log_tail_entries=2, replicant_snapshots_max=1))
    first, second = blocked(core, "r0"), blocked(core, "r1")
    second.unsent_bytes = 0
    first.unsent_bytes += 500
    runtime = core.bench.runtime
    members = {n: Member(n, "replicant", f"{n}-aa", "", None, 1, True, 0) for n in ("r0", "r1")}
    presences, decider = Presences(lambda name, at: None), FailureDetector(10.0)
    decider.begin(runtime.now)
    suspects = [Suspect(name, 1, f"{name}-aa", False) for name in members]
    for _ in range(80):
        first.unsent_bytes -= 1  # it takes its snapshot, slowly
        runtime.advance(0.25)
        presences.update(core.feeds.streams(), runtime.now)
        heard = dict(presences.heard(members, runtime.now))
        seen = Observed(1, "a", ["a"], suspects, heard, ["a"])
        assert decider.look(runtime.now, seen) == []
    assert second.up


def test_nothing_begins_when_the_loop_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot that is cut off then would begin the next one, which is never awaited."""
    core = Core(Limits(snapshot_log_entries=10, log_tail_entries=2, replicant_snapshots_max=1))
    begun: list[Coroutine[Any, Any, Any]] = []
    monkeypatch.setattr(core.bench.runtime, "spawn", lambda task, name: begun.append(task))
    for name in ("r", "s"):
        core.follow(FollowLink(name), 1, 0)
    [task] = begun
    task.send(None)
    task.close()
    assert len(begun) == 1
    assert core.feeds.snapshots_sending == 0


def test_a_snapshot_that_fails_lets_the_next_one_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    core = Core(Limits(snapshot_log_entries=10, log_tail_entries=2, replicant_snapshots_max=1))
    begun: list[Coroutine[Any, Any, Any]] = []
    monkeypatch.setattr(core.bench.runtime, "spawn", lambda task, name: begun.append(task))
    for name in ("r", "s"):
        core.follow(FollowLink(name), 1, 0)
    begun[0].send(None)
    with pytest.raises(RuntimeError, match="of this test"):
        begun[0].throw(RuntimeError("of this test"))
    assert len(begun) == 2
    begun[1].close()
