"""One consumer as its node has it: whether it goes on, and commands that are sent in its name.

A consumer ends when it is closed, when its node begins a new life, when its topic or subscription
is deleted, or when nobody can say any more what became of one of its commands: rather than hold
messages that nobody knows of it is closed then, and they go to others. To end is final. Nothing
here decides that: the log says so, or has been told so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from raftkv.errors import NotApplied, OutcomeUnknown, Refused, Stopped, TooLarge
from raftkv.plugin import RETRY_FIRST_S, RETRY_MAX_S, Host, Lost, Proposer, View

from .commands import Detach
from .errors import ConsumerEnded
from .refusals import ConsumerGone, NotYourConsumer
from .rows import Consumer as ConsumerRow
from .rows import Kind, Sub, Topic
from .waiting import RowKey

__all__ = ["ConsumerLife"]


class ConsumerLife:
    """`on_end` is called once, when the consumer has ended."""

    def __init__(self, host: Host, proposer: Proposer, topic: str, sub: str, consumer: int) -> None:
        self.host = host
        self.proposer = proposer
        self.topic = topic
        self.sub = sub
        self.id = consumer
        self.ended = False
        #: It is being closed: nothing is handed out any more.
        self.closing = False
        #: Its node has stopped: what it has is out of date.
        self.stopped = False
        self.on_end: Callable[[], None] = lambda: None
        row: ConsumerRow | None = host.view().table("consumers").get(consumer)
        #: 0: it was over before this node knew of it.
        self.topic_id = 0 if row is None else row.topic
        self.sub_id = 0 if row is None else row.sub
        self.kind: Kind = "exclusive" if row is None else row.kind
        self.name = "" if row is None else row.name
        self.priority = 0 if row is None else row.priority

    @property
    def rows(self) -> tuple[RowKey, ...]:
        """Those in which everything shows that it may wait for."""
        return (
            ("topics", self.topic),
            ("subs", (self.topic_id, self.sub)),
            ("consumers", self.id),
        )

    def state(self, view: View) -> tuple[Topic, Sub] | None:
        """Its topic and subscription; None: it has ended, as far as this node knows."""
        if self.ended:
            return None
        row: ConsumerRow | None = view.table("consumers").get(self.id)
        if row is None or row.ended_ms or row.incarnation != self.host.incarnation:
            return None
        topic: Topic | None = view.table("topics").get(self.topic)
        sub: Sub | None = view.table("subs").get((self.topic_id, self.sub))
        if topic is None or topic.id != self.topic_id or sub is None or sub.id != self.sub_id:
            return None
        return topic, sub

    def require(self, view: View) -> tuple[Topic, Sub]:
        """Its topic and subscription. Raises `ConsumerEnded`."""
        state = self.state(view)
        if state is None:
            self.end()
            raise ConsumerEnded(self.id)
        return state

    def receiving(self, view: View) -> tuple[Topic, Sub]:
        """The same, while messages may be handed out."""
        if self.stopped:
            raise Stopped("this node stops")
        if self.closing:
            raise ConsumerEnded(self.id)
        return self.require(view)

    def look(self) -> None:
        """The node has other tables, or a new life: has it ended?"""
        if not self.ended and self.state(self.host.view()) is None:
            self.end()

    async def ask(self, command: msgspec.Struct, again: Callable[[], bool]) -> Any:
        """The command's result, once its outcome is known, however long that takes.

        While nothing has happened it is proposed again, if `again` says so. Raises `Refused` kinds,
        `ConsumerEnded` among them, `NotApplied` kinds (nothing happened), and OutcomeUnknown when
        nobody can say; then the consumer has ended.
        """
        delay_s = RETRY_FIRST_S
        while True:
            self.require(self.host.view())
            try:
                return await self.proposer.once(command)
            except (ConsumerGone, NotYourConsumer):
                self.end()
                raise ConsumerEnded(self.id) from None
            except Refused as error:
                self.look()
                if self.ended:
                    raise ConsumerEnded(self.id) from error
                raise
            except Lost:
                self.abandon()
                raise
            except (TooLarge, Stopped):
                raise
            except NotApplied:
                self.require(self.host.view())
                if not again():
                    raise
            await self.host.runtime.sleep(delay_s)
            delay_s = min(2 * delay_s, RETRY_MAX_S)

    def end(self) -> None:
        """It has ended."""
        if not self.ended:
            self.ended = True
            self.on_end()

    def abandon(self) -> None:
        """End it, because nobody knows what became of one of its commands."""
        if not self.ended:
            self.end()
            self.host.spawn(self.detach(), "detach a consumer")

    async def detach(self) -> None:
        """Have the log end it, in this life of the node; it may have ended already."""
        delay_s = RETRY_FIRST_S
        while not self._is_over():
            try:
                await self.proposer.once(Detach(self.id))
            except (Stopped, Refused):
                return
            except (NotApplied, OutcomeUnknown) as error:
                name = type(error).__name__
                self.host.log.debug("subscriptions: detaching a consumer waits: %s", name)
            await self.host.runtime.sleep(delay_s)
            delay_s = min(2 * delay_s, RETRY_MAX_S)

    def _is_over(self) -> bool:
        row: ConsumerRow | None = self.host.view().table("consumers").get(self.id)
        return row is None or row.ended_ms != 0 or row.incarnation != self.host.incarnation
