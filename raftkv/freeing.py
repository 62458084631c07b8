"""Which commands a leader with a full disk still takes: those that make the state smaller.

Local and cheap, by the command's tag alone: what a transaction does is not looked at. Nothing that
`apply` decides depends on it.
"""

from __future__ import annotations

import msgspec

from .kv.commands import ClaimLessor, Compact, DeleteRange, Expire, Revoke
from .state import Envelope

__all__ = ["frees_room"]

_KV_TAGS = frozenset(
    kind.__struct_config__.tag for kind in (DeleteRange, Compact, Revoke, Expire, ClaimLessor)
)
_decode_envelope = msgspec.msgpack.Decoder(Envelope).decode
_decode_command = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_decode_tag = msgspec.msgpack.Decoder(str).decode


def frees_room(data: bytes) -> bool:
    """Whether this encoded envelope holds a deletion, a compaction or the core's housekeeping."""
    try:
        envelope = _decode_envelope(data)
        if envelope.plugin != "kv":
            return envelope.plugin == "core"
        return _decode_tag(_decode_command(envelope.command)[0]) in _KV_TAGS
    except (msgspec.MsgspecError, ValueError, IndexError, RecursionError):
        return False
