"""Replicated subscriptions as a program sees them on one node: `subs = node.plugin(Subscriptions)`.

    await subs.declare("orders", retention_s=86_400)
    await subs.publish("orders", b"a book")

    async with subs.consumer("orders", "billing", replicate=True) as consumer:
        async for order in consumer:
            ...
            await consumer.ack(order)

The topic and, with `replicate`, what was acknowledged of it go to the other regions; a consumer
that is opened there goes on where this one was.

This file only joins the parts and gives them their public names. `publishing.py` is the way in,
`reader.py` and `consumer.py` are the ways out, `waiting.py` knows who waits for what; what goes
between regions is the leader's service (`service.py`), and does not show here but in the status.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args

import msgspec

from raftkv.plugin import Consistency, Host, PluginSettings, Proposer, Under
from raftkv.validation import checked

from . import reading
from .commands import (
    FORMAT_ENSURE,
    Ack,
    AckDelivered,
    Acked,
    AckTo,
    AckToDelivered,
    Attach,
    Declared,
    DeclareTopic,
    Deleted,
    DeleteTopic,
    EnsureTopic,
    Published,
    PutRegion,
    RemoveRegion,
    SetRegion,
    SetReplicate,
    Sought,
    Subscribe,
    Subscribed,
    Unsubscribe,
)
from .consumer import PREFETCH
from .consumer_opening import Consumers, Opening
from .counting import Counters
from .line import TIMEOUT_S
from .options import options_of
from .possible import possible, require_possible, subscribe_of
from .publishing import Outgoing, Publishing, messages_of
from .reader import Reader, read_some
from .reading import Read, Where
from .refusals import OwnRegion, UnknownRegion, UnknownSubscription, UnknownTopic
from .rows import INT_MAX, ROWS_MAX, Initial, Kind, Mode, RegionState
from .scope import check_name, own_region
from .status import (
    RegionStatus,
    SubscriptionsStatus,
    SubStatus,
    TopicStatus,
    region_rows,
    status_of,
    sub_status,
    topic_rows,
    topic_status,
)
from .topics import completed
from .views import subs_of, topic_of
from .waiting import Waiting

__all__ = ["SubscriptionsApi"]


@checked
class SubscriptionsApi:
    """Topics and subscriptions on one node. All methods belong to the node's event loop.

    Times are seconds. What changes something raises, besides what it says itself, `NotApplied`
    kinds (nothing happened and nothing will) and OutcomeUnknown kinds after `timeout_s` (it may
    happen yet). Positions are of this region.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        #: The replicated settings of the plugin.
        self.settings = PluginSettings(host)
        self.options = options_of(host)
        self.counters = Counters()
        self.proposer = Proposer(host, self.counters)
        self.waiting = Waiting(host, self.counters)
        self.publishing = Publishing(host, self.proposer, self.counters)
        #: The live consumers of this node.
        self.consumers = Consumers(host, self.proposer, self.waiting, self.counters)

    # --- topics ---

    async def declare(
        self,
        topic: str,
        *,
        replicated: bool | None = None,
        compacted: bool | None = None,
        retention_s: float | None = None,
        retention_bytes: int | None = None,
        backlog_bytes_max: int | None = None,
        if_missing: bool = False,
        change: bool = False,
        timeout_s: float = TIMEOUT_S,
    ) -> Declared:
        """Make a topic. One that exists keeps what is not named (None); what is named and differs
        is refused, unless `change`, which gives it these limits and touches no message.

        `replicated`: links carry it to other regions. `compacted`: of each key the last message
        stays. Messages older than `retention_s` or beyond `retention_bytes` (0: no limit) are
        removed once every subscription has acknowledged them and every active region has them.
        While subscriptions here or other regions have still to take more than `backlog_bytes_max`
        (0: no limit), publications are refused. A new one is replicated and has no limits that are
        not named. `if_missing`: leave an existing one as it is, whatever
        is named. Raises `TopicDiffers`, `BadName`, `TooManyTopics`, `CompactedFixed`, ValueError
        for what is no limit.
        """
        check_name("topic", topic)
        wanted = EnsureTopic(
            topic,
            replicated,
            compacted,
            None if retention_s is None else _milliseconds(retention_s),
            retention_bytes,
            backlog_bytes_max,
            change,
        )
        deadline = self._deadline(timeout_s)
        command = await self._declaration(possible(wanted), if_missing, timeout_s)
        done: Declared = await self.proposer.until_verdict(command, deadline)
        return done

    async def _declaration(
        self, wanted: EnsureTopic, if_missing: bool, timeout_s: float
    ) -> EnsureTopic | DeclareTopic:
        """What is proposed. Below format 2 the node compares, and not the log."""
        if if_missing:
            fields = msgspec.structs.asdict(wanted)
            del fields["change"]
            named = {what: value for what, value in fields.items() if value is not None}
            return DeclareTopic(**named, if_missing=True)
        if self.host.view().version >= FORMAT_ENSURE:
            return wanted
        await self.host.barrier("linearizable", timeout_s=timeout_s)
        return completed(self.host.view(), wanted)

    async def delete(self, topic: str, *, timeout_s: float = TIMEOUT_S) -> Deleted:
        """Delete a topic, with its messages and subscriptions: their consumers end.

        Raises `UnknownTopic`, `TopicReplicated`.
        """
        require_possible(topic)
        done: Deleted = await self._change(DeleteTopic(topic), timeout_s)
        return done

    async def publish(
        self, topic: str, what: Outgoing, *, timeout_s: float | None = TIMEOUT_S
    ) -> Published:
        """Publish a message or several, in this order, all or none; readers here see them at once.

        What one node publishes is ordered as the calls are. Calls that wait at the same time go
        into the log together, and yet each has its own verdict. After OutcomeUnknown they may be
        in the topic. Raises `UnknownTopic`, `MessageTooLarge`, `BatchTooLarge`, `EmptyBatch`,
        `BadMessage`, `BacklogFull`, `TooManyKeys`.
        """
        require_possible(topic)
        return await self.publishing.publish(topic, messages_of(what), timeout_s)

    async def publish_under(
        self, under: Under, topic: str, what: Outgoing, *, timeout_s: float | None = TIMEOUT_S
    ) -> Published:
        """`publish` under a client's number: once, however often and at whichever node it is
        asked, with the first answer. Raises `SessionExpired`, `NumberReused` besides."""
        require_possible(topic)
        messages = messages_of(what)
        host = await under.host(self.host)
        return await self.publishing.publish_once(host, topic, messages, timeout_s)

    def topics(self) -> tuple[TopicStatus, ...]:
        """All topics, by name, as this node's copy has them."""
        return tuple(topic_rows(self.host.view(), self.host.now_ms()))

    async def topic(
        self,
        topic: str,
        *,
        consistency: Consistency = "linearizable",
        timeout_s: float = TIMEOUT_S,
    ) -> TopicStatus:
        """A topic's figures and limits. Raises `UnknownTopic`, ReadTimeout."""
        await self.host.barrier(consistency, timeout_s=timeout_s)
        status = topic_status(self.host.view(), topic, self.host.now_ms())
        if status is None:
            raise UnknownTopic(topic)
        return status

    # --- reading ---

    async def reader(
        self,
        topic: str,
        *,
        start: int | Where = "latest",
        compacted: bool = False,
        consistency: Consistency = "linearizable",
        timeout_s: float = TIMEOUT_S,
    ) -> Reader:
        """Read this node's copy from a position on: see `Reader`. Raises `UnknownTopic`,
        ReadTimeout. "latest": what was published before this call is left out."""
        await self.host.barrier(consistency, timeout_s=timeout_s)
        reader = Reader(self.host, self.waiting, self.counters, topic, compacted)
        reader.seek(start)
        return reader

    async def read(
        self,
        topic: str,
        *,
        first: int = 1,
        limit: int = 100,
        bytes_max: int = 0,
        compacted: bool = False,
        consistency: Consistency = "linearizable",
        timeout_s: float = TIMEOUT_S,
    ) -> tuple[Read, ...]:
        """Some messages, from the first kept one at `first` or after it. Raises `UnknownTopic`,
        ReadTimeout."""
        if not (1 <= first <= INT_MAX and 1 <= limit <= ROWS_MAX and bytes_max >= 0):
            raise ValueError(f"first is 1 or more, limit 1 to {ROWS_MAX} messages")
        await self.host.barrier(consistency, timeout_s=timeout_s)
        more = True
        got: tuple[Read, ...] = ()
        while more and not got:
            got, first, more = read_some(
                self.host.view(), topic, first, limit, bytes_max, compacted
            )
            if more and not got:
                await self.host.runtime.sleep(0)
        return got

    # --- subscriptions ---

    async def subscribe(
        self,
        topic: str,
        sub: str,
        *,
        kind: Kind = "exclusive",
        initial: Initial = "latest",
        replicate: bool | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Subscribed:
        """Make a subscription; one that exists stays as it is, but for its kind if it has no
        consumers. `initial`: where a new one begins. `replicate`: whether its state goes to other
        regions; None: no for a new one, unchanged for one that exists.

        Raises `UnknownTopic`, `BadName`, `KindDiffers`, `TooManySubscriptions`,
        `ReplicationDisabled`.
        """
        command = subscribe_of(topic, sub, kind, initial, replicate)
        done: Subscribed = await self._change(command, timeout_s)
        return done

    async def unsubscribe(
        self, topic: str, sub: str, *, force: bool = False, timeout_s: float = TIMEOUT_S
    ) -> None:
        """Delete a subscription here. `force`: its consumers end. Raises `UnknownTopic`,
        `UnknownSubscription`, `SubscriptionInUse`."""
        require_possible(topic, sub)
        await self._change(Unsubscribe(topic, sub, force), timeout_s)

    async def set_replicate(
        self, topic: str, sub: str, replicate: bool, *, timeout_s: float = TIMEOUT_S
    ) -> None:
        """Whether its state goes to other regions, and theirs is taken, from now on.

        Raises `UnknownTopic`, `UnknownSubscription`, `ReplicationDisabled`.
        """
        require_possible(topic, sub)
        await self._change(SetReplicate(topic, sub, bool(replicate)), timeout_s)

    async def seek(
        self,
        topic: str,
        sub: str,
        position: int | Where | None = None,
        *,
        at_ms: int | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Sought:
        """Let all its consumers go on elsewhere: with the message after `position` (0: the first
        one), "earliest", "latest", or the first one that came here at `at_ms` or later, by the
        log's clock. Other regions are not moved.

        Raises `UnknownTopic`, `UnknownSubscription`, `UnknownPosition`, ReadTimeout, ValueError.
        """
        require_possible(topic, sub)
        return await reading.seek(
            self.host, self.proposer, topic, sub, position, at_ms, self._deadline(timeout_s)
        )

    async def ack(
        self,
        topic: str,
        sub: str,
        positions: Iterable[int],
        *,
        epoch: int | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Acked:
        """An operator's acknowledgement of these positions, ROWS_MAX at most, whoever has them.

        `epoch`: of the subscription, in which they were seen: passed over if it was sought since
        then (`done` is 0). None: true in any case. Raises `UnknownTopic`, `UnknownSubscription`,
        `UnknownPosition`, `TooManyRanges`; UnknownCommand for an epoch below format 2.
        """
        require_possible(topic, sub)
        command = Ack(topic, sub, tuple(positions))
        if epoch is not None:
            command = AckDelivered(topic, sub, command.positions, epoch=epoch)
        done: Acked = await self._change(possible(command), timeout_s)
        return done

    async def ack_to(
        self,
        topic: str,
        sub: str,
        position: int,
        *,
        epoch: int | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Acked:
        """An operator's acknowledgement of all up to this position. As `ack`."""
        require_possible(topic, sub)
        command = AckTo(topic, sub, position)
        if epoch is not None:
            command = AckToDelivered(topic, sub, position, epoch=epoch)
        done: Acked = await self._change(possible(command), timeout_s)
        return done

    async def sub(
        self,
        topic: str,
        sub: str,
        *,
        consistency: Consistency = "linearizable",
        timeout_s: float = TIMEOUT_S,
    ) -> SubStatus:
        """A subscription's state. Raises `UnknownTopic`, `UnknownSubscription`, ReadTimeout."""
        await self.host.barrier(consistency, timeout_s=timeout_s)
        view = self.host.view()
        topic_of(view, topic)
        status = sub_status(view, topic, sub)
        if status is None:
            raise UnknownSubscription(topic, sub)
        return status

    async def subscriptions(
        self,
        topic: str,
        *,
        consistency: Consistency = "linearizable",
        timeout_s: float = TIMEOUT_S,
    ) -> tuple[SubStatus, ...]:
        """All subscriptions of a topic, by name. Raises `UnknownTopic`, ReadTimeout."""
        await self.host.barrier(consistency, timeout_s=timeout_s)
        view = self.host.view()
        found = (sub_status(view, topic, name) for name, _ in subs_of(view, topic))
        return tuple(status for status in found if status is not None)

    # --- consuming ---

    def consumer(
        self,
        topic: str,
        sub: str,
        *,
        kind: Kind = "exclusive",
        initial: Initial = "latest",
        replicate: bool | None = None,
        priority: int = 0,
        consumer_name: str = "",
        prefetch: int = PREFETCH,
        subscribe: bool = True,
        timeout_s: float | None = TIMEOUT_S,
    ) -> Opening:
        """Open a consumer: `consumer = await subs.consumer(...)`, or `async with` it.

        The subscription is made if it is not there (see `subscribe`, which the first parameters
        are of), unless `subscribe` is false. `priority` (failover): the one with the smallest gets
        the messages, of equal ones the oldest. `prefetch`: messages that a loop has ahead.

        Raises besides `UnknownTopic`, `UnknownSubscription`, `SubscriptionBusy` (exclusive),
        `TooManyConsumers`.
        """
        if not 1 <= prefetch <= ROWS_MAX:
            raise ValueError(f"prefetch is 1 to {ROWS_MAX} messages")
        if consumer_name:
            check_name("consumer", consumer_name)
        made: Subscribe | None = None
        if subscribe:
            made = subscribe_of(topic, sub, kind, initial, replicate)
        else:
            require_possible(topic, sub)
        attach: Attach = possible(Attach(topic, sub, consumer_name, priority))
        return Opening(self.consumers, made, attach, prefetch, timeout_s)

    # --- regions ---

    async def regions(self) -> tuple[RegionStatus, ...]:
        """This region and the others, by name, with the links as the leader has them."""
        return tuple(await region_rows(self.host))

    async def add_region(
        self, region: str, *, fetches: bool | None = None, timeout_s: float = TIMEOUT_S
    ) -> Declared:
        """Let another region take part. `fetches`: it fetches from here, so retention waits for it
        (None: yes for a new one). Raises `BadName`, `OwnRegion`, `TooManyRegions`."""
        return await self._put_region(region, "active", fetches, timeout_s)

    async def exclude_region(self, region: str, *, timeout_s: float = TIMEOUT_S) -> Declared:
        """Wait for it no more, fetch nothing from it, take nothing of what it says, until it is
        included again. Raises `UnknownRegion`, `OwnRegion`."""
        await self._require_known(region, timeout_s)
        return await self._put_region(region, "excluded", None, timeout_s)

    async def include_region(self, region: str, *, timeout_s: float = TIMEOUT_S) -> Declared:
        """Let an excluded region return. Raises `UnknownRegion`, `OwnRegion`."""
        await self._require_known(region, timeout_s)
        return await self._put_region(region, "active", None, timeout_s)

    async def remove_region(self, region: str, *, timeout_s: float = TIMEOUT_S) -> None:
        """Forget an excluded region; its messages stay. One that the options of the leader name is
        added again, as an active one: take its link out there before. Raises `UnknownRegion`,
        `RegionActive`."""
        if not region.isascii():
            raise UnknownRegion(region)
        await self._change(RemoveRegion(region), timeout_s)

    async def set_region(self, name: str, *, timeout_s: float = TIMEOUT_S) -> None:
        """Name this region; its messages bear the name, so it is fixed from the first one on.

        Raises `BadName`, `RegionFixed`, `OwnRegion`.
        """
        check_name("region", name)
        await self._change(SetRegion(name), timeout_s)

    async def set_mode(self, mode: Mode, *, timeout_s: float = TIMEOUT_S) -> None:
        """How subscriptions are replicated from now on, by this region: the setting "mode"."""
        if mode not in get_args(Mode):
            raise ValueError(f"the mode is one of {', '.join(get_args(Mode))}, not {mode!r}")
        await self.host.set_setting("mode", mode, timeout_s=timeout_s)

    # --- seeing ---

    async def status(self) -> SubscriptionsStatus:
        """Topics, subscriptions, regions and links at one look."""
        return await status_of(self.host)

    # --- called by the service ---

    def start(self) -> None:
        """The tables can be read."""

    def on_progress(self, index: int) -> None:
        """Entries were applied."""
        self.waiting.look()

    def on_restored(self, index: int) -> None:
        """A snapshot replaced the state."""
        self.consumers.look()
        self.waiting.look_at_all()

    def on_incarnation(self, incarnation: int) -> None:
        """This node has a new life: the consumers of the old one have ended."""
        self.consumers.look()
        self.waiting.look_at_all()

    def stop(self) -> None:
        """The node stops: end what callers wait for. May be called again."""
        self.publishing.stop()
        self.consumers.stop()
        self.waiting.stop()

    # --- details ---

    def _deadline(self, timeout_s: float) -> float:
        return self.host.runtime.monotonic() + timeout_s

    async def _change(self, command: msgspec.Struct, timeout_s: float) -> Any:
        return await self.proposer.until_verdict(command, self._deadline(timeout_s))

    async def _put_region(
        self, region: str, state: RegionState, fetches: bool | None, timeout_s: float
    ) -> Declared:
        check_name("region", region)
        command = PutRegion(region, state, fetches=fetches)
        done: Declared = await self._change(command, timeout_s)
        return done

    async def _require_known(self, region: str, timeout_s: float) -> None:
        """A slip of the pen must not make a region."""
        await self.host.barrier("linearizable", timeout_s=timeout_s)
        view = self.host.view()
        if region == own_region(view):
            raise OwnRegion(region)
        if not region.isascii() or view.table("regions").get(region) is None:
            raise UnknownRegion(region)


def _milliseconds(seconds: float) -> int:
    """Raises ValueError for what is no length of time."""
    if not 0 <= seconds <= INT_MAX / 1000:
        raise ValueError(f"this cannot be: a retention_s of {seconds!r}; 0 means no limit")
    # What is asked for as a limit must not become none.
    return max(round(seconds * 1000), 1 if seconds else 0)
