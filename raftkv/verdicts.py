"""Death verdicts on their way into the log: sent once, and only by the leader that reached them.

The proposal queue sends a command again after a change of leader. For a verdict that would be
wrong: another leader may hear the node well, and the log would still end its incarnation. So what
the queue sends passes through here. The first time a verdict leaves, its leadership must still be
in force; every other time, a question without effect takes its place under the same number, which
settles the number whether or not the verdict was appended.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from .errors import RaftkvError
from .failure_detector import Verdict
from .state.core import NodeDown, SettleOutcome

__all__ = ["Verdicts"]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[int, int, int, str, bytes]).decode

# There is no session 0, so the answer is always "expired".
_NOTHING = _encode(SettleOutcome(0, 0))

Propose = Callable[[str, msgspec.Struct], Any]


class Verdicts:
    """Stands between the proposal queue of a node and its way to the leader."""

    def __init__(self, send: Callable[[Sequence[bytes]], bool]) -> None:
        self._send = send
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
        command = NodeDown(verdict.name, verdict.incarnation)
        encoded = _encode(command)
        self._under_way[encoded] = valid
        try:
            with contextlib.suppress(RaftkvError):
                await propose("core", command)
        finally:
            del self._under_way[encoded]

    def is_under_way(self, verdict: Verdict) -> bool:
        """Whether this verdict has been proposed and is not settled."""
        return _encode(NodeDown(verdict.name, verdict.incarnation)) in self._under_way
