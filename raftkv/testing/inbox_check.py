"""A check of the simulated world: a disk that hangs does not let heartbeats pile up in a core."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final, NoReturn

from raftkv.raft import wire
from raftkv.raft.engine import Engine
from raftkv.raft.link import Link
from raftkv.testing.current import running_host
from raftkv.testing.patching import around

__all__ = ["HEARTBEATS_MAX", "checked_inbox"]

# Of one peer: one that wants an answer and one that does not.
HEARTBEATS_MAX: Final = 2
# The messages are counted whenever so many more of them wait: a count at each message would cost
# the square of their number.
COUNTED_EVERY: Final = 8


def checked_inbox(
    violated: Callable[[str, str], NoReturn],
) -> contextlib.AbstractContextManager[None]:
    """While this is entered, too many heartbeats of one peer in one inbox are a violation."""

    def wrap(receive: Callable[..., None]) -> Callable[..., None]:
        def checked(engine: Engine, link: Link, message: wire.Consensus) -> None:
            receive(engine, link, message)
            if engine.inbox_messages == 0 or engine.inbox_messages % COUNTED_EVERY:
                return
            heartbeats = sum(
                peer == link.peer_id and isinstance(waiting, wire.Append) and not waiting.entries
                for peer, waiting in engine._inbox
            )
            if heartbeats > HEARTBEATS_MAX:
                violated(
                    "what waits for the disk is bounded",
                    f"{heartbeats} heartbeats of {link.peer_id} wait at {running_host()}",
                )

        return checked

    return around(Engine, "receive", wrap)
