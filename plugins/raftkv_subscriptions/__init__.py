"""Replicated subscriptions: topics in several regions, and consumers that move between them.

    from raftkv_subscriptions import Subscriptions

    subs = node.plugin(Subscriptions)                 # on every node, right after it has started
    await subs.declare("orders")
    await subs.publish("orders", b"a book")

    async with subs.consumer("orders", "billing", kind="failover", replicate=True) as consumer:
        async for order in consumer:
            ...
            await consumer.ack(order)

Each region is a cluster of its own, with its own log; messages go to the others behind it, in the
order of each region, once. Every message keeps the region where it was published and its number
there, so what was acknowledged means the same everywhere: a consumer that is opened in another
region goes on where this one left off, and never passes a message that nobody has acknowledged.

`rows.py` and `commands.py` have what is kept and the words of the log, `views.py` what the tables
mean; `api.py` is a program's side, `service.py` with `links/` what goes between regions.
docs/subscriptions.md is for users, docs/internals/subscriptions.md for whoever changes it.
"""

from .api import SubscriptionsApi
from .commands import (
    Acked,
    Declared,
    Deleted,
    Published,
    Sought,
    Subscribed,
)
from .consumer import Consumer
from .consumer_opening import Opening
from .errors import (
    ConsumerEnded,
    NotSent,
    PositionTrimmed,
    StillUnderWay,
    TooManyNacked,
)
from .options import LinkOptions, SubscriptionsOptions
from .plugin import Subscriptions
from .reader import Reader
from .reading import Read, Received
from .refusals import (
    BacklogFull,
    BadMessage,
    BadName,
    BatchTooLarge,
    CompactedFixed,
    ConsumerGone,
    EmptyBatch,
    KindDiffers,
    MessageTooLarge,
    NotAMember,
    NotCumulative,
    NotYourConsumer,
    OriginBehind,
    OutOfOrder,
    OwnRegion,
    RegionActive,
    RegionExcluded,
    RegionFixed,
    ReplicationDisabled,
    SubscriptionBusy,
    SubscriptionInUse,
    TooManyConsumers,
    TooManyKeys,
    TooManyRanges,
    TooManyRegions,
    TooManySubscriptions,
    TooManyTopics,
    TopicDiffers,
    TopicReplicated,
    UnknownPosition,
    UnknownRegion,
    UnknownSubscription,
    UnknownTopic,
    WrongKind,
)
from .rows import Message
from .status import (
    ConsumerStatus,
    LinkStatus,
    PendingStatus,
    RegionStatus,
    SubscriptionsStatus,
    SubStatus,
    TopicStatus,
)

__all__ = [
    "Acked",
    "BacklogFull",
    "BadMessage",
    "BadName",
    "BatchTooLarge",
    "CompactedFixed",
    "Consumer",
    "ConsumerEnded",
    "ConsumerGone",
    "ConsumerStatus",
    "Declared",
    "Deleted",
    "EmptyBatch",
    "KindDiffers",
    "LinkOptions",
    "LinkStatus",
    "Message",
    "MessageTooLarge",
    "NotAMember",
    "NotCumulative",
    "NotSent",
    "NotYourConsumer",
    "Opening",
    "OriginBehind",
    "OutOfOrder",
    "OwnRegion",
    "PendingStatus",
    "PositionTrimmed",
    "Published",
    "Read",
    "Reader",
    "Received",
    "RegionActive",
    "RegionExcluded",
    "RegionFixed",
    "RegionStatus",
    "ReplicationDisabled",
    "Sought",
    "StillUnderWay",
    "SubStatus",
    "Subscribed",
    "SubscriptionBusy",
    "SubscriptionInUse",
    "Subscriptions",
    "SubscriptionsApi",
    "SubscriptionsOptions",
    "SubscriptionsStatus",
    "TooManyConsumers",
    "TooManyKeys",
    "TooManyNacked",
    "TooManyRanges",
    "TooManyRegions",
    "TooManySubscriptions",
    "TooManyTopics",
    "TopicDiffers",
    "TopicReplicated",
    "TopicStatus",
    "UnknownPosition",
    "UnknownRegion",
    "UnknownSubscription",
    "UnknownTopic",
    "WrongKind",
]
