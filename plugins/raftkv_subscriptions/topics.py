"""Topics: declared, deleted, published to; and how messages are appended, wherever they come from.

An append is one row per message, one row of `vectors` per origin, one write of the topic's row and
one of its row of `backlogs` (`backlog.py`), and every BLOCK positions a row of `blocks`: the vector
in front (`mapping.py`). A publication reads the topic once and writes it once.

Numbers outlive a topic. Its own seqs are known to other regions, which would take a number that
came a second time for a double; and they may still have snapshots with its positions, which would
acknowledge other messages if they came a second time. So deleting it leaves the higher of both in
`gone` (a row for each name that ever had a message), and a topic of that name that is declared
later goes on from there, with seqs and positions alike; the seqs of its former life are a hole in
it. A deleted topic's other rows are swept later, under its id, which is never used again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec.structs import replace

from raftkv.plugin import Context

from . import backlog
from .commands import (
    Declared,
    DeclareTopic,
    Deleted,
    DeleteTopic,
    EnsureTopic,
    Publish,
    Published,
)
from .compaction import note
from .mapping import as_vector, block_of, vector_of_rows, without_trailing_hole
from .refusals import (
    BadMessage,
    BatchTooLarge,
    CompactedFixed,
    EmptyBatch,
    MessageTooLarge,
    TooManyTopics,
    TopicDiffers,
    TopicReplicated,
    UnknownTopic,
)
from .rows import (
    BLOCK,
    COMMAND_BYTES,
    HEADERS_MAX,
    LOCAL,
    NAME_CHARS_MAX,
    ROWS_MAX,
    Message,
    Stored,
    Topic,
    Vector,
    size_of,
)
from .scope import (
    Tables,
    active_regions,
    check_name,
    meta_of,
    own_region,
    put_meta,
    topic_named,
)
from .views import kept_of

__all__ = [
    "append",
    "check_message",
    "check_messages",
    "completed",
    "declare",
    "delete",
    "ensure",
    "publish",
]

_DECLARED: Final = (
    "replicated",
    "compacted",
    "retention_ms",
    "retention_bytes",
    "backlog_bytes_max",
)
_FRESH: Final = DeclareTopic("")


# --- for all who publish --------------------------------------------------------------------------


def check_messages(view: Tables, messages: Sequence[Message]) -> int:
    """The bytes of the messages of a publication together; one that cannot be kept is refused.

    A node asks as well, before it proposes; only the answer in `apply` counts.
    Raises `EmptyBatch`, `BatchTooLarge`, `MessageTooLarge`, `BadMessage`.
    """
    if not messages:
        raise EmptyBatch
    if len(messages) > ROWS_MAX:
        raise BatchTooLarge("rows", ROWS_MAX)
    limit, total = view.settings["message_bytes_max"], 0
    for message in messages:
        size = size_of(message)
        if size > limit:
            raise MessageTooLarge(size, limit)
        if message.key or message.headers:
            check_message(message)
        total += size
    if total > COMMAND_BYTES and len(messages) > 1:
        raise BatchTooLarge("bytes", COMMAND_BYTES)
    return total


def check_message(message: Message) -> None:
    """Whether its key and headers can be kept, whatever its size. Raises `BadMessage`."""
    if len(message.key) > NAME_CHARS_MAX:
        raise BadMessage(f"its key has more than {NAME_CHARS_MAX} letters")
    if len(message.headers) > HEADERS_MAX:
        raise BadMessage(f"it has more than {HEADERS_MAX} headers")
    _check_text("its key", message.key)
    for name, value in message.headers:
        if not 0 < len(name) <= NAME_CHARS_MAX:
            raise BadMessage(f"the name of a header has 1 to {NAME_CHARS_MAX} letters")
        _check_text("the name of a header", name)
        _check_text("the value of a header", value)


def _check_text(what: str, text: str) -> None:
    """Half a surrogate pair is in some texts of Python, and in none of the log."""
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadMessage(f"{what} is no text that UTF-8 can carry") from None


# --- for all who append ---------------------------------------------------------------------------


def append(ctx: Context, name: str, topic: Topic, batch: Sequence[Stored], size: int) -> Topic:
    """Put messages, of `size` bytes together, at the end of a topic; the topic, to be written.

    `vectors` is the caller's, who writes it afterwards. Raises `TooManyKeys`.
    """
    put = ctx.table("messages").put
    id, at = topic.id, topic.next
    for stored in batch:
        if at % BLOCK == 1:
            _mark_block(ctx, topic, at, batch)
        put((id, at), stored)
        at += 1
    backlog.appended(ctx, topic, batch, size)
    changed = replace(topic, next=at, bytes=topic.bytes + size)
    if topic.compacted:
        return note(ctx, name, changed, zip(range(topic.next, at), batch, strict=True))
    return changed


def _mark_block(ctx: Context, topic: Topic, at: int, batch: Sequence[Stored]) -> None:
    """Remember the vector before position `at`: what was here, and what the batch has before it."""
    vector: Vector = vector_of_rows(ctx, topic.id)
    numbers = dict(vector)
    if topic.gapped:
        for origin, seq in vector:
            numbers[origin] = without_trailing_hole(ctx, topic.id, origin, seq)
    for stored in batch[: at - topic.next]:
        numbers[stored.origin] = stored.seq
    ctx.table("blocks").put((topic.id, block_of(at)), as_vector(numbers))


# --- commands -------------------------------------------------------------------------------------


def publish(command: Publish, ctx: Context) -> Published:
    """All messages, or none."""
    name, messages = command.topic, command.messages
    topics = ctx.table("topics")
    old: Topic | None = topics.get(name)
    if old is None:
        raise UnknownTopic(name)
    size = check_messages(ctx, messages)
    limit = old.backlog_bytes_max
    if limit and old.bytes + size > limit:
        waited = backlog.bytes_for(ctx, old, limit - size)
        if waited + size > limit:
            raise backlog.full(ctx, name, limit, waited)
    meta, now, before = meta_of(ctx), ctx.now, old.seq
    origin, last = meta.region or LOCAL, before + len(messages)
    batch = [
        Stored(origin, seq, message, now, now) for seq, message in enumerate(messages, before + 1)
    ]
    topic = append(ctx, name, replace(old, seq=last), batch, size)
    topics.replace(name, old, topic)
    ctx.table("vectors").put((old.id, origin), last)
    put_meta(ctx, replace(meta, published=meta.published + len(messages)))
    return Published(old.next, topic.next - 1, origin, before + 1)


def declare(command: DeclareTopic, ctx: Context) -> Declared:
    """Make a topic, or give one other limits: they count from the next command on."""
    name = command.topic
    check_name("topic", name)
    old: Topic | None = ctx.table("topics").get(name)
    if old is not None and command.if_missing:
        return Declared(old.id, False, False)
    if old is not None and old.compacted != command.compacted:
        raise CompactedFixed(name)
    topic = replace(
        _made(ctx, name) if old is None else old,
        replicated=command.replicated,
        compacted=command.compacted,
        retention_ms=command.retention_ms,
        retention_bytes=command.retention_bytes,
        backlog_bytes_max=command.backlog_bytes_max,
    )
    if topic != old:
        ctx.table("topics").put(name, topic)
        if topic.replicated:
            backlog.forget(ctx, topic.id)
    return Declared(topic.id, old is None, old is not None and topic != old)


def ensure(command: EnsureTopic, ctx: Context) -> Declared:
    """Make a topic, or compare one with what is asked for, or change it."""
    return declare(completed(ctx, command), ctx)


def completed(view: Tables, command: EnsureTopic) -> DeclareTopic:
    """All that is declared of the topic after the command: what it leaves out stays as it is.

    Raises `TopicDiffers`, `CompactedFixed`.
    """
    name = command.topic
    old: Topic | None = view.table("topics").get(name)
    declared: dict[str, Any] = {}
    for what in _DECLARED:
        asked, present = getattr(command, what), getattr(_FRESH if old is None else old, what)
        if old is not None and asked not in (None, present):
            if what == "compacted":
                raise CompactedFixed(name)
            if not command.change:
                raise TopicDiffers(name, what, str(present), str(asked))
        declared[what] = present if asked is None else asked
    return DeclareTopic(name, **declared)


def _made(ctx: Context, name: str) -> Topic:
    """A new topic, which goes on with the numbers of the last one of its name."""
    meta, limit = meta_of(ctx), ctx.settings["topics_max"]
    if meta.topics >= limit:
        raise TooManyTopics(limit)
    id = meta.next_topic
    put_meta(ctx, replace(meta, next_topic=id + 1, topics=meta.topics + 1))
    ctx.table("names").put(id, name)
    last = ctx.table("gone").get(name, 0)
    if not last:
        return Topic(id)
    ctx.table("gone").delete(name)
    origin, next = own_region(ctx), last + 1
    ctx.table("vectors").put((id, origin), last)
    ctx.table("holes").put((id, origin, 1), last)
    ctx.table("blocks").put((id, block_of(next)), ())
    return Topic(id, seq=last, first=next, next=next, snapshot_next=next, gapped=True)


def delete(command: DeleteTopic, ctx: Context) -> Deleted:
    """Take a topic away that no other region would bring back; its rows are swept later."""
    name = command.topic
    topic = topic_named(ctx, name)
    if topic.replicated and active_regions(ctx):
        raise TopicReplicated(name)
    ctx.table("topics").delete(name)
    ctx.table("names").delete(topic.id)
    ctx.table("pending").delete(topic.id)
    ctx.table("backlogs").delete(topic.id)
    ctx.table("fronts").delete(topic.id)
    ctx.table("dropped_topics").put(topic.id, None)
    last = max(topic.seq, topic.next - 1)
    if last:
        ctx.table("gone").put(name, last)
    meta = meta_of(ctx)
    put_meta(ctx, replace(meta, topics=meta.topics - 1))
    return Deleted(kept_of(topic))
