"""What the door answers with, made of what the plugin gives: plain JSON, bytes in base64.

Only `read_report` and `received_report` show messages, to whoever asked for them; everything else
tells names, numbers and states. Vectors become objects: {"eu": 7, "us": 12}.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from .consumer import Consumer
    from .reading import Read, Received

__all__ = [
    "ANSWER_BYTES_MAX",
    "consumer_report",
    "fields",
    "plain",
    "read_report",
    "received_report",
]

#: Bytes of the messages of one answer; one message is always there.
ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024
#: Fields of the statuses that are vectors.
_VECTORS: Final = ("vector", "base")
#: Fields of which an answer shows the first ones, and how many there are.
_LONG: Final = ("ranges", "holes")
RANGES_MAX: Final = 100


def fields(done: msgspec.Struct) -> dict[str, Any]:
    """A command's result by the names of its fields."""
    return msgspec.structs.asdict(done)


def plain(status: msgspec.Struct) -> dict[str, Any]:
    """A status as JSON has it."""
    found: dict[str, Any] = msgspec.to_builtins(status, builtin_types=(bytes,))
    for name in _VECTORS:
        if name in found:
            found[name] = dict(found[name])
    for name in _LONG:
        rows = found.get(name)
        # The status of the region has a number of that name.
        if isinstance(rows, (list, tuple)):
            found[f"{name}_count"] = len(rows)
            found[name] = rows[:RANGES_MAX]
    return found


def read_report(found: Sequence[Read], end: int) -> dict[str, Any]:
    """Messages of a topic whose next position is `end`; `next`: the position to go on from, 0: that
    is all there is now."""
    after = found[-1].position + 1 if found else end
    return {
        "messages": [
            {"position": each.position, **_message(each), "at_ms": each.at_ms} for each in found
        ],
        "next": after if after < end else 0,
    }


def received_report(found: Sequence[Received]) -> list[dict[str, Any]]:
    """Messages that are the consumer's to acknowledge."""
    return [
        {
            "position": each.position,
            **_message(each),
            "deliveries": each.deliveries,
            "epoch": each.epoch,
        }
        for each in found
    ]


def consumer_report(consumer: Consumer, handle: str, node: str, idle_s: float) -> dict[str, Any]:
    """A consumer of a client over HTTP, which knows it by `handle`.

    `active` false: another one of its subscription is before it.
    """
    return {
        "consumer": handle,
        "topic": consumer.topic,
        "sub": consumer.sub,
        "kind": consumer.kind,
        "name": consumer.name,
        "active": consumer.active,
        "node": node,
        "idle_s": idle_s,
    }


def _message(each: Read | Received) -> dict[str, Any]:
    return {
        "origin": each.origin,
        "seq": each.seq,
        "body": each.body,
        "key": each.key,
        "headers": each.headers,
        "published_ms": each.published_ms,
    }
