"""Callers of cluster calls, the functions they call, and what is written down of each run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.cluster_calls import (
    BACK_OFF_S,
    SLEEP_S,
    Callers,
    CallSeat,
    ClusterCallLoad,
    RunOf,
    effect_key,
    register,
)
from bench.executions import Execution, Executions, rows_of_executions
from bench.schema import Row
from raftkv.errors import NoLeader
from raftkv.kv import Put

LOADS = {7: ("cores-7", "cluster_calls"), 8: ("cores-8", "cluster_calls_leader_dies")}


class Clock:
    """Stands still but for sleeps and what a fake lets pass."""

    def __init__(self) -> None:
        self.at = 100.0  # what is added are powers of two: sums are exact

    def now(self) -> float:
        return self.at

    def wall_us(self) -> int:
        return round(self.at * 1e6)

    async def sleep(self, seconds: float) -> None:
        self.at += seconds
        await asyncio.sleep(0)


class FakeCalls:
    """Answers what it is told to, each after so many seconds, and then ok."""

    def __init__(self, clock: Clock, *answers: Any, takes_s: float = 0.125) -> None:
        self.clock, self.answers, self.takes_s = clock, list(answers), takes_s
        self.asked: list[tuple[Any, ...]] = []
        self.functions: dict[str, tuple[Callable[[Any, Any], Any], bool]] = {}
        self.last = 0

    def function(
        self, name: str, *, version: int = 1, effect: bool = False, type: Any = None
    ) -> Any:
        assert (version, type) == (1, RunOf)
        return lambda function: self.functions.setdefault(name, (function, effect))

    async def call(self, function: str, args: Any, *, required: Any, timeout_s: float) -> Any:
        self.asked.append((function, args, required, timeout_s))
        await self.clock.sleep(self.takes_s)
        answer = self.answers.pop(0) if self.answers else "ok"
        if isinstance(answer, Exception):
            raise answer
        self.last += 1
        return SimpleNamespace(outcome=answer, id=self.last)


def load(**changes: Any) -> ClusterCallLoad:
    values: dict[str, Any] = {
        "load": "cores-7", "number": 7, "scenario": "cluster_calls", "function": "nothing",
        "required": "all", "callers": 1, "seconds": 0.375, "warmup_s": 0.125, "timeout_s": 20.0,
    }  # fmt: skip
    return ClusterCallLoad(**{**values, **changes})


def called(calls: FakeCalls, of: ClusterCallLoad) -> tuple[list[Row], Callers]:
    rows: list[Row] = []
    seat = CallSeat("run", "3", "c2", lambda: "follower")
    callers = Callers(calls, seat, calls.clock, rows.append)

    async def play() -> None:
        callers.start(of)
        await callers.over()

    asyncio.run(play())
    return rows, callers


def test_a_caller_calls_until_the_time_is_over_and_each_call_is_a_row() -> None:
    calls = FakeCalls(Clock())
    rows, callers = called(calls, load())
    assert calls.asked == [("bench.nothing", RunOf(7), "all", 20.0)] * len(rows)
    assert [row.phase for row in rows] == ["warmup", "load", "load", "load"]
    row = rows[1]
    assert (row.op, row.node, row.role, row.client) == ("call", "c2", "follower", "k0")
    assert (row.load, row.index, row.outcome) == ("cores-7", 2, "ok")
    assert row.duration_us == 125_000
    assert row.start_us == round(100.125e6)
    assert callers.tally.ok == 3, "the warm-up is not for the terminal"


def test_waiting_for_one_is_waiting_for_its_initiator() -> None:
    calls = FakeCalls(Clock())
    called(calls, load(required="1", function="outside"))
    assert calls.asked[0] == ("bench.outside", RunOf(7), 1, 20.0)


def test_other_answers_have_the_words_of_the_log() -> None:
    clock = Clock()
    calls = FakeCalls(clock, "ok", "peers_lagging", "stopped_nodes", NoLeader("none"))
    rows, callers = called(calls, load())
    assert [row.outcome for row in rows] == ["ok", "peers_lagging", "stopped_nodes", "no_leader"]
    assert [row.index for row in rows] == [1, 2, 3, None]
    # Four calls, and a rest after the one that got no answer.
    assert clock.at == pytest.approx(100.5 + BACK_OFF_S)
    assert callers.tally.others == "1 stopped_nodes, 1 peers_lagging, 1 no_leader"


def test_a_caller_that_fails_in_another_way_fails_the_load() -> None:
    with pytest.raises(AssertionError, match="unheard_of"):
        called(FakeCalls(Clock(), "unheard_of"), load())


def test_callers_have_one_call_each_outstanding() -> None:
    rows, _ = called(FakeCalls(Clock()), load(callers=3))
    assert {row.client for row in rows} == {"k0", "k1", "k2"}


# What the functions do ---------------------------------------------------------------------------


def call_of(id_: int, kind: str = "replicate", attempt: int = 1) -> Any:
    return SimpleNamespace(id=id_, kind=kind, attempt=attempt)


def read_back(directory: Path) -> list[Row]:
    return list(rows_of_executions(directory, "run", "3", LOADS))


def test_every_function_notes_its_runs(tmp_path: Path) -> None:
    clock = Clock()
    calls, executions = FakeCalls(clock), Executions(tmp_path, "run", "c2", lambda: "leader")
    register(calls, "c2", executions, clock)
    functions = {name: function for name, (function, _) in calls.functions.items()}
    assert functions["bench.nothing"](RunOf(7), call_of(1, "initiate")) is None
    put = functions["bench.keyspace"](RunOf(7), call_of(2))
    assert put == Put(effect_key(7, "c2"), b"")
    asyncio.run(functions["bench.outside"](RunOf(8), call_of(3, attempt=2)))
    assert [name for name, (_, effect) in calls.functions.items() if effect] == ["bench.keyspace"]
    rows = read_back(tmp_path)
    assert [(row.op, row.index, row.load, row.attempt) for row in rows] == [
        ("initiate", 1, "cores-7", 1),
        ("replicate", 2, "cores-7", 1),
        ("replicate", 3, "cores-8", 2),
    ]
    assert {(row.node, row.role, row.life, row.outcome) for row in rows} == {
        ("c2", "leader", 0, "ok")
    }
    assert [row.scenario for row in rows][-1] == "cluster_calls_leader_dies"
    assert rows[2].duration_us == pytest.approx(SLEEP_S * 1e6, abs=1)


def test_effects_of_loads_and_nodes_are_counted_apart() -> None:
    keys = {effect_key(number, node) for number in (1, 2) for node in ("c1", "c2")}
    assert len(keys) == 4


# What a killed process leaves --------------------------------------------------------------------


def test_a_run_that_failed_is_told_from_one_that_returned(tmp_path: Path) -> None:
    executions = Executions(tmp_path, "run", "c1")
    with pytest.raises(RuntimeError), Execution(executions, 7, 5, "replicate", 1, Clock()):
        raise RuntimeError
    with Execution(executions, 7, 5, "replicate", 2, Clock()):
        pass
    assert [(row.outcome, row.attempt) for row in read_back(tmp_path)] == [
        ("error:failed", 1),
        ("ok", 2),
    ]


def test_each_life_of_a_process_has_a_file_of_its_own(tmp_path: Path) -> None:
    for life in range(3):
        executions = Executions(tmp_path, "run", "c1")
        executions.note(7, 10 + life, "replicate", 1, ok=True, start_us=life, duration_us=1)
        # Not closed: nothing may be left in memory that a SIGKILL would take along.
        assert executions.path.stat().st_size == 31
    Executions(tmp_path, "other", "c1").note(9, 1, "initiate", 1, True, 1, 1)
    rows = read_back(tmp_path)
    assert [(row.life, row.index) for row in rows] == [(0, 10), (1, 11), (2, 12)]
    assert [path.name for path in tmp_path.iterdir()] == ["other~c1~0.executions"]


def test_half_a_record_is_passed_over(tmp_path: Path) -> None:
    executions = Executions(tmp_path, "run", "c1")
    executions.note(7, 1, "initiate", 1, ok=True, start_us=1, duration_us=2**40)
    with executions.path.open("ab") as file:
        file.write(b"half")
    (row,) = read_back(tmp_path)
    assert row.duration_us == 2**32 - 1, "longer than an hour is an hour"
