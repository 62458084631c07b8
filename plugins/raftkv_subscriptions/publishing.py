"""Publications of one node: those that wait go into the log together.

Per topic one command is under way, and what is published meanwhile goes with the next, in the order
of the calls. So a hundred programs that publish one message each take as many rounds through the
log as one that publishes a hundred. Topics do not wait for each other.

A command of several publications is refused as a whole. Then its halves are tried, in order, and so
on, until each has its own verdict: nobody suffers from another's mistake, one of a thousand costs a
few commands more, and a batch stays all or nothing. Two verdicts need no such trial: a topic that
does not exist has no room for anybody, and where so many bytes do not fit, more do not fit either,
so of a full topic each is tried by itself, but for those.

A caller whose time is over is told what is known: nothing was sent, or that it goes on. What was
never applied is sent again only for those who still wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

import msgspec

from raftkv.errors import NotApplied, Overloaded, Refused, Stopped, TooLarge
from raftkv.plugin import RETRY_FIRST_S, RETRY_MAX_S, Host, Proposer

from .commands import Publish, Published
from .counting import Counters
from .line import Job, Line
from .refusals import BacklogFull, UnknownTopic
from .rows import Message
from .topics import check_messages

__all__ = ["BYTES_MAX", "Outgoing", "Publishing", "messages_of"]

#: Bytes of messages that one node keeps for all those who wait with a publication: what a slow log
#: may hold up in memory.
BYTES_MAX: Final = 64 * 1024 * 1024

#: What may be published: a body, a message with key and headers, or several of these.
Outgoing = bytes | Message | Iterable[bytes | Message]


_Said = tuple[str, tuple[tuple[str, str], ...]]


def messages_of(what: Outgoing) -> tuple[Message, ...]:
    """What a caller gave, as messages. Raises TypeError for anything else."""
    if isinstance(what, (bytes, Message)):
        return (_message(what),)
    return tuple(_message(one) for one in what)


def _message(one: object) -> Message:
    body: object = one.body if isinstance(one, Message) else one
    if not isinstance(body, bytes):
        raise TypeError(f"a message is bytes or a Message, not {type(body).__name__}: encode it")
    if not isinstance(one, Message):
        return Message(body)
    if one.key or one.headers:
        try:
            msgspec.convert(msgspec.structs.astuple(one)[1:], _Said)
        except msgspec.ValidationError as error:
            raise TypeError(f"a key is a text, headers are pairs of texts: {error}") from None
    return one


class Publishing:
    """What waits to be published on one node."""

    def __init__(self, host: Host, proposer: Proposer, counters: Counters) -> None:
        self._host = host
        self._proposer = proposer
        self._counters = counters
        self._lines: dict[str, Line] = {}
        self._callers: dict[str, int] = {}
        self._bytes = 0
        self._stopped = False

    @property
    def waiting_bytes(self) -> int:
        """Of messages whose callers wait."""
        return self._bytes

    async def publish(
        self, topic: str, messages: tuple[Message, ...], timeout_s: float | None
    ) -> Published:
        """See `SubscriptionsApi.publish`."""
        if self._stopped:
            raise Stopped("this node stops")
        size = check_messages(self._host.view(), messages)
        if self._bytes + size > BYTES_MAX and self._bytes:
            raise Overloaded(
                f"{BYTES_MAX} bytes of messages wait on this node: await some publications first"
            )
        line = self._lines.get(topic)
        if line is None:
            work = partial(self._publish, topic)
            line = self._lines[topic] = Line(
                self._host, self._counters, "publish", {"publish": work}
            )
        self._bytes += size
        self._callers[topic] = self._callers.get(topic, 0) + 1
        try:
            done: Published = await line.do(
                "publish", messages, timeout_s, rows=len(messages), size=size
            )
        except BacklogFull:
            self._counters.add("backlog_refused")
            raise
        finally:
            self._bytes -= size
            self._callers[topic] -= 1
            if not self._callers[topic]:
                del self._callers[topic]
                self._forget(topic)
        return done

    async def publish_once(
        self, host: Host, topic: str, messages: tuple[Message, ...], timeout_s: float | None
    ) -> Published:
        """`publish` by a host that proposes under the number of a client's session.

        So in a command of its own, and not again: whoever repeats it does so under the number. It
        is not checked beforehand either: a repetition gets the first answer, whatever has changed.
        """
        try:
            done: Published = await host.propose(Publish(topic, messages), timeout_s=timeout_s)
        except BacklogFull:
            self._counters.add("backlog_refused")
            raise
        self._counters.add("publish_commands")
        self._counters.add("published", len(messages))
        return done

    def stop(self) -> None:
        """The node stops."""
        self._stopped = True
        for line in tuple(self._lines.values()):
            line.stop()

    def _forget(self, topic: str) -> None:
        """Names are the callers': a line is kept for what goes on only."""
        line = self._lines.get(topic)
        if line is not None and line.idle and topic not in self._callers:
            del self._lines[topic]

    # --- the work ---

    async def _publish(self, topic: str, jobs: Sequence[Job]) -> None:
        try:
            await self._each(topic, jobs)
        finally:
            # After this task's last step, when the line may be idle.
            self._host.runtime.call_soon(self._forget, topic)

    async def _each(self, topic: str, jobs: Sequence[Job]) -> None:
        """Together, and if that is refused in halves, until those are found that are."""
        try:
            await self._together(topic, jobs)
        except UnknownTopic as error:
            for job in jobs:
                job.fail(error)
        except (Refused, TooLarge) as error:
            if len(jobs) == 1:
                jobs[0].fail(error)
            elif isinstance(error, BacklogFull):
                await self._one_by_one(topic, jobs)
            else:
                half = len(jobs) // 2
                await self._each(topic, jobs[:half])
                await self._each(topic, jobs[half:])

    async def _one_by_one(self, topic: str, jobs: Sequence[Job]) -> None:
        too_large: int | None = None
        full: BacklogFull | None = None
        for job in jobs:
            if too_large is not None and full is not None and job.size >= too_large:
                job.fail(full)
                continue
            try:
                await self._together(topic, [job])
            except BacklogFull as error:
                too_large, full = job.size, error
                job.fail(error)
            except (Refused, TooLarge) as error:
                job.fail(error)

    async def _together(self, topic: str, jobs: Sequence[Job]) -> None:
        """As one command, until there is a verdict, for those who still wait for one."""
        delay_s = RETRY_FIRST_S
        while True:
            messages = tuple(message for job in jobs for message in job.part)
            try:
                done: Published = await self._proposer.once(Publish(topic, messages))
                break
            except (TooLarge, Stopped):
                raise
            except NotApplied:
                await self._host.runtime.sleep(delay_s)
                delay_s = min(2 * delay_s, RETRY_MAX_S)
                jobs = [job for job in jobs if job.waits]
                if not jobs:
                    return
        self._counters.add("publish_commands")
        self._counters.add("published", len(messages))
        first, seq = done.first, done.seq
        for job in jobs:
            count = len(job.part)
            job.succeed(Published(first, first + count - 1, done.origin, seq))
            first, seq = first + count, seq + count
