"""Bugs to be planted: of snapshots, and of what goes between regions (`planted.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from raftkv_subscriptions import snapshots
from raftkv_subscriptions.commands import (
    Deliver,
    Delivered,
    Merge,
    Merged,
    SnapshotAnswered,
    Update,
)
from raftkv_subscriptions.links import acknowledged, feed, proposing, pulling
from raftkv_subscriptions.rows import Hole

from .planting import BUGS, applying, wrapping

__all__ = ["BUGS"]


# Snapshots ----------------------------------------------------------------------------------------


def _pending(ctx: Any, command: Any) -> tuple[Any, Any]:
    topic = ctx.table("topics").get(command.topic)
    return topic, None if topic is None else ctx.table("pending").get(topic.id)


@applying(
    "two-rounds-are-one", "with three regions too, one round makes a snapshot", SnapshotAnswered
)
def _two_rounds_are_one(answered: Callable[..., Any]) -> Callable[..., Any]:
    def broken(command: Any, ctx: Any) -> Any:
        topic, pending = _pending(ctx, command)
        if pending is not None and pending.id == command.id and len(pending.participants) > 1:
            first = dict(pending.first) | {command.region: command.position}
            if set(first) == set(pending.participants):
                made = replace(pending, round=2, first=tuple(sorted(first.items())))
                left = tuple((name, 0) for name in pending.participants if name != command.region)
                ctx.table("pending").put(topic.id, replace(made, second=left))
                command = replace(command, round=2)
        return answered(command, ctx)

    return broken


@applying("first-answer-suffices", "a round does not wait for all regions", SnapshotAnswered)
def _first_answer_suffices(answered: Callable[..., Any]) -> Callable[..., Any]:
    def broken(command: Any, ctx: Any) -> Any:
        topic, pending = _pending(ctx, command)
        if pending is not None and (pending.id, pending.round) == (command.id, command.round):
            name = "first" if pending.round == 1 else "second"
            known = getattr(pending, name)
            others = [n for n in pending.participants if n != command.region]
            silent = tuple((n, 0) for n in others if n not in dict(known))
            ctx.table("pending").put(topic.id, replace(pending, **{name: (*known, *silent)}))
        return answered(command, ctx)

    return broken


@applying(
    "any-answer-counts", "snapshot and round of an answer are not looked at", SnapshotAnswered
)
def _any_answer_counts(answered: Callable[..., Any]) -> Callable[..., Any]:
    def broken(command: Any, ctx: Any) -> Any:
        _, pending = _pending(ctx, command)
        if pending is not None:
            command = replace(command, id=pending.id, round=pending.round)
        return answered(command, ctx)

    return broken


@wrapping("second-positions", "the positions are those of the second round", snapshots, "_complete")
def _second_positions(complete: Callable[..., Any]) -> Callable[..., Any]:
    def broken(ctx: Any, name: str, topic: Any, pending: Any) -> Any:
        ahead = tuple((region, position + 3) for region, position in pending.first)
        return complete(ctx, name, topic, replace(pending, first=ahead))

    return broken


@wrapping("position-at-the-start", "ours is the position at the start", snapshots, "_complete")
def _position_at_the_start(complete: Callable[..., Any]) -> Callable[..., Any]:
    def broken(ctx: Any, name: str, topic: Any, pending: Any) -> Any:
        complete(ctx, name, topic, pending)
        key, local = (topic.id, topic.next - 1), pending.next - 1
        kept = ctx.table("snapshots").get(key)
        if kept is not None and 0 < local < key[1]:
            ctx.table("snapshots").delete(key)
            ctx.table("snapshots").put((topic.id, local), kept)

    return broken


@wrapping("nothing-is-excepted", "an update covers bases and holes", snapshots, "_missing")
def _nothing_is_excepted(missing: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *given: ()


@applying("update-excepts-nothing", "what an update excepts is acknowledged", Update)
def _update_excepts_nothing(update: Callable[..., Any]) -> Callable[..., Any]:
    return lambda command, ctx: update(replace(command, without=()), ctx)


@applying("update-goes-on", "an update acknowledges one position more", Update)
def _update_goes_on(update: Callable[..., Any]) -> Callable[..., Any]:
    return lambda command, ctx: update(replace(command, position=command.position + 1), ctx)


@wrapping("marks-are-not-told", "a mark that moves is told to nobody", snapshots, "mark_moved")
def _marks_are_not_told(mark_moved: Callable[..., Any]) -> Callable[..., Any]:
    return lambda ctx, topic_name, topic, sub_name, sub, before=0: sub


@wrapping(
    "reports-are-no-reason",
    "no snapshot is taken for what a region got after it had answered",
    snapshots,
    "reported",
)
def _reports_are_no_reason(reported: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *given: None


# Links: messages ----------------------------------------------------------------------------------


@wrapping(
    "claims-are-believed",
    "a report counts whatever its link has sent",
    feed.TopicFeed,
    "counted_of",
)
def _claims_are_believed(counted_of: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, told, here: told


@wrapping(
    "link-begins-too-late",
    "a link that opens again begins one message too late",
    feed.TopicFeed,
    "__init__",
)
def _link_begins_too_late(init: Callable[..., Any]) -> Callable[..., Any]:
    def broken(self: feed.TopicFeed, *given: Any, **named: Any) -> None:
        init(self, *given, **named)
        if self.known:
            self.at += 1

    return broken


@wrapping("full-is-a-hole", "what did not come is called a hole", pulling, "gathered_messages")
def _full_is_a_hole(gathered: Callable[..., Any]) -> Callable[..., Any]:
    def broken(lane: Any, source: str) -> Any:
        command = gathered(lane, source)
        last = command.parts[-1]
        if len(command.parts) > 2 and not isinstance(last, Hole):
            hole = Hole(last.origin, last.seq, last.seq)
            command = replace(command, parts=(*command.parts[:-1], hole))
        return command

    return broken


@wrapping(
    "newest-first", "messages that were gathered are turned round", pulling, "gathered_messages"
)
def _newest_first(gathered: Callable[..., Any]) -> Callable[..., Any]:
    def broken(lane: Any, source: str) -> Any:
        command = gathered(lane, source)
        return replace(command, parts=tuple(reversed(command.parts)))

    return broken


@wrapping(
    "foreign-content",
    "a message is given the content of the one before",
    pulling,
    "gathered_messages",
)
def _foreign_content(gathered: Callable[..., Any]) -> Callable[..., Any]:
    def broken(lane: Any, source: str) -> Any:
        command = gathered(lane, source)
        parts = list(command.parts)
        copies = [i for i, part in enumerate(parts) if not isinstance(part, Hole)]
        if len(copies) > 1:
            first, second = copies[:2]
            parts[second] = replace(parts[second], message=parts[first].message)
        return replace(command, parts=tuple(parts))

    return broken


# Links: acknowledgements --------------------------------------------------------------------------


@wrapping(
    "state-is-not-repeated",
    "a link that opens again says only what is new",
    acknowledged.States,
    "walk",
)
def _state_is_not_repeated(walk: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, topic_id: None


@wrapping(
    "state-once", "of each subscription only the first change is said", acknowledged.States, "touch"
)
def _state_once(touch: Callable[..., Any]) -> Callable[..., Any]:
    def broken(self: acknowledged.States, key: Any, now: float) -> None:
        if key not in self._said:
            touch(self, key, now)

    return broken


@wrapping(
    "state-says-more", "what is said of a set is one message too long", acknowledged, "state_of"
)
def _state_says_more(state_of: Callable[..., Any]) -> Callable[..., Any]:
    def broken(view: Any, topic: str, sub: str) -> Any:
        state = state_of(view, topic, sub)
        return replace(state, ranges=tuple((o, low, high + 1) for o, low, high in state.ranges))

    return broken


@wrapping(
    "no-room-is-final",
    "what found no room in a set is sent again only by the next link",
    pulling.Pull,
    "_propose_for",
)
def _no_room_is_final(propose_for: Callable[..., Any]) -> Callable[..., Any]:
    async def broken(self: pulling.Pull, topic: str, sub: str, command: Any) -> Any:
        taken = await propose_for(self, topic, sub, command)
        self._refused_at = None
        return taken

    return broken


@wrapping(
    "large-merges-vanish",
    "a merge of several ranges is taken off the link and not proposed",
    proposing.Proposals,
    "until_verdict",
)
def _large_merges_vanish(until_verdict: Callable[..., Any]) -> Callable[..., Any]:
    async def broken(self: proposing.Proposals, command: Any) -> Any:
        if isinstance(command, Merge) and len(command.ranges) > 1:
            return Merged(False, 0, 0)
        return await until_verdict(self, command)

    return broken


@wrapping(
    "large-batches-vanish",
    "a large batch is taken off the link and not proposed",
    proposing.Proposals,
    "until_verdict",
)
def _large_batches_vanish(until_verdict: Callable[..., Any]) -> Callable[..., Any]:
    async def broken(self: proposing.Proposals, command: Any) -> Any:
        if isinstance(command, Deliver) and len(command.parts) > 4:
            return Delivered(len(command.parts), 0, 0)
        return await until_verdict(self, command)

    return broken
