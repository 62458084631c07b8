"""The recorder: stamps, outcomes, and a history that both oracles accept."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from raftkv.errors import Overloaded, ReadTimeout, SessionExpired, Timeout
from raftkv.kv import KVApi
from raftkv.kv.commands import EmptyKey
from raftkv.testing.linearizability import check_per_key
from raftkv.testing.models import KeyValueStore
from raftkv.testing.recorder import HistoryRecorder
from raftkv.testing.revision_order import check_by_revision
from tests.kv.fake_host import FakeHost


class FailingHost(FakeHost):
    """Raises `error` after or instead of what was asked."""

    def __init__(self, error: BaseException, *, applied: bool) -> None:
        super().__init__()
        self.error = error
        self.applied = applied

    async def propose(self, command: Any, *, timeout_s: float | None = None) -> Any:
        if self.applied:
            await super().propose(command, timeout_s=timeout_s)
        raise self.error

    async def barrier(
        self, consistency: str = "linearizable", *, timeout_s: float | None = None
    ) -> None:
        raise self.error


def ticking() -> Callable[[], float]:
    count = itertools.count(1)
    return lambda: next(count) / 1000


def test_every_call_becomes_a_row() -> None:
    recorder = HistoryRecorder(ticking())
    client = recorder.client("c1", KVApi(FakeHost()))

    async def calls() -> None:
        assert await client.get(b"k") is None
        await client.put(b"k", b"1")
        assert await client.cas(b"k", b"1", b"2")
        assert not await client.cas(b"k", b"1", b"3")
        assert await client.get(b"k") == b"2"
        assert await client.delete(b"k")
        assert not await client.delete(b"k")
        assert await client.cas(b"k", None, b"4")
        assert await client.cas(b"k", b"4", None)
        assert await client.get(b"k") is None

    asyncio.run(calls())
    history = recorder.history()
    assert [(one.op, one.input, one.output, one.revision) for one in history] == [
        ("get", None, None, 1),
        ("put", b"1", None, 2),
        ("cas", (b"1", b"2"), True, 3),
        ("cas", (b"1", b"3"), False, 3),
        ("get", None, b"2", 3),
        ("delete", None, True, 4),
        ("delete", None, False, 4),
        ("cas", (None, b"4"), True, 5),
        ("cas", (b"4", None), True, 6),
        ("get", None, None, 6),
    ]
    stamps = [(one.start, one.end) for one in history]
    assert stamps == [(2000 * n + 1000, 2000 * n + 2000) for n in range(len(history))]
    assert check_per_key(history, KeyValueStore())[b"k"].outcome == "linearizable"
    assert check_by_revision(history, KeyValueStore()).outcome == "consistent"


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Overloaded("full"), "not_applied"),
        (EmptyKey("no key"), "not_applied"),
        (Timeout("late"), "unknown"),
        # An earlier copy of the command may have been applied before the session went.
        (SessionExpired("gone"), "unknown"),
        (asyncio.CancelledError(), "unknown"),
        (RuntimeError("a defect"), "unknown"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else value,
)
def test_what_a_call_raises_decides_its_outcome(error: BaseException, outcome: str) -> None:
    recorder = HistoryRecorder(ticking())
    client = recorder.client("c1", KVApi(FailingHost(error, applied=False)))

    async def call() -> None:
        with pytest.raises(type(error)):
            await client.put(b"k", b"v")

    asyncio.run(call())
    (row,) = recorder.history()
    assert (row.op, row.outcome, row.end, row.revision) == ("put", outcome, None, None)


def test_a_read_that_failed_says_nothing() -> None:
    recorder = HistoryRecorder(ticking())
    client = recorder.client("c1", KVApi(FailingHost(ReadTimeout("late"), applied=False)))
    with pytest.raises(ReadTimeout):
        asyncio.run(client.get(b"k"))
    assert [one.outcome for one in recorder.history()] == ["not_applied"]


def test_a_call_that_never_comes_back_is_unknown() -> None:
    """A crashed host: nothing of the call ever runs again, not even a `finally`."""

    class Silent(FakeHost):
        async def propose(self, command: Any, *, timeout_s: float | None = None) -> Any:
            await asyncio.get_running_loop().create_future()

    recorder = HistoryRecorder(ticking())
    client = recorder.client("c1", KVApi(Silent()))
    call = client.put(b"k", b"v")

    async def begin() -> list[str]:
        task = asyncio.ensure_future(call)
        await asyncio.sleep(0)
        seen = [one.outcome for one in recorder.history()]
        task.cancel()
        return seen

    assert asyncio.run(begin()) == ["unknown"]
    assert len(recorder.history()) == 1


def test_a_lost_write_that_was_applied_is_explained() -> None:
    host = FailingHost(Timeout("late"), applied=True)
    recorder = HistoryRecorder(ticking())

    async def calls() -> None:
        with pytest.raises(Timeout):
            await recorder.client("c1", KVApi(host)).put(b"k", b"v")
        healthy = FakeHost()
        healthy.machine = host.machine
        assert await recorder.client("c2", KVApi(healthy)).get(b"k") == b"v"

    asyncio.run(calls())
    history = recorder.history()
    assert check_per_key(history, KeyValueStore())[b"k"].outcome == "linearizable"
    assert check_by_revision(history, KeyValueStore()).outcome == "consistent"


@pytest.mark.parametrize("alone", [True, False])
def test_events_at_one_moment_keep_their_order_if_the_recorder_saw_them_all(alone: bool) -> None:
    recorder = HistoryRecorder(lambda: 7.0, alone=alone)
    client = recorder.client("c1", KVApi(FakeHost()))
    asyncio.run(client.put(b"k", b"v"))
    (row,) = recorder.history()
    assert row.end is not None
    assert row.end - row.start == (1 if alone else 0)
