"""The estimate of what a command will cost, before it stands in the log; costs.py has the unit.

A leader makes one for each command that it takes into an entry, so the cheap ones, which are most,
are recognized by the first bytes of their encoding: a command is an array that begins with its tag.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from .batch import Envelope
from .costs import of_size

if TYPE_CHECKING:
    from .routing import Routed
    from .views import StateView

__all__ = ["costly_marks", "estimated", "foreseen"]

# Before the name of its plugin an envelope has the header of an array and three integers, behind it
# the length of the command, and that begins with the header of an array.
_AROUND_BYTES: Final = 1 + 3 * 9 + 5 + 1
# The first byte of an array of fewer than 16 elements, which stands before the tag.
_ARRAY: Final = range(0x90, 0xA0)
_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.Decoder(Envelope).decode


def costly_marks(active: Iterable[Routed]) -> tuple[tuple[bytes, ...], int]:
    """The tags of the plugins' costly commands, and within how many bytes of an encoded envelope
    the tag of one stands."""
    found = [(routed, tag) for routed in active for tag in routed.costly_tags]
    reach = max((len(_encode(routed.name)) + len(tag) for routed, tag in found), default=0)
    return tuple(tag for _, tag in found), _AROUND_BYTES + reach


def estimated(payload: bytes, active: Mapping[str, Routed], views: Mapping[str, StateView]) -> int:
    """What the command in an encoded envelope may cost, in rows.

    What cannot be decoded costs its size: `apply` refuses it without work.
    """
    size = of_size(len(payload))
    try:
        envelope = _decode(payload)
        routed = active.get(envelope.plugin)
        if routed is None or not _may_be_costly(envelope.command, routed.costly_tags):
            return size
        command = routed.decode(envelope.command)
    except (msgspec.MsgspecError, ValueError):
        return size
    if type(command) not in routed.plugin.costly:
        return size
    return size + foreseen(routed, command, views[envelope.plugin])


def _may_be_costly(command: bytes, tags: tuple[bytes, ...]) -> bool:
    if not tags or not command:
        return False
    return command[0] not in _ARRAY or command.startswith(tags, 1)


def foreseen(routed: Routed, command: Any, view: StateView) -> int:
    """What the plugin expects of one of its costly commands, in rows."""
    try:
        return max(0, routed.plugin.cost(command, view))
    except (MemoryError, OSError, RecursionError):
        raise
    except Exception:
        # The plugin's mistake, in a guess: no reason to stop the leader. `apply` shows it as well.
        return 0
