"""Death verdicts on their way into the log: sent once, and only by the leader that reached them.

The proposal queue sends a command again after a change of leader. For a verdict that would be
wrong: another leader may hear the node well, and the log would still end its incarnation. So what
the queue sends passes through here. The first time a verdict leaves, its leadership must still be
in force; every other time, a question without effect takes its place under the same number, which
settles the number whether or not the verdict was appended.

From core format 2 on the command also names the term in which the verdict was reached, and `apply`
passes it over in an entry of another one (state/deaths.py). What is guarded here keeps a verdict
that is worth nothing out of the log; in core format 1 it is the only guard.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from .errors import RaftkvError
from .failure_detector import Verdict
from .state.core import DeclareDead, NodeDown, SettleOutcome

__all__ = ["Verdicts", "command_of"]

# The core format from which on a verdict names its term.
FORMAT_TERM = 2

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[int, int, int, str, bytes]).decode

# There is no session 0, so the answer is always "expired".
_NOTHING = _encode(SettleOutcome(0, 0))

Propose = Callable[[str, msgspec.Struct], Any]


def command_of(verdict: Verdict, core_format: int) -> DeclareDead | NodeDown:
    """The command that writes a verdict into the log of a cluster with this core format."""
    if core_format >= FORMAT_TERM:
        return DeclareDead(verdict.name, verdict.incarnation, verdict.term)
    return NodeDown(verdict.name, verdict.incarnation)


class Verdicts:
    """Stands between the proposal queue of a node and its way to the leader."""

    def __init__(
        self, send: Callable[[Sequence[bytes]], bool], core_format: Callable[[], int]
    ) -> None:
        """`core_format` gives that of the applied state."""
        self._send = send
        self._core_format = core_format
        # Encoded command -> whether it may leave; None once it has. A handful at most.
        self._under_way: dict[bytes, Callable[[], bool] | None] = {}
        self.voided = 0

    def send(self, commands: Sequence[bytes]) -> bool:
        """Hand encoded commands towards the leader; see `Part.send`."""
        if self._under_way:
            commands = [self._checked(command) for command in commands]
        return self._send(commands)

    def _checked(self, envelope: bytes) -> bytes:
        session, seq, floor, plugin, command = _decode(envelope)
        if plugin != "core" or command not in self._under_way:
            return envelope
        valid = self._under_way[command]
        self._under_way[command] = None
        if valid is not None and valid():
            return envelope
        self.voided += valid is not None
        return _encode((session, seq, floor, "core", _NOTHING))

    async def propose(self, propose: Propose, verdict: Verdict, valid: Callable[[], bool]) -> None:
        """Propose a verdict that is not under way; return when its number is settled.

        It is proposed only if `valid()` when it leaves. Nothing is raised: the failure detector
        reaches the verdict again if it was lost.
        """
        command = command_of(verdict, self._core_format())
        encoded = _encode(command)
        self._under_way[encoded] = valid
        try:
            with contextlib.suppress(RaftkvError):
                await propose("core", command)
        finally:
            del self._under_way[encoded]

    def is_under_way(self, verdict: Verdict) -> bool:
        """Whether this verdict has been proposed and is not settled."""
        return _encode(command_of(verdict, self._core_format())) in self._under_way
