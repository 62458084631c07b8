"""A state machine with a keyspace, and a log to feed it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from raftkv.kv import KV
from raftkv.state.core import NodeUp, OpenSession
from raftkv.state.machine import StateMachine

__all__ = ["Log"]

_encode = msgspec.msgpack.Encoder().encode


class Log:
    """One command an entry. `sessions` are the client sessions that were opened."""

    def __init__(self) -> None:
        self.machine = StateMachine([KV()])
        self.sessions: list[int] = []
        self._now = 1
        up = NodeUp(1, "n1", "core", "n1-aa", "n1:1", None, (("kv", KV.version),))
        self.apply(0, 1, "core", up)

    @classmethod
    def on(cls, machine: StateMachine, sessions: Sequence[int]) -> Log:
        """Go on with a state that came from elsewhere."""
        log = cls.__new__(cls)
        log.machine, log.sessions, log._now = machine, list(sessions), machine.now
        return log

    def apply(
        self, session: int, seq: int, plugin: str, command: msgspec.Struct, *, floor: int = 0
    ) -> Any:
        self._now += 1
        envelope = (session, seq, floor, plugin, _encode(command))
        body = _encode((self._now, [envelope]))
        ((_, _, outcome),) = self.machine.apply(self.machine.index + 1, body)
        if isinstance(command, OpenSession):
            self.sessions.append(outcome.session)
        return outcome
