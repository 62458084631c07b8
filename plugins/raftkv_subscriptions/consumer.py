"""A consumer of a subscription, as a program has it.

    async with subs.consumer("orders", "billing", kind="failover") as consumer:
        async for message in consumer:
            ...
            await consumer.ack(message)

It belongs to a life of its node, and ends with it. What it received and did not acknowledge is
delivered again then: at least once is promised, in the order of positions for exclusive and
failover ones. A call may be cancelled, or may stop waiting (`timeout_s`, seconds): that decides
nothing. What has begun goes on; messages that were taken for a caller who had left are given back.

Where messages come from is in `consumer_local.py` (this node's copy) and `consumer_shared.py` (the
log); what is said of them in `consumer_settling.py`; whether it goes on in `consumer_life.py`.
Messages that were had ahead for a loop are looked at once more before they are handed out: what is
not wanted any more, as far as this node knows, is not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from raftkv.errors import NotApplied, OutcomeUnknown, RaftkvError
from raftkv.plugin import View
from raftkv.validation import checked

from .commands import Sought
from .consumer_local import LocalSource
from .consumer_settling import Settling
from .consumer_shared import SharedSource
from .errors import ConsumerEnded
from .line import TIMEOUT_S
from .reading import Received, Where, seek
from .refusals import NotCumulative
from .rows import INT_MAX, ROWS_MAX, Kind, Message, size_of

if TYPE_CHECKING:
    from .consumer_life import ConsumerLife
    from .counting import Counters
    from .waiting import Waiting

__all__ = ["PREFETCH", "Consumer"]

#: Messages that a loop has ahead: enough to hide a round through the log.
PREFETCH = 100


class _Source(Protocol):
    """Where messages come from."""

    async def receive(
        self, count: int, deadline: float | None, bytes_max: int, timeout_s: float | None
    ) -> tuple[Received, ...]: ...

    def keeps(self, view: View, message: Received) -> bool: ...

    def end(self) -> None: ...

    def stop(self) -> None: ...


@checked
class Consumer:
    """Get one from `subs.consumer(...)`. It belongs to the node's event loop.

    Besides what is said there, every method raises `ConsumerEnded` once it has ended.
    """

    def __init__(
        self,
        life: ConsumerLife,
        waiting: Waiting,
        counters: Counters,
        prefetch: int,
        bytes_max: int,
    ) -> None:
        self._life = life
        self._counters = counters
        self._prefetch = prefetch
        self._bytes_max = bytes_max
        self._settling = Settling(life, counters)
        self._local: LocalSource | None = None
        self._source: _Source
        if life.kind == "shared":
            self._source = SharedSource(life, waiting, counters, self._let_go)
        else:
            self._source = self._local = LocalSource(life, waiting, counters)
        #: The epoch in which this consumer received messages last; None: it has received none.
        self._epoch: int | None = None
        #: Had ahead by a loop, and not handed out.
        self._ahead: deque[Received] = deque()
        life.on_end = self._ended
        #: Called when it has ended, by whoever keeps the node's consumers.
        self.on_end: Callable[[], object] = lambda: None

    # --- what it is ---

    @property
    def id(self) -> int:
        """Its number, the same on all nodes of the region."""
        return self._life.id

    @property
    def topic(self) -> str:
        return self._life.topic

    @property
    def sub(self) -> str:
        return self._life.sub

    @property
    def kind(self) -> Kind:
        return self._life.kind

    @property
    def name(self) -> str:
        """What it was called when it was opened."""
        return self._life.name

    @property
    def ended(self) -> bool:
        """Whether it was closed, or has ended, as far as this node knows. Final."""
        self._life.look()
        return self._life.ended or self._life.closing

    @property
    def active(self) -> bool:
        """Whether it gets messages now: of a failover subscription only one does."""
        if self.ended:
            return False
        _, sub = self._life.require(self._life.host.view())
        return self.kind == "shared" or sub.active == self.id

    # --- receiving ---

    async def receive(
        self,
        count: int = 1,
        *,
        wait_s: float | None = None,
        bytes_max: int = 0,
        timeout_s: float | None = TIMEOUT_S,
    ) -> tuple[Received, ...]:
        """The next messages, `count` at most.

        Waits up to `wait_s` for the first one (None: for ever, 0: not at all); () when there was
        none. `bytes_max` bounds what comes beyond the first, 0: it does not. `timeout_s` is for the
        log's answer, which shared subscriptions need; after it StillUnderWay: what was taken goes
        back. A time without a leader counts as one without messages, up to `wait_s`.
        """
        if not 1 <= count <= ROWS_MAX:
            raise ValueError(f"count is 1 to {ROWS_MAX} messages")
        if not 0 <= bytes_max <= INT_MAX:
            raise ValueError("bytes_max is a number of bytes, or 0 for no limit")
        deadline = None
        if wait_s is not None:
            deadline = self._life.host.runtime.monotonic() + max(0.0, wait_s)
        got = self._from_ahead(count, bytes_max)
        if not got:
            got = await self._source.receive(count, deadline, bytes_max, timeout_s)
        return self._handed_out(got)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Received:
        """The next message, however long that takes. Ends when the consumer is closed.

        Raises `ConsumerEnded` when it was ended by something else.
        """
        while True:
            try:
                got = self._from_ahead(1)
                if got:
                    return self._handed_out(got)[0]
                more = await self._source.receive(self._prefetch, None, self._bytes_max, None)
            except ConsumerEnded:
                if self._life.closing:
                    raise StopAsyncIteration from None
                raise
            self._ahead.extend(more)

    def _handed_out(self, got: tuple[Received, ...]) -> tuple[Received, ...]:
        if got:
            self._epoch = got[-1].epoch
        return got

    def _from_ahead(self, count: int, bytes_max: int = 0) -> tuple[Received, ...]:
        view = self._life.host.view()
        self._life.receiving(view)
        got: list[Received] = []
        size = 0
        while self._ahead and len(got) < count:
            message = self._ahead.popleft()
            if not self._source.keeps(view, message):
                continue
            if bytes_max:
                size += size_of(Message(message.body, message.key, message.headers))
                if size > bytes_max and got:
                    self._ahead.appendleft(message)
                    break
            got.append(message)
        return tuple(got)

    # --- settling ---

    async def ack(
        self,
        *messages: Received | int,
        epoch: int | None = None,
        timeout_s: float | None = TIMEOUT_S,
    ) -> int:
        """Done with these messages (or positions); the mark then: nothing up to it is wanted.

        What was handed out before the subscription was sought is passed over: a seek back means
        that it shall come again. The log compares the epochs, so this holds for a seek that is
        under way, too. `epoch`: of what is given as positions; None: that of the messages which
        this consumer received last. Raises `UnknownPosition`, `TooManyRanges`, and OutcomeUnknown
        after `timeout_s`: it goes on, and may be said again.
        """
        current, positions = self._current(messages, epoch)
        if not positions:
            _, sub = self._life.require(self._life.host.view())
            return sub.mark
        mark = await self._settling.ack(positions, current, timeout_s)
        if self._local is not None:
            self._local.acknowledged(positions)
        return mark

    async def ack_to(
        self,
        message: Received | int,
        *,
        epoch: int | None = None,
        timeout_s: float | None = TIMEOUT_S,
    ) -> int:
        """Done with all messages up to this one; the mark then. As `ack`.

        Raises `NotCumulative` for shared subscriptions.
        """
        if self.kind == "shared":
            raise NotCumulative(self.sub)
        current, positions = self._current([message], epoch)
        if not positions:
            _, sub = self._life.require(self._life.host.view())
            return sub.mark
        return await self._settling.ack_to(positions[0], current, timeout_s)

    async def nack(
        self,
        *messages: Received | int,
        epoch: int | None = None,
        timeout_s: float | None = TIMEOUT_S,
    ) -> int:
        """Have these delivered again; how many will be because of this.

        Shared: they are given back, and go to whoever asks first. Else: to this consumer, after
        what is there now. What was handed out before the subscription was sought is passed over,
        by the log as well; `epoch` as for `ack`. Raises `TooManyNacked`.
        """
        current, positions = self._current(messages, epoch)
        if self._local is not None:
            return self._local.nack(self._life.host.view(), positions)
        return await self._settling.release(positions, current, timeout_s) if positions else 0

    async def seek(
        self,
        where: int | Where | None = None,
        *,
        at_ms: int | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Sought:
        """Go on elsewhere: for all consumers of the subscription. See `SubscriptionsApi.seek`."""
        life = self._life
        life.require(life.host.view())
        deadline = life.host.runtime.monotonic() + timeout_s
        return await seek(life.host, life.proposer, self.topic, self.sub, where, at_ms, deadline)

    def _current(
        self, messages: Iterable[Received | int], epoch: int | None
    ) -> tuple[int, list[int]]:
        """The epoch, and the positions without those that were handed out before a seek.

        `epoch`: of what is given as positions; None: that of what was received last.
        """
        _, sub = self._life.require(self._life.host.view())
        if self._life.closing:
            raise ConsumerEnded(self.id)
        if epoch is None:
            epoch = sub.epoch if self._epoch is None else self._epoch
        positions: list[int] = []
        stale = 0
        for message in messages:
            if isinstance(message, int):
                position, delivered = message, epoch
            elif message.topic != self.topic:
                raise ValueError(f"this consumer is of {self.topic!r}, not of {message.topic!r}")
            else:
                position, delivered = message.position, message.epoch
            if not 1 <= position <= INT_MAX:
                raise ValueError("positions begin with 1")
            if delivered == sub.epoch:
                positions.append(position)
            else:
                stale += 1
        self._counters.add("stale_acks", stale)
        return sub.epoch, positions

    def _let_go(self, positions: Sequence[int], epoch: int) -> None:
        """It holds these, delivered in that epoch, and nobody wants them any more."""
        self._life.host.spawn(self._released(positions, epoch), "let go of messages")

    async def _released(self, positions: Sequence[int], epoch: int) -> None:
        with suppress(RaftkvError):  # they go with the consumer
            await self._settling.release(positions, epoch, None)

    # --- the end ---

    async def close(self, *, timeout_s: float | None = TIMEOUT_S) -> None:
        """End it: what it holds goes back. It is decided with the call; what was said of messages
        before is done first. Raises OutcomeUnknown after `timeout_s`: it goes on."""
        if self._life.ended or self._life.closing:
            return
        self._life.closing = True
        self._ahead.clear()
        self._source.end()
        await self._settling.detach(timeout_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.close()
        except (NotApplied, OutcomeUnknown) as late:
            # It goes on, and ends with this node at the latest.
            name = type(late).__name__
            self._life.host.log.debug("subscriptions: closing a consumer: %s", name)

    def look(self) -> None:
        """The node has a new life, or other tables: has it ended?"""
        self._life.look()

    def stop(self) -> None:
        """The node stops."""
        self._life.stopped = True
        self._settling.stop()
        self._source.stop()

    def _ended(self) -> None:
        """It has ended, by whomever."""
        if not self._life.closing:
            self._counters.add("consumers_ended")
        self._ahead.clear()
        self._source.end()
        self._settling.end(ConsumerEnded(self.id))
        self.on_end()
