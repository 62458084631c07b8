"""A host for `KVApi`: a state machine on the spot instead of a cluster."""

from __future__ import annotations

from typing import Any

import msgspec

from raftkv.errors import Refused
from raftkv.kv import KV
from raftkv.state import Envelope, NodeUp, SetSetting, StateMachine, View, encode_batch


class FakeHost:
    """Proposals are applied at once; barriers are counted.

    `version` is the active command format. `stamp_ms` is added to the log's clock by each command.
    """

    def __init__(self, version: int = KV.version) -> None:
        self.stamp_ms = 1
        self.machine = StateMachine([KV()])
        self.barriers: list[tuple[str, float | None]] = []
        self.proposed = 0
        self.up(nonce=1, version=version)

    def up(self, nonce: int, version: int) -> None:
        """A new life of the only member, under a session of its own."""
        self._seq = 0
        up = NodeUp(nonce, "n", "core", "r", "h:1", None, (("kv", version),))
        self._session = self._apply(0, nonce, "core", up).session

    def _apply(self, session: int, seq: int, plugin: str, command: msgspec.Struct) -> Any:
        envelope = Envelope(session, seq, seq, plugin, msgspec.msgpack.encode(command))
        body = encode_batch(self.machine.now + self.stamp_ms, [envelope])
        return self.machine.apply(self.machine.index + 1, body)[0][2]

    def apply(self, command: msgspec.Struct, plugin: str = "kv") -> Any:
        """The outcome, a refusal too."""
        self._seq += 1
        return self._apply(self._session, self._seq, plugin, command)

    def advance(self, ms: int) -> None:
        """Let the log's clock pass, without a command."""
        body = encode_batch(self.machine.now + ms, [])
        self.machine.apply(self.machine.index + 1, body)

    def set(self, key: str, value: Any) -> None:
        assert self.apply(SetSetting.of("kv", key, value), "core") is None

    async def propose(self, command: msgspec.Struct, *, timeout_s: float | None = None) -> Any:
        self.proposed += 1
        outcome = self.apply(command)
        if isinstance(outcome, Refused):
            raise outcome
        return outcome

    async def barrier(
        self, consistency: str = "linearizable", *, timeout_s: float | None = None
    ) -> None:
        self.barriers.append((consistency, timeout_s))

    def view(self, plugin: str | None = None) -> View:
        return self.machine.view("kv")

    @property
    def settings(self) -> Any:
        return self.machine.view("kv").settings
