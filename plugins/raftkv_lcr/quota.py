"""What the registry counts against the quota, and which commands add to it.

A client counts for its channel and for one that claims it, whether there is one or not. So only a
client that is not registered adds: one that comes back, to another node or after its node has
ended, may register and open beyond the quota, and take over what it claimed. Unregistering and
every clean-up are never refused.
"""

from __future__ import annotations

from typing import Any, Final

from raftkv.plugin import Quota

from .commands import Entry, Gone, Open, Register

__all__ = ["CHANNEL_BYTES", "QUOTA"]

#: What a channel counts besides its client's id. The names of the connection and of its node are in
#: it, for these are bounded, and another connection of the client must not count more.
CHANNEL_BYTES: Final = 512


def _client(key: str, row: Entry) -> int:
    return 2 * (CHANNEL_BYTES + len(key))


def _gone(key: str, row: Gone) -> int:
    return CHANNEL_BYTES + len(key)


def _adds(command: Any) -> bool:
    return False


def _declares(command: Any) -> bool:
    return type(command) in (Register, Open)


QUOTA: Final = Quota(sizes={"clients": _client, "past": _gone}, adds=_adds, declares=_declares)
