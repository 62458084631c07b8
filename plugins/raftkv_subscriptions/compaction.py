"""Compacted topics: the last message of every key stays, however old it is.

`latest` has the position of the last message of each key. Retention trims a compacted topic as any
other, but for these: they stay in `messages`, below `Topic.first`, counted by `Topic.kept`, until a
newer message of their key comes. A message with a key and an empty body removes the key.

Subscriptions never get what is below `first`: they have acknowledged it, or begin behind it. Who
wants the last value of every key reads with `views.read_compacted`.

"Last" is by the positions here. Two regions that write the same key at the same time may have these
messages in another order, and keep another one as the last: whoever wants one value everywhere
writes a key in one region only.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from raftkv.plugin import Context

from .refusals import TooManyKeys
from .rows import Stored, Topic, size_of

__all__ = ["is_last", "note"]


def note(ctx: Context, name: str, topic: Topic, placed: Iterable[tuple[int, Stored]]) -> Topic:
    """Take notice of messages that have come to a compacted topic; the topic, to be written.

    What they supersede below `first` is deleted. Raises `TooManyKeys`.
    """
    id, first, limit = topic.id, topic.first, ctx.settings["keys_max"]
    latest, messages = ctx.table("latest"), ctx.table("messages")
    keys, kept, size = topic.keys, topic.kept, topic.bytes
    for position, stored in placed:
        message = stored.message
        if not message.key:
            continue
        place = (id, message.key)
        before = latest.get(place)
        if message.body:
            latest.put(place, position)
        elif before is not None:
            latest.delete(place)
            keys -= 1
        if before is None:
            keys += 1 if message.body else 0
            if message.body and keys > limit:
                raise TooManyKeys(name, limit)
        elif before < first:
            size -= size_of(messages[id, before].message)
            messages.delete((id, before))
            kept -= 1
    return replace(topic, keys=keys, kept=kept, bytes=size)


def is_last(ctx: Context, topic_id: int, position: int, stored: Stored) -> bool:
    """Whether it is the last message of its key."""
    key = stored.message.key
    return bool(key) and ctx.table("latest").get((topic_id, key)) == position
