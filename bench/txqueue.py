"""Transactions of the queues (plugin `txqueue`) under load: producers inside one node.

A producer is a closed loop with a session of its own and one transaction outstanding: it publishes
a batch and commits it. The ways to do that are those of `TXQUEUE_WAYS`:

    tx     a TX: the session's own transaction, committed at once
    dtx1   a branch (XA): start, end, commit in one phase
    dtx2   a branch: start, end, prepare, commit

A transaction's time is from its first publication to the answer of its commit. Its messages go to
two queues in turns, so that nearly every one is a transaction over both; each has a body that no
other has. What a producer was told is committed must afterwards be in the queues of every node,
each message once, a transaction's messages side by side, and those of one producer in their order;
of what was not committed there must be all or nothing.

`bench peers rabbitmq` uses the same producers with a single queue (`bench.txqueue_asked`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol

import msgspec

from bench.clock import Clock
from bench.limbo import BACK_OFF_S, LimboSeat
from bench.live import Tally
from bench.scenarios import outcome_of
from bench.schema import TXQUEUE_RESULTS, Row
from raftkv.errors import RaftkvError

__all__ = [
    "QUEUES",
    "Batch",
    "Commitment",
    "Content",
    "Found",
    "Producing",
    "TxQueueLike",
    "TxqueueLoad",
    "TxqueueProducers",
    "answer_of",
    "batch_of",
    "body_of",
    "judge",
    "produce_until",
    "queues_of",
    "transactor",
]

QUEUES = 2
"""Queues of a load of the benchmark log."""

_XID_FORMAT = 0x62656E
"""A format of our own: no other coordinator's branches are among them."""

Batch = Sequence[tuple[str, list[Any]]]
"""What a transaction publishes: messages by queue."""

BatchOf = Callable[[int, int], Batch]
"""The batch of the producer of this number in that turn."""

Note = Callable[[int, int, float, float, str, int | None], None]
"""Of each transaction: producer, turn, when it began and ended, the answer, the log's index."""

Transact = Callable[[int, Batch], Awaitable[tuple[str, int | None]]]
"""Do the batch of this turn as one transaction; the answer, and the index of its entry."""


class TxQueueLike(Protocol):
    """What is used of a `raftkv_txqueue` TxQueueApi."""

    dtx: Any

    def session(self, kind: Any = ..., *, timeout_s: float = ...) -> Any: ...


class TxqueueLoad(msgspec.Struct, frozen=True, kw_only=True, tag="txqueue"):
    """So many producers, for so long. `number` names the load's queues."""

    load: str
    number: int
    scenario: str
    way: str
    batch: int
    producers: int
    seconds: float
    warmup_s: float
    value_bytes: int
    timeout_s: float


class Commitment(msgspec.Struct, frozen=True, array_like=True):
    """A transaction that its producer was told is committed: it has to be on every node."""

    producer: int
    turn: int


class Found(msgspec.Struct, frozen=True):
    """What a node has of a load.

    `messages`: of committed transactions that are there once. `surplus`: all others. `torn`:
    transactions, committed or not, of which there is a part only. `displaced`: messages that are
    not beside the one before them of their transaction, or stand before an earlier transaction of
    their producer.
    """

    messages: int
    surplus: int
    torn: int
    displaced: int


def queues_of(number: int) -> tuple[str, ...]:
    """The queues of the load of this number."""
    return tuple(f"load-{number}-{letter}" for letter in "abcdefgh"[:QUEUES])


def body_of(producer: int, turn: int, place: int, value_bytes: int) -> bytes:
    """Of the message at this place of a transaction: as long as asked for, and no other's."""
    return (b"%d.%d.%d" % (producer, turn, place)).ljust(value_bytes, b".")


def batch_of(
    load: TxqueueLoad, producer: int, turn: int, make: Callable[[bytes], Any]
) -> list[tuple[str, list[Any]]]:
    """The batch of that turn: its messages go to the load's queues in turns."""
    queues = queues_of(load.number)
    parts: dict[str, list[Any]] = {}
    for place in range(load.batch):
        queue = queues[(turn + place) % len(queues)]
        parts.setdefault(queue, []).append(make(body_of(producer, turn, place, load.value_bytes)))
    return list(parts.items())


def answer_of(error: RaftkvError) -> str:
    """The benchmark log's word for an error."""
    name = error.code.removeprefix("txqueue_")
    return name if name in TXQUEUE_RESULTS else outcome_of(error)


def _never() -> bool:
    return False


class Producing(msgspec.Struct, frozen=True, kw_only=True):
    """What a closed loop is made of. `name`: tells the xids of one loop from those of others.

    It ends at `until_s`, or when there is `enough`.
    """

    name: str
    way: str
    until_s: float
    timeout_s: float
    batch: BatchOf
    note: Note
    enough: Callable[[], bool] = _never


def transactor(txq: TxQueueLike, asked: Producing, producer: int, session: Any) -> Transact:
    """The way to do a transaction in that session, which is of the kind for it."""
    timeout_s = asked.timeout_s

    async def tx(_turn: int, batch: Batch) -> tuple[str, int | None]:
        for queue, messages in batch:
            await session.publish(queue, messages)
        receipt = await session.commit(timeout_s=timeout_s)
        return "ok", receipt.index

    # Here, because only a node with the plugin has it at hand.
    from raftkv_txqueue import XaStatus, Xid

    async def dtx(turn: int, batch: Batch) -> tuple[str, int | None]:
        xid = Xid(_XID_FORMAT, b"%s.%d.%d" % (asked.name.encode(), producer, turn))
        await session.start(xid)
        for queue, messages in batch:
            await session.publish(queue, messages)
        await session.end(xid)
        status = XaStatus.OK
        if asked.way == "dtx2":
            status = await txq.dtx.prepare(xid, timeout_s=timeout_s)
        if status == XaStatus.OK:
            one_phase = asked.way == "dtx1"
            status = await txq.dtx.commit(xid, one_phase=one_phase, timeout_s=timeout_s)
        return "ok" if status == XaStatus.OK else "rolled_back", None

    return tx if asked.way == "tx" else dtx


async def produce_until(
    txq: TxQueueLike, producers: Iterable[int], asked: Producing, clock: Clock, sessions: list[Any]
) -> None:
    """Runs the producers until the clock shows `asked.until_s`, and each to its last answer.

    `sessions`: one for each, open.
    """
    await asyncio.gather(
        *(
            _producer(txq, each, asked, clock, session)
            for each, session in zip(producers, sessions, strict=True)
        )
    )


async def _producer(
    txq: TxQueueLike, number: int, asked: Producing, clock: Clock, session: Any
) -> None:
    transact = transactor(txq, asked, number, session)
    now, turn = clock.now, 0
    batch = asked.batch(number, turn)
    began = now()
    while began < asked.until_s and not asked.enough():
        index: int | None = None
        try:
            outcome, index = await transact(turn, batch)
        except RaftkvError as error:
            outcome = answer_of(error)
        ended = now()
        asked.note(number, turn, began, ended, outcome, index)
        turn += 1
        if outcome != "ok":
            # It may have been refused at once; and what is left of a branch goes with its session.
            await clock.sleep(BACK_OFF_S)
            session = await _another(txq, session, asked)
            transact = transactor(txq, asked, number, session)
        batch = asked.batch(number, turn)
        began = now()


async def _another(txq: TxQueueLike, session: Any, asked: Producing) -> Any:
    """A new session for one in which something went wrong; the old one until there is one."""
    with contextlib.suppress(RaftkvError):  # it has ended, or it ends with its node
        await session.close(timeout_s=asked.timeout_s)
    try:
        return await txq.session(session.kind, timeout_s=asked.timeout_s)
    except RaftkvError:
        return session


class TxqueueProducers:
    """The producers of one node: `start` a load, then `over` waits for its end."""

    def __init__(
        self,
        txq: TxQueueLike,
        make: Callable[[bytes], Any],
        seat: LimboSeat,
        clock: Clock,
        sink: Callable[[Row], None],
    ) -> None:
        """`make` makes the plugin's message of a body."""
        self._txq = txq
        self._make = make
        self._seat = seat
        self._clock = clock
        self._sink = sink
        self._task: asyncio.Task[None] | None = None
        self._committed: list[Commitment] = []
        self.tally = Tally()

    async def start(self, load: TxqueueLoad) -> None:
        """Opens the sessions and sends the producers off."""
        assert self._task is None, "the last load is still under way"
        self.tally = Tally()
        self._committed = []
        kind = "tx" if load.way == "tx" else "dtx"
        sessions = [
            await self._txq.session(kind, timeout_s=load.timeout_s) for _ in range(load.producers)
        ]
        self._task = asyncio.get_running_loop().create_task(self._play(load, sessions))

    async def over(self) -> Tally:
        """The tally, once every producer has its last answer. Raises what one failed with."""
        assert self._task is not None, "no load was started"
        task, self._task = self._task, None
        await task
        return self.tally

    @property
    def committed(self) -> Sequence[Commitment]:
        """What the last load's producers were told is committed, the warm-up's too."""
        return self._committed

    async def _play(self, load: TxqueueLoad, sessions: list[Any]) -> None:
        opens = self._clock.now() + load.warmup_s
        wall_us = self._clock.wall_us() - round(self._clock.now() * 1e6)
        make, seat = self._make, self._seat

        def batch(producer: int, turn: int) -> Batch:
            return batch_of(load, producer, turn, make)

        def note(
            producer: int, turn: int, began: float, ended: float, outcome: str, index: int | None
        ) -> None:
            phase = "warmup" if began < opens else "load"
            duration_us = max(0, round((ended - began) * 1e6))
            self._sink(
                Row(
                    seat.run, seat.layout, load.scenario, phase, "none", seat.node, seat.role(),
                    "commit", f"p{producer}", 1, wall_us + round(began * 1e6), duration_us,
                    outcome, index=index, load=load.load,
                )
            )  # fmt: skip
            if outcome == "ok":
                self._committed.append(Commitment(producer, turn))
            if phase == "load":
                self.tally.outcomes[outcome] = self.tally.outcomes.get(outcome, 0) + 1
                if outcome == "ok":
                    self.tally.add_duration(duration_us)

        asked = Producing(
            name=load.load, way=load.way, until_s=opens + load.seconds, timeout_s=load.timeout_s,
            batch=batch, note=note,
        )  # fmt: skip
        try:
            await produce_until(self._txq, range(load.producers), asked, self._clock, sessions)
        finally:
            await asyncio.gather(*(session.close() for session in sessions), return_exceptions=True)


Content = Sequence[bytes]
"""The bodies in a queue, in its order."""


def judge(
    load: TxqueueLoad, committed: Iterable[Commitment], contents: dict[str, Content]
) -> Found:
    """Compare what the queues of a node hold with what the producers were told."""
    told = {(each.producer, each.turn) for each in committed}
    counts: dict[bytes, int] = {}
    present: dict[tuple[int, int], int] = {}
    displaced = 0
    for bodies in contents.values():
        displaced += _displaced(bodies)
        for body in bodies:
            counts[body] = counts.get(body, 0) + 1
            producer, turn, _ = _parsed(body)
            present[producer, turn] = present.get((producer, turn), 0) + 1
    once = sum(
        counts.get(body_of(producer, turn, place, load.value_bytes)) == 1
        for producer, turn in told
        for place in range(load.batch)
    )
    torn = sum(count < load.batch for count in present.values())
    torn += sum(transaction not in present for transaction in told)
    return Found(once, sum(counts.values()) - once, torn, displaced)


def _displaced(bodies: Content) -> int:
    """Messages that do not follow the one before them as they must."""
    newest: dict[int, int] = {}
    displaced, before = 0, (-1, -1, -1)
    for body in bodies:
        producer, turn, place = _parsed(body)
        if (producer, turn) == before[:2]:
            # Side by side with its own: the queue got each QUEUES-th of them.
            displaced += place != before[2] + QUEUES
        else:
            displaced += place >= QUEUES or turn <= newest.get(producer, -1)
            newest[producer] = max(turn, newest.get(producer, -1))
        before = (producer, turn, place)
    return displaced


def _parsed(body: bytes) -> tuple[int, int, int]:
    producer, turn, place = body.rstrip(b".").split(b".")
    return int(producer), int(turn), int(place)
