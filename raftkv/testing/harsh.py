"""Below the stream contract: single messages are lost, doubled, held back and overtaken.

Streams never do that; Raft must be safe under it all the same, and a defect that needs one lost
message shows here without waiting for a reset at the right moment. Liveness is not asked for: parts
of the protocol rely on streams (the chunks of a snapshot are sent when the one before was
acknowledged), so whoever ends this mode resets all connections.

Messages are caught where they come out of a link, decoded. What feeds a replicant stays whole and
in order: each feed continues exactly behind the one before, because the stream is TCP's, and a gap
stops the replicant by design. All else on that stream - who leads, what was applied, the signs of
life, proposals and reads - meets that fate as well, and so do the calls that carry leases of keys.

A proposal is never doubled here: how many copies have left is what a node knows when one of them is
rejected (rejecting.py), and the log sees enough of them twice, because nodes send again.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Final, Self

from raftkv.kv import lessor
from raftkv.peering import Peering
from raftkv.raft import wire
from raftkv.raft.transport import Link
from raftkv.testing.patching import around
from raftkv.testing.world import World

__all__ = ["Harsh"]

LOST, DOUBLED, HELD = 0.03, 0.1, 0.1
# Far beyond an election time-out, so that messages of former terms arrive too.
HELD_MAX_S = 2.5
KINDS: Final = (
    wire.Vote,
    wire.VoteReply,
    wire.Append,
    wire.AppendReply,
    wire.SnapshotChunk,
    wire.SnapshotReply,
    wire.TimeoutNow,
    wire.Propose,
    wire.Relayed,
    wire.ReadRequest,
    wire.ReadReply,
    wire.Liveness,
    wire.Presence,
    wire.Progressed,
    wire.LeaderChanged,
    wire.RpcRequest,
    wire.RpcReply,
)

# Copies of these are counted by who sends them.
COUNTED: Final = (wire.Propose, wire.Relayed)

#: The mark of each kind that is no message of consensus.
_MARKS: Final[dict[type, str]] = {
    wire.Propose: "harsh: proposal",
    wire.Relayed: "harsh: proposal",
    wire.ReadRequest: "harsh: read",
    wire.ReadReply: "harsh: read",
    wire.Liveness: "harsh: presence",
    wire.Presence: "harsh: presence",
    wire.RpcRequest: "harsh: call",
    wire.RpcReply: "harsh: call",
}
# The method of a call that keeps leases of keys alive.
RENEW: Final = f"kv.{lessor.RENEW}"


class Harsh:
    """Installed while entered; `active` says when messages of `KINDS` meet that fate."""

    def __init__(self, rng: random.Random) -> None:
        self.active = False
        self.lost = self.doubled = self.held = 0
        #: How many messages met it, by mark.
        self.met: Counter[str] = Counter()
        self._rng = rng
        self._patch = around(Peering, "receive", self._wrap)

    def __enter__(self) -> Self:
        # Before the first link: every link keeps the receiver that it was made with.
        self._patch.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._patch.__exit__(kind, error, trace)

    @contextlib.contextmanager
    def during(self, world: World) -> Iterator[None]:
        """Active while entered; then all connections are reset."""
        self.active = True
        try:
            yield
        finally:
            self.active = False
        names = list(world.hosts)
        for position, a in enumerate(names):
            for b in names[position + 1 :]:
                world.network.reset(a, b)

    def _wrap(self, original: Callable[..., None]) -> Callable[..., None]:
        def receive(peering: Peering, link: Link, message: Any) -> None:
            if not self.active or not isinstance(message, KINDS):
                original(peering, link, message)
                return
            draw = self._rng.random()
            if isinstance(message, COUNTED) and draw >= LOST + HELD:
                draw = 1.0
            if draw < LOST + HELD + DOUBLED:
                self.met.update(_marks_of(link, message))
            if draw < LOST:
                self.lost += 1
            elif draw < LOST + HELD:
                self.held += 1
                self._later(original, peering, link, message)
            else:
                if draw < LOST + HELD + DOUBLED:
                    self.doubled += 1
                    self._later(original, peering, link, message)
                original(peering, link, message)

        return receive

    def _later(
        self, receive: Callable[..., None], peering: Peering, link: Link, message: Any
    ) -> None:
        def arrive() -> None:
            with contextlib.suppress(wire.ProtocolError):
                receive(peering, link, message)
                if link.delivered is not None:
                    link.delivered()

        # Mostly a little late, now and then very late.
        peering.hub.runtime.call_later(HELD_MAX_S * self._rng.random() ** 4, arrive)


def _marks_of(link: Link, message: Any) -> Iterator[str]:
    if link.purpose == "follow":
        yield "harsh: stream of a replicant"
    else:
        yield _MARKS.get(type(message), "harsh: consensus")
    if isinstance(message, wire.RpcRequest) and message.method == RENEW:
        yield "harsh: call of leases"
