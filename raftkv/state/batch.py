"""What a log entry of commands looks like.

Why commands travel as a byte string inside the envelope, and not as nested msgpack: a decoder must
walk through nested data even to skip it, and it recurses while doing so. A command of a thousand
nested arrays would then fail, or not, by how deep the stack of each node happens to be. A byte
string is passed over without looking; its content meets a typed decoder of bounded depth.

An entry that is no batch stops every node that applies it. So a leader passes what other nodes send
it through `check_envelope` before it puts it into an entry.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

__all__ = ["Batch", "Envelope", "check_envelope", "decode_batch", "encode_batch"]


class Envelope(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """One command on its way through the log.

    `floor`: every number of this session below it has been answered to its caller. `command` is
    the msgpack encoding of a command of `plugin`. A `NodeUp` or `OpenSession` has session 0 and its
    nonce as number.
    """

    session: int
    seq: int
    floor: int
    plugin: str
    command: bytes


class Batch(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The commands of one log entry, stamped with the log's clock."""

    stamp_ms: int
    commands: list[Envelope]


#: Raises msgspec.MsgspecError or ValueError for what is no batch.
decode_batch = msgspec.msgpack.Decoder(Batch).decode
_decode_envelope = msgspec.msgpack.Decoder(Envelope).decode
_encoder = msgspec.msgpack.Encoder()


def encode_batch(stamp_ms: int, commands: Sequence[Envelope]) -> bytes:
    """The body of a batch entry (without the byte that tells the kind of the entry)."""
    return _encoder.encode((stamp_ms, commands))


def check_envelope(data: bytes) -> bool:
    """Whether these bytes are one encoded `Envelope`, fit to be joined into a batch."""
    try:
        _decode_envelope(data)
    except (msgspec.MsgspecError, ValueError):
        return False
    return True
