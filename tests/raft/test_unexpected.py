"""Errors that nobody expects: no node goes on behind one, or stands still without a word."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftkv.config import Limits, NodeConfig
from raftkv.errors import Diverged, InternalFault, NodeFault
from raftkv.raft import snapshot_file as files
from raftkv.raft import snapshotting, wire
from raftkv.raft.inbox import INBOX_APPENDS_MAX
from raftkv.raft.transport import Hub
from raftkv.replicant.follower import Follower
from raftkv.runtime import OsRuntime, OsWorker
from raftkv.state import snapshot as state_snapshot
from tests.fakes import FakeRuntime
from tests.raft.harness import BEAT_S, A, B, Bench, C, accepted, append, batch, chunk
from tests.raft.rule_tools import snapshot_file


class Odd(BaseException):
    """What a debugger throws into a thread, say."""


def test_a_write_that_ends_with_anything_at_all_fences_the_node() -> None:
    bench = Bench(B)
    bench.runtime.settle()
    bench.take(A)
    bench.receive(A, append(1, 2, 1, [(1, batch("x"))], round_number=1))
    bench.runtime.disk.popleft().future.set_exception(Odd("not written"))
    bench.runtime.run()
    assert isinstance(bench.engine.fault, InternalFault)
    bench.receive(A, append(1, 3, 1, [], round_number=2))
    assert bench.take(A, wire.AppendReply) == []


def test_a_snapshot_that_cannot_be_taken_over_is_a_fault() -> None:
    bench = Bench(B)
    loading = bench.application.loading

    def too_large() -> Any:
        found = loading()

        def add(data: bytes) -> None:
            raise MemoryError("the state does not fit twice")

        found.add = add  # type: ignore[method-assign]
        return found

    bench.application.loading = too_large  # type: ignore[method-assign]
    name, data = snapshot_file(50, 1, [b"state", b"at 50"])
    bench.receive(A, chunk(1, data, data, 0, index=50, snapshot_term=1, name=name))
    bench.runtime.settle()
    assert isinstance(bench.engine.fault, InternalFault)


def test_a_snapshot_that_cannot_be_written_is_told_and_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(A, limits=Limits(snapshot_log_entries=10, log_tail_entries=1))
    begun = 0

    class Frozen:
        def slices(self, rows_max: int, bytes_max: int = 0) -> Iterator[bytes]:
            raise MemoryError("no memory")
            yield b""

        def close(self) -> None:
            """Nothing is held."""

    freeze = bench.application.freeze

    def failing() -> Any:
        nonlocal begun
        begun += 1
        return Frozen() if begun < 3 else freeze()

    bench.application.freeze = failing  # type: ignore[method-assign]
    term = bench.lead()

    def write(entries: int) -> None:
        for _ in range(entries):
            bench.engine.propose([b"x"])
            bench.runtime.settle()
            for peer in (B, C):
                bench.receive(peer, accepted(term, bench.wal.last_index))
                bench.take(peer)
            bench.runtime.settle()

    write(50)
    assert begun == 1  # and not at every tick
    assert bench.engine.counts.snapshots_failed == 1
    assert "writing a snapshot failed" in caplog.text
    assert bench.engine.fault is None
    until = bench.runtime.monotonic() + 3 * snapshotting.RETRY_S
    while not bench.engine.counts.snapshots_written and bench.runtime.monotonic() < until:
        write(1)
        bench.runtime.advance(0.05)
    assert (begun, bench.engine.counts.snapshots_failed) == (3, 2)
    assert bench.engine.counts.snapshots_written == 1
    assert bench.wal.first_index > 2


class ReplicantApplication:
    def __init__(self) -> None:
        self.applied: list[int] = []
        self.faults: list[NodeFault] = []

    def apply(self, index: int, body: bytes, term: int) -> None:
        if body == b"bad":
            raise RuntimeError("half done")
        self.applied.append(index)

    skip = progressed = office_changed = lambda self, *_: None

    def faulted(self, fault: NodeFault) -> None:
        self.faults.append(fault)


@pytest.mark.parametrize(
    ("payload", "fault"), [(b"\0bad", InternalFault), (b"\x7ffrom a newer version", Diverged)]
)
def test_a_replicant_applies_nothing_behind_what_it_could_not_apply(
    payload: bytes, fault: type[NodeFault]
) -> None:
    runtime, application = FakeRuntime(), ReplicantApplication()
    config = SimpleNamespace(name="r", raft=SimpleNamespace(election_timeout_max_ms=1200))
    follower = Follower(
        cast(Any, config), cast(Any, None), cast(Any, runtime), cast(Any, application),
        lambda: [("a", "x")],
    )  # fmt: skip
    nothing = lambda *_: None  # noqa: E731
    link: Any = SimpleNamespace(dialled="x", peer_name="a", send=nothing, close=nothing)
    follower.link_up(link)
    follower.on_feed(link, wire.Feed(1, 0, 4, [(1, b"\0good"), (1, payload), (1, b"\0good")]))
    runtime.advance(1.0)
    assert application.applied == [2]
    assert [type(each) for each in application.faults] == [fault]
    assert follower.stopped


def test_a_thread_that_could_not_be_started_is_started_at_the_next_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def whole() -> None:
        worker = OsWorker(asyncio.get_running_loop(), "test")

        def none(self: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", none)
            with pytest.raises(RuntimeError, match="can't start"):
                worker.submit(int, ())
        assert await asyncio.wait_for(worker.submit(lambda: 42, ()), 10) == 42
        with pytest.raises(RuntimeError, match="StopIteration"):
            await asyncio.wait_for(worker.submit(lambda: next(iter(())), ()), 10)
        worker.close()

    asyncio.run(whole())


@pytest.mark.parametrize("known", [["bad..name:1000"], ["no address"], ["nul\0:1000"], []])
def test_an_address_that_is_none_does_not_end_the_dialling(known: list[str]) -> None:
    asked = 0

    class Owner:
        def linked(self, name: str) -> bool:
            return False

    def addresses() -> list[str]:
        nonlocal asked
        asked += 1
        return known

    async def whole() -> None:
        hub = Hub(OsRuntime(), cast(Any, Owner()), 1 << 20)
        hub.keep_dialling("core2", addresses, "raft", 0.0)
        async with asyncio.timeout(10):
            while asked < 3:
                await asyncio.sleep(0.01)
        hub.stop_dialling("core2")

    asyncio.run(whole())


@pytest.mark.parametrize("bad", ["bad..name:1000", "nul\0:1000", "no address"])
def test_an_address_that_is_none_does_not_end_the_following(bad: str) -> None:
    """Another node may have named it, on the loop of asyncio too, which raises other errors."""
    asked = 0

    def cores() -> list[tuple[str, str]]:
        nonlocal asked
        asked += 1
        return [("core1", bad)]

    async def whole() -> None:
        runtime = OsRuntime()
        hub = Hub(runtime, cast(Any, None), 1 << 20)
        config = NodeConfig(
            name="r",
            dir="r",
            peer_address="r:9",
            cores={"core1": "a:1"},
            role="replicant",
            insecure=True,
        )
        follower = Follower(config, hub, runtime, cast(Any, None), cores)
        follower.start()
        async with asyncio.timeout(10):
            while asked < 3:
                await asyncio.sleep(0.01)
        follower.stop()

    asyncio.run(whole())


# Bounds, where somebody stands still --------------------------------------------------------------


def test_a_follower_that_takes_nothing_gets_no_further_probes() -> None:
    """Its process stands still, and its stream is up: what waits for it here must not grow."""
    bench = Bench(A)
    term = bench.elect()

    def beats(count: int) -> int:
        sent = 0
        for _ in range(count):
            bench.tick(BEAT_S)
            bench.runtime.settle()
            for asked in bench.take(B, wire.Append):
                bench.receive(B, accepted(term, bench.wal.last_index, asked.round))
            sent += sum(bool(each.entries) for each in bench.take(C, wire.Append))
        return sent

    beats(1)
    for _ in range(3):
        bench.engine.propose([b"x" * 1000])
        bench.runtime.settle()
    assert beats(5) >= 4  # nobody has answered, so it is asked again
    bench.links[C].unsent_bytes = 2 * 1024 * 1024
    beats(1)
    assert beats(20) == 0
    assert bench.engine.leading is not None
    bench.links[C].unsent_bytes = 0
    assert beats(3) >= 2


def test_entries_are_dropped_while_too_many_messages_wait_for_the_disk() -> None:
    bench = Bench(B)
    payload = batch("x" * 1000)
    bench.receive(A, append(2, 2, 1, [(2, payload)], round_number=1))  # its write does not end
    for number in range(1000):
        bench.receive(A, append(2, 2, 1, [(2, payload)], round_number=2 + number))
    assert bench.engine.inbox_messages <= INBOX_APPENDS_MAX
    assert bench.engine.counts.appends_dropped == 1000 - INBOX_APPENDS_MAX
    bench.receive(A, append(2, 2, 1, [], round_number=2000))
    assert bench.engine.inbox_messages == INBOX_APPENDS_MAX + 1  # a heartbeat is heard
    bench.runtime.settle()
    assert bench.wal.durable_index == 3
    assert bench.engine.fault is None


def test_heartbeats_do_not_pile_up_while_the_disk_hangs() -> None:
    bench = Bench(B)
    bench.receive(A, append(2, 2, 1, [(2, batch("x"))], round_number=1))  # its write does not end
    for number in range(2, 3000):
        bench.receive(A, append(2, 3, 2, [], round_number=number))
        bench.receive(A, append(2, 3, 2, [], round_number=wire.NO_ANSWER))
        bench.receive(C, wire.Vote(2, number, 3, 2, True, False))
    assert bench.engine.inbox_messages == 3
    bench.runtime.settle()
    assert bench.take(A, wire.AppendReply)[-1].round == 2999, "the newest is answered"
    assert bench.engine.inbox_messages == 0


def test_bytes_that_wait_for_the_disk_are_bounded() -> None:
    bench = Bench(B)
    limits = bench.engine.limits
    most = 2 * (limits.inflight_bytes_max + limits.snapshot_inflight_bytes_max)
    data = bytes(most // 10)
    bench.receive(A, append(2, 2, 1, [(2, batch("x"))], round_number=1))  # its write does not end
    for offset in range(100):
        chunk = wire.SnapshotChunk(2, "s", 9, 2, 10**9, offset, 0, data)
        bench.receive(A, chunk)
    assert most <= bench.engine.inbox_bytes < most + 2 * len(data)
    assert bench.engine.counts.appends_dropped >= 89
    bench.receive(A, append(2, 3, 2, [], round_number=7))
    assert bench.engine.inbox_messages == 11, "a heartbeat is never dropped for others"


def test_what_a_snapshots_file_takes_can_be_read() -> None:
    """A row is a chunk, however large it has grown."""
    assert state_snapshot.CHUNK_BYTES_MAX == files.CHUNK_BYTES_MAX
