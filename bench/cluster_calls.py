"""Cluster calls (plugin `calls`) under load: the callers and the functions inside one node.

Not to be confused with `bench.calls`, whose calls are puts and gets of the keyspace.

Every node registers the same three functions, and each notes its runs (`bench.executions`):

    nothing     it returns at once: what is measured is the machinery alone
    keyspace    its effect is one put, to a key of the load and of the node that runs it. The put is
                one command with the node's cursor, so the key's version counts the calls that the
                node executed: the keyspace itself knows whether one was lost or ran twice
    outside     it sleeps 1 ms, as one would that talks to something outside

The callers are closed loops, each with one call outstanding. Each call becomes a row when it is
over, those of the warm-up too: what a call costs is counted over all of them. The callers come to
an end by themselves: no call is cut off, so what was not answered is an answer, too (`timeout`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from bench.clock import Clock
from bench.executions import Execution, Executions
from bench.live import Tally
from bench.scenarios import outcome_of
from bench.schema import CALL_RESULTS, Row
from raftkv.errors import RaftkvError

__all__ = [
    "SLEEP_S",
    "CallSeat",
    "Callers",
    "CallsLike",
    "ClusterCallLoad",
    "RunOf",
    "effect_key",
    "register",
]

SLEEP_S = 0.001
BACK_OFF_S = 0.02
"""A caller that got no answer waits before it calls again, or an outage would fill the log."""


class ClusterCallLoad(msgspec.Struct, frozen=True, kw_only=True, tag="cluster_calls"):
    """One node's part of a load: so many callers here, for so long. `number` stands in arguments.

    `lagging`: the replicant that lags on purpose. Calls have `timeout_s` each.
    """

    load: str
    number: int
    scenario: str
    function: str
    required: str
    callers: int
    seconds: float
    warmup_s: float
    timeout_s: float
    lagging: str | None = None


class RunOf(msgspec.Struct, frozen=True, array_like=True):
    """The argument of all three functions: the number of the load that the call belongs to."""

    load: int


class CallResultLike(Protocol):
    """What is used of a `raftkv_cluster_call` CallResult."""

    @property
    def outcome(self) -> str: ...

    @property
    def id(self) -> int: ...


class CallsLike(Protocol):
    """What is used of a `raftkv_cluster_call` CallsApi."""

    def function(
        self, name: str, *, version: int = 1, effect: bool = False, type: Any = None
    ) -> Any: ...

    async def call(
        self, function: str, args: Any, *, required: Any = "all", timeout_s: float = 120.0
    ) -> Any: ...


def effect_key(load: int, node: str) -> bytes:
    """The key whose version counts what `node` executed of the load."""
    return f"bench/cluster-calls/{load}/{node}".encode()


def name_of(function: str) -> str:
    """The registered name of one of CLUSTER_CALL_FUNCTIONS."""
    return f"bench.{function}"


def register(calls: CallsLike, node: str, executions: Executions, clock: Clock) -> None:
    """Registers the three functions on the node `node`, before anybody calls."""
    from raftkv.kv import Put  # here, because `bench compare` runs revisions of many ages

    def nothing(args: RunOf, call: Any) -> None:
        with _noted(args, call):
            pass

    def keyspace(args: RunOf, call: Any) -> Any:
        with _noted(args, call):
            return Put(effect_key(args.load, node), b"")

    async def outside(args: RunOf, call: Any) -> None:
        with _noted(args, call):
            await clock.sleep(SLEEP_S)

    def _noted(args: RunOf, call: Any) -> Execution:
        return Execution(executions, args.load, call.id, call.kind, call.attempt, clock)

    for word, function in (("nothing", nothing), ("keyspace", keyspace), ("outside", outside)):
        effect = function is keyspace
        calls.function(name_of(word), version=1, effect=effect, type=RunOf)(function)


class CallSeat(msgspec.Struct, frozen=True):
    """The constant part of the rows, and where the callers sit at the moment."""

    run: str
    layout: str
    node: str
    role: Callable[[], str]


class Callers:
    """The callers of one node: `start` a load, then `over` waits for its end."""

    def __init__(
        self, calls: CallsLike, seat: CallSeat, clock: Clock, sink: Callable[[Row], None]
    ) -> None:
        self._calls = calls
        self._seat = seat
        self._clock = clock
        self._sink = sink
        self._tasks: list[asyncio.Task[None]] = []
        self.tally = Tally()

    def start(self, load: ClusterCallLoad) -> None:
        """Sends this node's callers off."""
        assert not self._tasks, "the last load is still under way"
        self.tally = Tally()
        self._opens = self._clock.now() + load.warmup_s
        self._closes = self._opens + load.seconds
        self._tasks = [
            asyncio.get_running_loop().create_task(self._loop(number, load))
            for number in range(load.callers)
        ]

    async def over(self) -> Tally:
        """The tally, once every caller has its last answer. Raises what a caller failed with."""
        tasks, self._tasks = self._tasks, []
        await asyncio.gather(*tasks)
        return self.tally

    async def _loop(self, number: int, load: ClusterCallLoad) -> None:
        function, argument = name_of(load.function), RunOf(load.number)
        required: int | str = "all" if load.required == "all" else int(load.required)
        clock, call = self._clock, self._calls.call
        while (began := clock.now()) < self._closes:
            start_us, role, answered = clock.wall_us(), self._seat.role(), True
            outcome, id_ = "ok", None
            try:
                result: CallResultLike = await call(
                    function, argument, required=required, timeout_s=load.timeout_s
                )
            except RaftkvError as error:
                outcome, answered = outcome_of(error), False
            else:
                outcome, id_ = result.outcome, result.id or None
                assert outcome == "ok" or outcome in CALL_RESULTS, outcome
            phase = "warmup" if began < self._opens else "load"
            duration_us = max(0, round((clock.now() - began) * 1e6))
            self._note(load, phase, number, role, start_us, duration_us, outcome, id_)
            if not answered or outcome == "init_failure":
                await clock.sleep(BACK_OFF_S)

    def _note(
        self, load: ClusterCallLoad, phase: str, number: int, role: str, start_us: int,
        duration_us: int, outcome: str, id_: int | None,
    ) -> None:  # fmt: skip
        seat = self._seat
        self._sink(
            Row(
                seat.run, seat.layout, load.scenario, phase, "none", seat.node, role, "call",
                f"k{number}", 1, start_us, duration_us, outcome, index=id_, load=load.load,
            )
        )  # fmt: skip
        if phase == "load":
            self.tally.outcomes[outcome] = self.tally.outcomes.get(outcome, 0) + 1
            if outcome == "ok":
                self.tally.add_duration(duration_us)
