"""costly_commands.py: their own session, room on the way, and what is known of a lost outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from raftkv import costly_commands
from raftkv.costly_commands import CostlyCommands
from raftkv.errors import NoLeader, Overloaded, SessionExpired, Stopped, Timeout
from raftkv.foreign import Ticket
from raftkv.kv import Compare, PutOp
from raftkv.outbox import ABANDONED_KEPT_S
from raftkv.raft.composition import COSTLY_ROWS, FLIGHT_ROWS
from raftkv.state import sessions
from raftkv.testing import LocalCluster


class Look(msgspec.Struct, frozen=True):
    name: str
    rows: int


class Machine:
    def foresee(self, plugin: str, command: Look) -> int:
        return command.rows


class Clock:
    """Of the loop that runs the test all but the time, which stands still."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def future(self) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()

    def call_later(self, delay_s: float, callback: Callable[..., object], *args: Any) -> Any:
        return asyncio.get_running_loop().call_later(delay_s, callback, *args)

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        return asyncio.get_running_loop().create_task(coroutine, name=name)


class Way:
    """In the place of the clients' queue: what was proposed, and answers that the test gives."""

    def __init__(self) -> None:
        self.opened = 0
        self.can_open = True
        self.proposed: list[tuple[int, int, int, str]] = []
        self.answers: dict[str, asyncio.Future[Any]] = {}

    async def open_session(self, timeout_s: float | None = None) -> str:
        await asyncio.sleep(0)
        if not self.can_open:
            raise NoLeader("no leader")
        self.opened += 1
        return f"{10 * self.opened}-00ab"

    async def propose(self, ticket: Ticket, plugin: str, command: Look, timeout_s: float) -> Any:
        self.proposed.append((ticket.session, ticket.seq, ticket.floor, command.name))
        self.answers[command.name] = asyncio.get_running_loop().create_future()
        return await self.answers[command.name]


class Bench:
    def __init__(self) -> None:
        self.clock, self.way = Clock(), Way()
        self.costly = CostlyCommands(self.clock, Machine(), self.way)  # type: ignore[arg-type]

    def submit(
        self, name: str, rows: int = FLIGHT_ROWS, timeout_s: float = 50.0
    ) -> asyncio.Task[Any]:
        command = Look(name, rows)
        return asyncio.create_task(self.costly.propose("kv", command, rows, timeout_s))

    @staticmethod
    async def turn() -> None:
        for _ in range(10):
            await asyncio.sleep(0)


def run(test: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await test(Bench())

    asyncio.run(main())


def test_a_session_that_was_being_opened_as_the_history_ended_is_not_used() -> None:
    """Its number may be another's in the new history."""

    async def test(bench: Bench) -> None:
        task = bench.submit("a")
        await asyncio.sleep(0)
        bench.costly.history_ended()
        await bench.turn()
        assert bench.way.opened == 1
        assert bench.way.proposed == []
        with pytest.raises(NoLeader):
            await task
        bench.submit("b")
        await bench.turn()
        assert bench.way.proposed == [(20, 1, 1, "b")]

    run(test)


def test_only_what_may_look_at_many_rows_is_costly() -> None:
    costly = Bench().costly
    assert costly.rows_of("kv", Look("few", COSTLY_ROWS)) == 0
    assert costly.rows_of("kv", Look("many", COSTLY_ROWS + 1)) == COSTLY_ROWS + 1


def test_commands_go_in_their_order_as_far_as_there_is_room() -> None:
    async def test(bench: Bench) -> None:
        half = FLIGHT_ROWS // 2
        tasks = [bench.submit(name, half) for name in "abc"]
        await bench.turn()
        assert bench.way.opened == 1
        assert bench.way.proposed == [(10, 1, 1, "a"), (10, 2, 1, "b")]
        assert len(bench.costly) == 1
        bench.way.answers["b"].set_result("done b")
        await bench.turn()
        assert bench.way.proposed[2:] == [(10, 3, 1, "c")]
        bench.way.answers["a"].set_result("done a")
        bench.way.answers["c"].set_result("done c")
        assert await asyncio.gather(*tasks) == ["done a", "done b", "done c"]

    run(test)


def test_one_that_is_larger_than_the_room_goes_alone() -> None:
    async def test(bench: Bench) -> None:
        bench.submit("small", COSTLY_ROWS + 1)
        large = bench.submit("large", 3 * FLIGHT_ROWS)
        bench.submit("behind", COSTLY_ROWS + 1)
        await bench.turn()
        bench.way.answers["small"].set_result(None)
        await bench.turn()
        assert [each[3] for each in bench.way.proposed] == ["small", "large"]
        bench.way.answers["large"].set_result("done")
        assert await large == "done"
        await bench.turn()
        assert bench.way.proposed[-1] == (10, 3, 3, "behind")

    run(test)


def test_a_number_without_an_outcome_holds_the_floor_and_can_be_asked_for() -> None:
    async def test(bench: Bench) -> None:
        lost = bench.submit("lost")
        await bench.turn()
        bench.way.answers["lost"].set_exception(Timeout("late"))
        with pytest.raises(Timeout) as error:
            await lost
        assert (error.value.session, error.value.seq) == (10, 1)
        assert bench.costly.kind_of(10, 1) is Look
        for name, after_s, floor in (("next", 0, 1), ("later", ABANDONED_KEPT_S, 3)):
            bench.clock.now += after_s
            task = bench.submit(name)
            await bench.turn()
            assert bench.way.proposed[-1][2:] == (floor, name)
            bench.way.answers[name].set_result(None)
            await task
        assert bench.costly.kind_of(10, 1) is None

    run(test)


def test_a_full_window_opens_a_further_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a caller would be refused for the numbers of others, until the first is let go."""
    monkeypatch.setattr(sessions, "SESSION_WINDOW", 3)

    async def test(bench: Bench) -> None:
        for name in "abc":
            task = bench.submit(name)
            await bench.turn()
            bench.way.answers[name].set_exception(Timeout("late"))
            with pytest.raises(Timeout):
                await task
        bench.submit("d")
        await bench.turn()
        assert bench.way.proposed[2:] == [(10, 3, 1, "c"), (20, 1, 1, "d")]
        assert bench.costly.kind_of(10, 3) is bench.costly.kind_of(20, 1) is Look
        bench.costly.history_ended()
        assert bench.costly.kind_of(10, 3) is None

    run(test)


def test_a_caller_that_leaves_gives_its_room_away_and_its_number_is_held() -> None:
    async def test(bench: Bench) -> None:
        first, second, third = (bench.submit(name) for name in "abc")
        await bench.turn()
        second.cancel()
        first.cancel()
        await bench.turn()
        assert bench.way.proposed == [(10, 1, 1, "a"), (10, 2, 1, "c")]
        bench.way.answers["c"].set_result("done")
        assert await third == "done"

    run(test)


def test_an_ended_session_is_replaced_and_its_verdict_is_not_shown() -> None:
    async def test(bench: Bench) -> None:
        task = bench.submit("a")
        await bench.turn()
        bench.way.answers["a"].set_exception(SessionExpired("idle"))
        await bench.turn()
        assert bench.way.proposed == [(10, 1, 1, "a"), (20, 1, 1, "a")]
        bench.way.answers["a"].set_result("done")
        assert await task == "done"

    run(test)


def test_without_a_session_or_room_nothing_has_left_at_the_deadline() -> None:
    async def test(bench: Bench) -> None:
        bench.way.can_open = False
        with pytest.raises(NoLeader):
            await bench.submit("a", timeout_s=0.0)
        bench.way.can_open = True
        bench.submit("b")
        await bench.turn()
        with pytest.raises(Overloaded):
            await bench.submit("c", timeout_s=0.0)
        assert [each[3] for each in bench.way.proposed] == ["b"]

    run(test)


def test_what_waits_is_bounded_and_ends_with_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costly_commands, "WAITING_MAX", 1)

    async def test(bench: Bench) -> None:
        bench.submit("a")
        waiting = bench.submit("b")
        await bench.turn()
        with pytest.raises(Overloaded):
            await bench.submit("c")
        bench.costly.stop()
        with pytest.raises(Stopped):
            await waiting
        with pytest.raises(Stopped):
            await bench.submit("d")

    run(test)


def test_a_node_takes_costly_transactions_beside_cheap_commands() -> None:
    async def test() -> None:
        async with LocalCluster(cores=1, fsync="off") as cluster:
            node = cluster.cores[0]
            keys = [b"k/%04d" % number for number in range(COSTLY_ROWS + 1)]
            for first in range(0, len(keys), 100):
                puts = [PutOp(key, b"v") for key in keys[first : first + 100]]
                await node.kv.txn([], puts, [])
            every = Compare(b"k/", "version", "=", 1, b"k0")
            outcomes = await asyncio.gather(
                *(node.kv.txn([every], [PutOp(b"done", b"")], []) for _ in range(3)),
                *(node.kv.put(b"cheap", b"") for _ in range(3)),
            )
            assert [each.succeeded for each in outcomes[:3]] == [True] * 3
            session = node.costly._session
            assert session is not None
            assert session.number != node.outbox.session
            assert session.next_seq == 4
            assert not session.kinds
            found = await node.kv.get(b"done")
            assert found is not None
            assert found.version == 3

    asyncio.run(test())


@pytest.mark.parametrize("how", ["cancelled", "timed out"])
def test_callers_that_have_left_take_no_place_among_those_that_wait(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(costly_commands, "WAITING_MAX", 3)

    async def test(bench: Bench) -> None:
        bench.submit("on its way")
        await bench.turn()
        bench.submit("head")
        await bench.turn()
        left = [
            bench.submit(f"left {n}", timeout_s=50.0 if how == "cancelled" else 0.0) for n in (1, 2)
        ]
        await bench.turn()
        for each in left:
            each.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        assert len(bench.costly) == 1
        later = bench.submit("later")
        await bench.turn()
        assert not later.done()
        for name in ("on its way", "head", "later"):
            bench.way.answers[name].set_result(name)
            await bench.turn()
        assert later.result() == "later"
        assert len(bench.costly) == 0

    run(test)
