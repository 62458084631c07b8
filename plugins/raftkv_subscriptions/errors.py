"""What callers on a node can get beside the refusals of the log (`refusals.py`).

Split by what the caller may do next:

    NotApplied           nothing happened and nothing will
        NotSent              the call waited for its turn until its time was over
    OutcomeUnknown       nothing is known, and the call has decided nothing
        StillUnderWay        the command goes on
    Refused              it will be refused again
        ConsumerEnded        open a new consumer
        PositionTrimmed      the reader's next message is gone: seek to what is there
        TooManyNacked        acknowledge some of them first

The refusals here are a node's own: they are never in the log, but what is to be done is the same.
"""

from __future__ import annotations

from raftkv.errors import NotApplied, OutcomeUnknown, Refused

__all__ = ["ConsumerEnded", "NotSent", "PositionTrimmed", "StillUnderWay", "TooManyNacked"]


class NotSent(NotApplied):
    """The time was over before the command's turn came: earlier ones go on."""

    code = "subscriptions_not_sent"

    def __init__(self) -> None:
        super().__init__(
            "earlier commands of this node took all the time: nothing was sent, try again"
        )


class StillUnderWay(OutcomeUnknown):
    """The time was over while the command was under way: it goes on.

    A publication may be in the topic later, or never. An acknowledgement may be repeated.
    """

    code = "subscriptions_still_under_way"

    def __init__(self) -> None:
        super().__init__("the command is under way and goes on; nobody has said how it ends")


class ConsumerEnded(Refused):
    """It was closed, its node began a new life, or its topic or subscription was deleted.

    What it had received and not acknowledged is delivered again, to others or to a new one.
    """

    code = "subscriptions_consumer_ended"

    def __init__(self, consumer: int) -> None:
        super().__init__(consumer)
        self.consumer = consumer

    def __str__(self) -> str:
        return (
            f"the consumer {self.consumer} has ended: open a new one. What it had not acknowledged "
            "is delivered again"
        )


class PositionTrimmed(Refused):
    """Retention has removed the message that a reader wanted next. `first`: the oldest one kept."""

    code = "subscriptions_position_trimmed"

    def __init__(self, topic: str, position: int, first: int) -> None:
        super().__init__(topic, position, first)
        self.topic = topic
        self.position = position
        self.first = first

    def __str__(self) -> str:
        return (
            f"retention of {self.topic!r} has removed the position {self.position}: seek to "
            f"{self.first}, the first one that is kept, or use a subscription, which retention "
            "waits for"
        )


class TooManyNacked(Refused):
    """Of exclusive and failover subscriptions a node keeps what comes again: the setting
    unacked_max bounds it."""

    code = "subscriptions_too_many_nacked"

    def __init__(self, sub: str, limit: int) -> None:
        super().__init__(sub, limit)
        self.sub = sub
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"{self.limit} messages of {self.sub!r} were negatively acknowledged and wait for an "
            "acknowledgement: acknowledge some of them first, or seek back"
        )
