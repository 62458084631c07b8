"""The verdicts of replicated subscriptions that write nothing. What must be remembered is a result.

A refused command writes nothing at all: of a batch that is refused nothing is published, and of
what a link brings nothing is taken. The text of each says what to do next. None shows a body, a key
or a header of a message.
"""

from __future__ import annotations

from raftkv.errors import Refused

__all__ = [
    "REFUSALS",
    "BacklogFull",
    "BadMessage",
    "BadName",
    "BatchTooLarge",
    "CompactedFixed",
    "ConsumerGone",
    "EmptyBatch",
    "KindDiffers",
    "MessageTooLarge",
    "NotAMember",
    "NotCumulative",
    "NotYourConsumer",
    "OriginBehind",
    "OutOfOrder",
    "OwnRegion",
    "RegionActive",
    "RegionExcluded",
    "RegionFixed",
    "ReplicationDisabled",
    "SubscriptionBusy",
    "SubscriptionInUse",
    "TooManyConsumers",
    "TooManyKeys",
    "TooManyRanges",
    "TooManyRegions",
    "TooManySubscriptions",
    "TooManyTopics",
    "TopicDiffers",
    "TopicReplicated",
    "UnknownPosition",
    "UnknownRegion",
    "UnknownSubscription",
    "UnknownTopic",
    "WrongKind",
]


# --- topics ---------------------------------------------------------------------------------------


class UnknownTopic(Refused):
    """There is no topic of that name (any longer)."""

    code = "subscriptions_unknown_topic"

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic

    def __str__(self) -> str:
        return f"there is no topic {self.topic!r}: declare it first"


class BadName(Refused):
    """A name goes into paths and tables. `what`: "topic", "subscription", "region", "consumer"."""

    code = "subscriptions_bad_name"

    def __init__(self, what: str, name: str) -> None:
        super().__init__(what, name)
        self.what = what
        self.name = name

    def __str__(self) -> str:
        return (
            f"{self.name!r} cannot be the name of a {self.what}: take 1 to 255 of the characters "
            "A-Z a-z 0-9 _ . : - with one of the first four kinds in front"
        )


class TooManyTopics(Refused):
    """The setting topics_max."""

    code = "subscriptions_too_many_topics"

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.limit = limit

    def __str__(self) -> str:
        return f"there are {self.limit} topics: delete one, or raise the setting topics_max"


class TopicReplicated(Refused):
    """Other regions are active: they would bring it back."""

    code = "subscriptions_topic_replicated"

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic

    def __str__(self) -> str:
        return (
            f"{self.topic!r} is replicated: declare it with replicated false in every region, or "
            "exclude the other regions, then delete it"
        )


class CompactedFixed(Refused):
    """Whether a topic is compacted is said when it is made."""

    code = "subscriptions_compacted_fixed"

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic

    def __str__(self) -> str:
        return (
            f"{self.topic!r} exists and cannot change whether it is compacted: declare it as it "
            "was, or take another name"
        )


class TopicDiffers(Refused):
    """A topic exists with another limit than the one that is declared. `what`: which limit."""

    code = "subscriptions_topic_differs"

    def __init__(self, topic: str, what: str, declared: str, asked: str) -> None:
        super().__init__(topic, what, declared, asked)
        self.topic = topic
        self.what = what
        self.declared = declared
        self.asked = asked

    def __str__(self) -> str:
        return (
            f"the topic {self.topic!r} has {self.what} {self.declared}, not {self.asked}: declare "
            f"it without {self.what} to keep that, or with change=True (--change)"
        )


class BacklogFull(Refused):
    """The topic's `backlog_bytes_max`, in bytes. `backlog_bytes`: what counted; None: all that is
    kept, as at format 1."""

    code = "subscriptions_backlog_full"

    def __init__(self, topic: str, limit: int, backlog_bytes: int | None = None) -> None:
        if backlog_bytes is None:
            super().__init__(topic, limit)
        else:
            super().__init__(topic, limit, backlog_bytes)
        self.topic = topic
        self.limit = limit
        self.backlog_bytes = backlog_bytes

    def __str__(self) -> str:
        if self.backlog_bytes is not None:
            return (
                f"the backlog of {self.topic!r} has {self.backlog_bytes} bytes, its limit is "
                f"{self.limit}: let its subscriptions and regions catch up, delete or exclude "
                "those that will not, or declare a higher backlog_bytes_max"
            )
        return (
            f"{self.topic!r} has its {self.limit} bytes of messages: let its subscriptions and "
            "regions catch up, set a retention, or declare a higher backlog_bytes_max"
        )


class TooManyKeys(Refused):
    """The setting keys_max."""

    code = "subscriptions_too_many_keys"

    def __init__(self, topic: str, limit: int) -> None:
        super().__init__(topic, limit)
        self.topic = topic
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"{self.topic!r} has {self.limit} keys: publish empty bodies for keys that are no "
            "longer needed, or raise the setting keys_max"
        )


# --- messages -------------------------------------------------------------------------------------


class EmptyBatch(Refused):
    """A command without anything to do."""

    code = "subscriptions_empty_batch"

    def __str__(self) -> str:
        return "there is nothing to do in this command: give it at least one message"


class BatchTooLarge(Refused):
    """More than one entry of the log may touch. `what`: "rows" or "bytes"."""

    code = "subscriptions_batch_too_large"

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(what, limit)
        self.what = what
        self.limit = limit

    def __str__(self) -> str:
        return f"one command takes {self.limit} {self.what} at most: send several"


class MessageTooLarge(Refused):
    """The setting message_bytes_max."""

    code = "subscriptions_message_too_large"

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(size, limit)
        self.size = size
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"a message of {self.size} bytes: {self.limit} are allowed (the setting "
            "message_bytes_max). Split it, or store it elsewhere and send its address"
        )


class BadMessage(Refused):
    """Headers or a key that cannot be kept. `why` shows nothing of them."""

    code = "subscriptions_bad_message"
    text_places = (0,)

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def __str__(self) -> str:
        return f"this message cannot be kept: {self.why or 'its headers or its key'}"


# --- links ----------------------------------------------------------------------------------------


class OutOfOrder(Refused):
    """A message of `origin` came before the one that is `expected`: seqs have no gaps on a link."""

    code = "subscriptions_out_of_order"

    def __init__(self, origin: str, expected: int) -> None:
        super().__init__(origin, expected)
        self.origin = origin
        self.expected = expected

    def __str__(self) -> str:
        return (
            f"expected number {self.expected} of the region {self.origin!r}: open the link again, "
            "from what is here"
        )


class OriginBehind(Refused):
    """A region's numbers are behind what others have of it: it was built anew with its old name."""

    code = "subscriptions_origin_behind"

    def __init__(self, origin: str, seq: int, known: int) -> None:
        super().__init__(origin, seq, known)
        self.origin = origin
        self.seq = seq
        self.known = known

    def __str__(self) -> str:
        return (
            f"number {self.seq} of the region {self.origin!r} is known elsewhere, but it has only "
            f"come to {self.known}: if it was built anew, give it a new name, and remove the old "
            "one everywhere"
        )


# --- regions --------------------------------------------------------------------------------------


class UnknownRegion(Refused):
    """It was never added, or was removed."""

    code = "subscriptions_unknown_region"

    def __init__(self, region: str) -> None:
        super().__init__(region)
        self.region = region

    def __str__(self) -> str:
        return f"the region {self.region!r} is not known: add it first"


class RegionExcluded(Refused):
    """It was excluded; nothing is taken from it."""

    code = "subscriptions_region_excluded"

    def __init__(self, region: str) -> None:
        super().__init__(region)
        self.region = region

    def __str__(self) -> str:
        return f"the region {self.region!r} is excluded: include it again first"


class RegionActive(Refused):
    """Only an excluded region can be removed."""

    code = "subscriptions_region_active"

    def __init__(self, region: str) -> None:
        super().__init__(region)
        self.region = region

    def __str__(self) -> str:
        return f"the region {self.region!r} is active: exclude it first, then remove it"


class RegionFixed(Refused):
    """The numbers of messages bear the region's name."""

    code = "subscriptions_region_fixed"

    def __init__(self, region: str) -> None:
        super().__init__(region)
        self.region = region

    def __str__(self) -> str:
        return (
            f"this region has messages under the name {self.region!r}: keep it, or start a new "
            "cluster"
        )


class OwnRegion(Refused):
    """It is this region's own name."""

    code = "subscriptions_own_region"

    def __init__(self, region: str) -> None:
        super().__init__(region)
        self.region = region

    def __str__(self) -> str:
        return (
            f"{self.region!r} is the name of this region: name it otherwise before its first "
            "message, or the other one"
        )


class TooManyRegions(Refused):
    """Regions that a cluster, or origins that a topic can have."""

    code = "subscriptions_too_many_regions"

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"there are {self.limit} regions: remove one that is no longer there. If the messages "
            "of a topic come from as many, take a new topic: those of a removed region stay"
        )


# --- subscriptions --------------------------------------------------------------------------------


class UnknownSubscription(Refused):
    """The topic has no subscription of that name (any longer)."""

    code = "subscriptions_unknown_subscription"

    def __init__(self, topic: str, sub: str) -> None:
        super().__init__(topic, sub)
        self.topic = topic
        self.sub = sub

    def __str__(self) -> str:
        return f"{self.topic!r} has no subscription {self.sub!r}: subscribe first"


class TooManySubscriptions(Refused):
    """The setting subs_max."""

    code = "subscriptions_too_many_subscriptions"

    def __init__(self, topic: str, limit: int) -> None:
        super().__init__(topic, limit)
        self.topic = topic
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"{self.topic!r} has {self.limit} subscriptions: delete one, or raise the setting "
            "subs_max"
        )


class ReplicationDisabled(Refused):
    """The setting enabled is false."""

    code = "subscriptions_replication_disabled"

    def __str__(self) -> str:
        return (
            "replicated subscriptions are switched off here: set the setting enabled to true first"
        )


class SubscriptionBusy(Refused):
    """It is exclusive, and has a consumer."""

    code = "subscriptions_subscription_busy"

    def __init__(self, topic: str, sub: str, consumer: int) -> None:
        super().__init__(topic, sub, consumer)
        self.topic = topic
        self.sub = sub
        self.consumer = consumer

    def __str__(self) -> str:
        return (
            f"the exclusive subscription {self.sub!r} of {self.topic!r} has the consumer "
            f"{self.consumer}: close that one, or take the kind failover"
        )


class SubscriptionInUse(Refused):
    """It has consumers."""

    code = "subscriptions_subscription_in_use"

    def __init__(self, topic: str, sub: str, consumers: int) -> None:
        super().__init__(topic, sub, consumers)
        self.topic = topic
        self.sub = sub
        self.consumers = consumers

    def __str__(self) -> str:
        return (
            f"{self.sub!r} of {self.topic!r} has {self.consumers} consumers: close them, or use "
            "force"
        )


class KindDiffers(Refused):
    """It has consumers of another kind."""

    code = "subscriptions_kind_differs"

    def __init__(self, sub: str, kind: str) -> None:
        super().__init__(sub, kind)
        self.sub = sub
        self.kind = kind

    def __str__(self) -> str:
        return (
            f"the subscription {self.sub!r} is {self.kind}, and has consumers: use that kind, or "
            "close them first"
        )


class WrongKind(Refused):
    """The command is for subscriptions of another kind."""

    code = "subscriptions_wrong_kind"

    def __init__(self, sub: str, kind: str) -> None:
        super().__init__(sub, kind)
        self.sub = sub
        self.kind = kind

    def __str__(self) -> str:
        return (
            f"the subscription {self.sub!r} is {self.kind}: only consumers of shared ones take and"
            " release messages"
        )


class NotCumulative(Refused):
    """A consumer of a shared subscription does not have everything before a message."""

    code = "subscriptions_not_cumulative"

    def __init__(self, sub: str) -> None:
        super().__init__(sub)
        self.sub = sub

    def __str__(self) -> str:
        return f"{self.sub!r} is shared: acknowledge its messages one by one"


class TooManyRanges(Refused):
    """The setting ranges_max, or as many as one `AckTo` over holes may make."""

    code = "subscriptions_too_many_ranges"

    def __init__(self, sub: str, limit: int) -> None:
        super().__init__(sub, limit)
        self.sub = sub
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"more than {self.limit} ranges of acknowledged messages beyond the first gap of "
            f"{self.sub!r}: acknowledge the oldest ones first, a few at a time, or raise the "
            "setting ranges_max"
        )


class UnknownPosition(Refused):
    """No message has that position yet; `next` is the next one that is given."""

    code = "subscriptions_unknown_position"

    def __init__(self, topic: str, position: int, next: int) -> None:
        super().__init__(topic, position, next)
        self.topic = topic
        self.position = position
        self.next = next

    def __str__(self) -> str:
        return (
            f"{self.topic!r} has no position {self.position} yet, the next one is {self.next}: use"
            " positions that were received"
        )


# --- consumers ------------------------------------------------------------------------------------


class NotAMember(Refused):
    """Consumers belong to nodes, and this command was sent by none."""

    code = "subscriptions_not_a_member"

    def __str__(self) -> str:
        return "consumers belong to the nodes of the cluster: attach through a node"


class NotYourConsumer(Refused):
    """It belongs to another node, or to another life of this one."""

    code = "subscriptions_not_your_consumer"

    def __init__(self, consumer: int) -> None:
        super().__init__(consumer)
        self.consumer = consumer

    def __str__(self) -> str:
        return (
            f"the consumer {self.consumer} was not attached by this node in its present life: "
            "attach a new one"
        )


class ConsumerGone(Refused):
    """It ended: it was closed, its node ended, or its subscription was deleted."""

    code = "subscriptions_consumer_gone"

    def __init__(self, consumer: int) -> None:
        super().__init__(consumer)
        self.consumer = consumer

    def __str__(self) -> str:
        return (
            f"the consumer {self.consumer} has ended: attach a new one. What it had not "
            "acknowledged is delivered again"
        )


class TooManyConsumers(Refused):
    """The setting consumers_max, or as many as one failover subscription can have."""

    code = "subscriptions_too_many_consumers"

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"there are {self.limit} consumers: close some, or raise the setting consumers_max "
            "(it does not count for one failover subscription, which has a bound of its own)"
        )


REFUSALS: tuple[type[Refused], ...] = (
    UnknownTopic,
    BadName,
    TooManyTopics,
    TopicReplicated,
    CompactedFixed,
    TopicDiffers,
    BacklogFull,
    TooManyKeys,
    EmptyBatch,
    BatchTooLarge,
    MessageTooLarge,
    BadMessage,
    OutOfOrder,
    OriginBehind,
    UnknownRegion,
    RegionExcluded,
    RegionActive,
    RegionFixed,
    OwnRegion,
    TooManyRegions,
    UnknownSubscription,
    TooManySubscriptions,
    ReplicationDisabled,
    SubscriptionBusy,
    SubscriptionInUse,
    KindDiffers,
    WrongKind,
    NotCumulative,
    TooManyRanges,
    UnknownPosition,
    NotAMember,
    NotYourConsumer,
    ConsumerGone,
    TooManyConsumers,
)
