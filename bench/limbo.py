"""Transactions of the limbo (plugin `limbo`) under load: writers inside the owner's node.

A writer is a closed loop: one transaction outstanding, each a single write to a key of the writer's
own in a synchronous space, until the verdict (`wait="complete"`). So a transaction's time is from
its first line to its confirmation by the quorum in force.

The load of the benchmark log (`LimboLoad`) never writes a key twice, in a space of the load's own:
what a writer was told is confirmed must be found on every node afterwards, with its value and its
position, each transaction by itself. `bench peers tarantool` uses the same writers on few keys
(`bench.limbo_asked`), because that is what it asks of Tarantool.

The writers come to an end by themselves: none is cut off, so what was not decided in time is an
answer, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import msgspec

from bench.clock import Clock
from bench.live import Tally
from bench.scenarios import outcome_of
from bench.schema import LIMBO_RESULTS, Row
from raftkv.errors import RaftkvError

__all__ = [
    "BACK_OFF_S",
    "Confirmation",
    "LimboLike",
    "LimboLoad",
    "LimboSeat",
    "LimboWriters",
    "Note",
    "WriteOf",
    "answer_of",
    "key_of",
    "space_of",
    "value_of",
    "write_until",
]

BACK_OFF_S = 0.02
"""A writer that got no verdict waits before its next one: it may have been refused at once."""

Note = Callable[[int, int, float, float, str, int | None], None]
"""Of each transaction: its writer, its turn, when it began and ended, the answer, its position."""

WriteOf = Callable[[int, int], Any]
"""The write of the writer of this number in that turn."""


class LimboLike(Protocol):
    """What is used of a `raftkv_limbo` LimboApi."""

    async def submit(self, writes: Any, *, wait: Any = ..., timeout_s: float = ...) -> Any: ...


class LimboLoad(msgspec.Struct, frozen=True, kw_only=True, tag="limbo"):
    """So many writers, for so long. `number` names the load's space."""

    load: str
    number: int
    scenario: str
    writers: int
    seconds: float
    warmup_s: float
    value_bytes: int
    timeout_s: float


class Confirmation(msgspec.Struct, frozen=True, array_like=True):
    """A transaction that its writer was told is confirmed: it has to be on every node."""

    writer: int
    turn: int
    position: int


def space_of(number: int) -> str:
    """The space of the load of this number."""
    return f"load-{number}"


def key_of(writer: int, turn: int) -> bytes:
    """No two transactions of a load have the same."""
    return b"%d.%d" % (writer, turn)


def value_of(writer: int, turn: int, value_bytes: int) -> bytes:
    """What the key must hold: as long as asked for, and no other key's."""
    return key_of(writer, turn).ljust(value_bytes, b".")


def answer_of(error: RaftkvError) -> str:
    """The benchmark log's word for an error."""
    name = error.code.removeprefix("limbo_")
    return name if name in LIMBO_RESULTS else outcome_of(error)


async def write_until(
    limbo: LimboLike,
    writers: Iterable[int],
    until_s: float,
    write: WriteOf,
    note: Note,
    clock: Clock,
    timeout_s: float,
) -> None:
    """Runs the writers until the clock shows `until_s`, and each to its last answer."""
    await asyncio.gather(
        *(_writer(limbo, each, until_s, write, note, clock, timeout_s) for each in writers)
    )


async def _writer(
    limbo: LimboLike,
    number: int,
    until_s: float,
    write: WriteOf,
    note: Note,
    clock: Clock,
    timeout_s: float,
) -> None:
    submit, now, turn = limbo.submit, clock.now, 0
    began = now()
    while began < until_s:
        outcome, position = "ok", None
        try:
            receipt = await submit([write(number, turn)], wait="complete", timeout_s=timeout_s)
        except RaftkvError as error:
            outcome, position = answer_of(error), getattr(error, "position", None)
        else:
            assert receipt.state == "confirmed", receipt
            position = receipt.position
        ended = now()
        note(number, turn, began, ended, outcome, position)
        turn += 1
        began = ended
        if outcome != "ok":
            await clock.sleep(BACK_OFF_S)
            began = now()


class LimboSeat(msgspec.Struct, frozen=True):
    """The constant part of the rows, and the role of the writers' node at the moment."""

    run: str
    layout: str
    node: str
    role: Callable[[], str]


class LimboWriters:
    """The writers of one node: `start` a load, then `over` waits for its end."""

    def __init__(
        self,
        limbo: LimboLike,
        make: Callable[[str, bytes, bytes], Any],
        seat: LimboSeat,
        clock: Clock,
        sink: Callable[[Row], None],
    ) -> None:
        """`make` makes the plugin's write of a space, a key and a value."""
        self._limbo = limbo
        self._make = make
        self._seat = seat
        self._clock = clock
        self._sink = sink
        self._task: asyncio.Task[None] | None = None
        self._confirmed: list[Confirmation] = []
        self.tally = Tally()

    def start(self, load: LimboLoad) -> None:
        """Sends the writers off."""
        assert self._task is None, "the last load is still under way"
        self.tally = Tally()
        self._confirmed = []
        self._task = asyncio.get_running_loop().create_task(self._play(load))

    async def over(self) -> Tally:
        """The tally, once every writer has its last answer. Raises what a writer failed with."""
        assert self._task is not None, "no load was started"
        task, self._task = self._task, None
        await task
        return self.tally

    @property
    def confirmed(self) -> Sequence[Confirmation]:
        """What the last load's writers were told is confirmed, the warm-up's too."""
        return self._confirmed

    async def _play(self, load: LimboLoad) -> None:
        opens = self._clock.now() + load.warmup_s
        wall_us = self._clock.wall_us() - round(self._clock.now() * 1e6)
        space, size, make, seat = space_of(load.number), load.value_bytes, self._make, self._seat

        def write(writer: int, turn: int) -> Any:
            return make(space, key_of(writer, turn), value_of(writer, turn, size))

        def note(
            writer: int, turn: int, began: float, ended: float, outcome: str, position: int | None
        ) -> None:
            phase = "warmup" if began < opens else "load"
            duration_us = max(0, round((ended - began) * 1e6))
            self._sink(
                Row(
                    seat.run, seat.layout, load.scenario, phase, "none", seat.node, seat.role(),
                    "submit", f"w{writer}", 1, wall_us + round(began * 1e6), duration_us, outcome,
                    index=position, load=load.load,
                )
            )  # fmt: skip
            if outcome == "ok":
                assert position is not None
                self._confirmed.append(Confirmation(writer, turn, position))
            if phase == "load":
                self.tally.outcomes[outcome] = self.tally.outcomes.get(outcome, 0) + 1
                if outcome == "ok":
                    self.tally.add_duration(duration_us)

        await write_until(
            self._limbo, range(load.writers), opens + load.seconds, write, note, self._clock,
            load.timeout_s,
        )  # fmt: skip
