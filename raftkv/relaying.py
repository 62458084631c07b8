"""What replicants propose, at the core that they copy from, before it goes on to the leader.

Behind this core nothing shows any more which node a command has come from, so this is where the
table of permissions is applied to it (permissions.py). A command that is not allowed is left out,
counted, and named in the log; the others of the message go on, and so does the stream: a client of
the replicant may be the one at fault.

A session is as new as the entry that opened it. A command under a session that this core has not
applied yet waits until it has: a moment, unless this core lags far behind. What waits is bounded;
what is beyond the bound is dropped, and sent again by its origin.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from .errors import NotPermitted
from .permissions import Proposer, Verdict, judge_proposal
from .rejecting import Reject, ignored
from .repeats import Repeats
from .state import Envelope
from .state.machine import StateMachine

__all__ = ["Relay"]

log = logging.getLogger("raftkv.node")

# Commands that wait for their sessions, of all replicants together, their bytes, and how long. A
# replicant sends again what is dropped; this only bridges the milliseconds by which a core lags.
# All of them are judged again in one turn: 256 take less than a millisecond.
WAITING_MAX: Final = 256
WAITING_BYTES_MAX: Final = 1 << 20
WAITING_S: Final = 1.0
# One replicant has at most such a part of that room, so that it leaves some to the others.
SHARE_PART: Final = 4

_decode = msgspec.msgpack.Decoder(Envelope).decode


class _Waiting(NamedTuple):
    proposer: Proposer
    command: bytes
    envelope: Envelope
    until: float
    reject: Reject


class Relay:
    """Judges what replicants propose through one core.

    `send` takes what is granted later: the name of the replicant, and its commands.
    """

    def __init__(
        self,
        machine: StateMachine,
        monotonic: Callable[[], float],
        send: Callable[[str, Sequence[bytes]], object],
    ) -> None:
        self._machine = machine
        self._monotonic = monotonic
        self._send = send
        self._repeats = Repeats(monotonic)
        self._waiting: list[_Waiting] = []
        self._waiting_bytes = 0
        # Of those: commands and their bytes by replicant. Only who has any stands here.
        self._shares: dict[str, tuple[int, int]] = {}
        # As of which command what waits was judged last.
        self._serial = 0
        # For the node's metrics.
        self.refused = 0
        self.dropped = 0

    def admit(
        self, proposer: Proposer, commands: Sequence[bytes], reject: Reject = ignored
    ) -> list[bytes]:
        """Those that may go on now, in their order; `reject` gets those that may not."""
        granted: list[bytes] = []
        for command in commands:
            try:
                envelope = _decode(command)
            except (msgspec.MsgspecError, ValueError):
                self._refuse(proposer, "something that is no command")
                continue
            until = self._monotonic() + WAITING_S
            self._sort(_Waiting(proposer, command, envelope, until, reject), granted)
        return granted

    def progressed(self) -> None:
        """Further entries were applied: judge again what waits."""
        if not self._waiting or self._machine.serial == self._serial:
            return
        self._serial = self._machine.serial
        now, waiting = self._monotonic(), self._waiting
        self._waiting, self._waiting_bytes = [], 0
        self._shares.clear()
        granted: dict[str, list[bytes]] = {}
        for each in waiting:
            own = granted.setdefault(each.proposer.name, [])
            self._sort(each, own, late=now >= each.until)
        for name, commands in granted.items():
            if commands:
                self._send(name, commands)

    def _sort(self, each: _Waiting, granted: list[bytes], *, late: bool = False) -> None:
        """Grant it, refuse it or let it wait. What may go on is never `late`."""
        verdict = self._judge(each.proposer, each.envelope)
        if verdict is Verdict.GRANTED:
            granted.append(each.command)
        elif verdict is Verdict.REFUSED:
            what = _described(each.envelope)
            self._refuse(each.proposer, what)
            each.reject(
                each.command,
                NotPermitted.code,
                f"{each.proposer.name} may not propose {what}: see docs/internals/security.md",
            )
        elif late or not self._has_room(each):
            self.dropped += 1
        else:
            size = len(each.command)
            count, size_bytes = self._shares.get(each.proposer.name, (0, 0))
            self._shares[each.proposer.name] = (count + 1, size_bytes + size)
            self._waiting_bytes += size
            self._waiting.append(each)

    def _has_room(self, each: _Waiting) -> bool:
        count, size_bytes = self._shares.get(each.proposer.name, (0, 0))
        size = len(each.command)
        # A replicant may have one command of any size, or a large one could never wait.
        own = count == 0 or (
            count < WAITING_MAX // SHARE_PART
            and size_bytes + size <= WAITING_BYTES_MAX // SHARE_PART
        )
        room = self._waiting_bytes + size <= WAITING_BYTES_MAX
        return own and room and len(self._waiting) < WAITING_MAX

    def _judge(self, proposer: Proposer, envelope: Envelope) -> Verdict:
        machine = self._machine
        return judge_proposal(proposer, envelope, machine.session_owner, machine.serial)

    def _refuse(self, proposer: Proposer, what: str) -> None:
        self.refused += 1
        if self._repeats.left_out(proposer.name, what) is not None:
            log.warning("%s may not propose this: %s; it is left out", proposer.name, what)


def _described(envelope: Envelope) -> str:
    return f"a command of {envelope.plugin[:64]!r} under session {envelope.session}"
