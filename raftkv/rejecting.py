"""Commands that a core does not take, and how the nodes that made them learn of it.

A command that a leader or the upstream core of a replicant leaves out was dropped in silence: its
origin sent it again until its caller's time was up. From core format 2 on the origin is sent a
`wire.Rejected` that names session, number and reason; before it, only the node that leads learns
of its own commands. Nothing of it is a verdict: only the log decides what became of a number, and a
rejection speaks of one copy. The origin knows how many copies of a command have left.

A rejection goes back the way the command came, and to no other node: several may have a copy of a
client's command, each under the same number, and to one whose copy is taken the rejection of
another's would be a lie. So a core that passes on what a replicant proposes names the replicant
(`wire.Relayed`), the leader repeats the name in the rejection, and the core knows whose copy it is.

An envelope that cannot be decoded names no session, and is not answered: no node makes one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from .errors import NotApplied, NotPermitted, Overloaded, TooLarge
from .raft import wire
from .raft.engine import Engine
from .raft.membership import name_of
from .raft.transport import Link
from .state import Envelope
from .state.machine import StateMachine

__all__ = ["FORMAT_REJECTED", "Reject", "Rejecting", "error_of", "ignored"]

#: The core format from which on rejections are sent to other nodes.
FORMAT_REJECTED: Final = 2

#: Called for a command that is left out: the command, the code of an error class, the reason.
Reject = Callable[[bytes, str, str], object]

_ERRORS: Final[dict[str, type[NotApplied]]] = {
    kind.code: kind for kind in (NotPermitted, Overloaded, TooLarge)
}
# The reason of a rejection, so that none fills a stream.
_REASON_CHARS_MAX: Final = 500
# Beyond that a stream gets none: a rejection may be much larger than the command, and a peer need
# not read. The node that made the command sends it again until its time is up.
_UNSENT_BYTES_MAX: Final = 1 << 20

_decode = msgspec.msgpack.Decoder(Envelope).decode


def ignored(command: bytes, code: str, reason: str) -> None:
    """A `Reject` for where no node is to learn of it."""


def error_of(rejected: wire.Rejected) -> NotApplied:
    """What the caller gets, if no other copy of the command can be applied."""
    return _ERRORS.get(rejected.code, NotApplied)(rejected.reason)


def _rejected(command: bytes, code: str, reason: str, origin: str = "") -> wire.Rejected | None:
    try:
        envelope = _decode(command)
    except (msgspec.MsgspecError, ValueError):
        return None
    if not 0 <= envelope.session <= wire.NUMBER_MAX or not 0 <= envelope.seq < 1 << 63:
        return None  # of no node: its session cannot be, and the message could not be read
    return wire.Rejected(envelope.session, envelope.seq, code, reason[:_REASON_CHARS_MAX], origin)


class Rejecting:
    """The rejections of one core: of its own and those that it passes on."""

    def __init__(
        self,
        engine: Engine,
        machine: StateMachine,
        followers: Callable[[], Iterable[Link]],
    ) -> None:
        """`followers` gives the links of the replicants that copy from here."""
        self._engine = engine
        self._machine = machine
        self._followers = followers
        self._name = name_of(engine.me)
        # Set by the node: a command was left out that this node has sent for itself or a client.
        self.own: Callable[[wire.Rejected], None] = lambda rejected: None

    def by(self, link: Link, origin: str = "") -> Reject:
        """For commands that came by this link, from `origin` behind it: the answer goes back."""

        def reject(command: bytes, code: str, reason: str) -> None:
            rejected = _rejected(command, code, reason, origin)
            if rejected is not None and self._machine.core_format >= FORMAT_REJECTED and link.up:
                _send(link, rejected)

        return reject

    def here(self, command: bytes, code: str, reason: str) -> None:
        """For a command that this node sends itself. A turn later: it is being sent."""
        rejected = _rejected(command, code, reason)
        if rejected is not None:
            self._engine.runtime.call_soon(self._pass_on, rejected)

    def to(self, origin: str) -> Reject:
        """For commands of a replicant that copies from here."""

        def reject(command: bytes, code: str, reason: str) -> None:
            rejected = _rejected(command, code, reason, origin)
            if rejected is not None:
                self._pass_on(rejected)

        return reject

    def on_rejected(self, link: Link, message: wire.Rejected) -> None:
        """Another core has left out what this one has sent or passed on."""
        self._pass_on(message)

    def _pass_on(self, rejected: wire.Rejected) -> None:
        if not rejected.origin:
            self.own(rejected)
        elif self._machine.core_format >= FORMAT_REJECTED:
            for link in self._followers():
                if link.peer_name == rejected.origin:
                    _send(link, msgspec.structs.replace(rejected, origin=""))

    def with_room(self, commands: Sequence[bytes], reject: Reject) -> Sequence[bytes]:
        """Those of a leader's commands that its disk has room for; `reject` gets the others."""
        engine = self._engine
        space = engine.snapshotting.space
        if not space.at_end:
            return commands
        kept = []
        for command in commands:
            if not space.full and engine.application.frees_room(command):
                kept.append(command)
            else:
                reject(command, Overloaded.code, _no_room(self._name, full=space.full))
        engine.counts.commands_refused += len(commands) - len(kept)
        return kept


def _send(link: Link, rejected: wire.Rejected) -> None:
    if link.unsent_bytes <= _UNSENT_BYTES_MAX:
        link.send(rejected)


def _no_room(name: str, *, full: bool) -> str:
    remedy = (
        "free room on its volume"
        if full
        else "delete and compact keys, which it still takes, or free room on its volume"
    )
    return f"the disk of the leader {name} is full (alarm DISK): {remedy}, then try again"
