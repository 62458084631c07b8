"""What the registry counts against the quota, and which commands add to it.

Registering and opening add. Taking over what was claimed, unregistering and every clean-up are
never refused.
"""

from __future__ import annotations

from typing import Any, Final

from raftkv.plugin import Quota

from .commands import Channel, Entry, Gone, Open, Register

__all__ = ["CHANNEL_BYTES", "QUOTA"]

#: What a channel counts besides its names.
CHANNEL_BYTES: Final = 256


def _channel(row: Channel) -> int:
    return CHANNEL_BYTES + len(row.client_id) + len(row.channel) + len(row.node)


def _client(key: str, row: Entry) -> int:
    size = _channel(row.owner)
    return size if row.claim is None else size + _channel(row.claim.channel)


def _gone(key: str, row: Gone) -> int:
    return _channel(row.channel)


def _adds(command: Any) -> bool:
    return type(command) in (Register, Open)


QUOTA: Final = Quota(sizes={"clients": _client, "past": _gone}, adds=_adds)
