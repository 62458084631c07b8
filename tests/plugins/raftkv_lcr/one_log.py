"""One state machine and the sessions of its nodes: the pure half without any cluster around it.

Every command is an entry of its own, and after each one the invariants are checked.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import msgspec

from raftkv.errors import Refused
from raftkv.state import (
    Envelope,
    NodeDown,
    NodeUp,
    OpenSession,
    SetSetting,
    StateMachine,
    encode_batch,
)
from raftkv_lcr import LCR
from raftkv_lcr.commands import (
    Adopt,
    Announce,
    Channel,
    Open,
    Register,
    SwitchMode,
    Unregister,
)
from raftkv_lcr.modes import mode_of


class Log:
    """Members of command format `version`, 2 being that of 0.1.0. `now` is the log's clock."""

    def __init__(
        self,
        nodes: tuple[str, ...] = ("n1", "n2"),
        version: int = LCR.version,
        plugin: type[LCR] = LCR,
    ) -> None:
        self.plugin = plugin()
        self.machine = StateMachine([self.plugin])
        self.version = version
        self.now = 1_000
        self.seqs = itertools.count(1)
        self.sessions: dict[str, int] = {}
        #: All entries, to feed them to another machine.
        self.entries: list[bytes] = []
        for name in nodes:
            self.node_up(name)

    def run(self, session: int, plugin: str, command: msgspec.Struct, seq: int = 0) -> Any:
        """Apply one command; its result. Raises its refusal."""
        [outcome] = self.run_batch(session, plugin, [command], seq)
        if isinstance(outcome, Refused):
            raise outcome
        return outcome

    def run_batch(
        self, session: int, plugin: str, commands: Sequence[msgspec.Struct], seq: int = 0
    ) -> list[Any]:
        """Apply commands in one entry; their results and refusals."""
        envelopes = [
            Envelope(session, seq or next(self.seqs), 1, plugin, msgspec.msgpack.encode(command))
            for command in commands
        ]
        self.entries.append(encode_batch(self.now, envelopes))
        outcomes = self.machine.apply(self.machine.index + 1, self.entries[-1])
        assert not self.machine.faults, self.machine.faults[0].detail
        assert self.plugin.invariants(self.machine.view("lcr")) == []
        return [outcome for _, _, outcome in outcomes]

    # --- members ---

    def node_up(self, name: str, version: int | None = None) -> None:
        plugins = (("lcr", self.version if version is None else version),)
        command = NodeUp(next(self.seqs), name, "core", name, "", None, plugins)
        self.sessions[name] = self.run(0, "core", command, command.nonce).session

    def node_down(self, name: str) -> None:
        other = next(n for n in self.sessions if n != name and self.machine.members[n].up)
        incarnation = self.machine.members[name].incarnation
        self.run(self.sessions[other], "core", NodeDown(name, incarnation))

    def client(self) -> int:
        """The session of a client that is no node."""
        nonce = next(self.seqs)
        session: int = self.run(0, "core", OpenSession(nonce), nonce).session
        return session

    # --- commands ---

    def send(self, node: str, command: msgspec.Struct) -> Any:
        return self.run(self.sessions[node], "lcr", command)

    def register(
        self,
        node: str,
        channel: str,
        predecessor: Channel | None = None,
        *,
        version: int | None = None,
        ticket: int = 0,
    ) -> Any:
        return self.send(node, Register("c", channel, predecessor, version, ticket))

    def open(
        self,
        node: str,
        channel: str,
        predecessor: Channel | None = None,
        *,
        client_id: str = "c",
        version: int | None = None,
        ticket: int = 0,
        resume: bool = True,
        epoch: int | None = None,
        clean: bool = False,
    ) -> Any:
        """Open, under the present mode unless `epoch` says otherwise."""
        epoch = mode_of(self.view()).epoch if epoch is None else epoch
        return self.send(
            node, Open(client_id, channel, predecessor, version, ticket, resume, epoch, clean)
        )

    def adopt(self, by: str, channel: Channel, session_present: bool = True) -> Any:
        return self.send(by, Adopt(channel, session_present))

    def announce(self, *nodes: str) -> None:
        """These nodes have adopted everything for the present epoch."""
        for node in nodes:
            self.send(node, Announce(2, mode_of(self.view()).epoch))

    def switch(self, mode: Any, node: str = "n1") -> Any:
        return self.send(node, SwitchMode(mode))

    def unregister(self, node: str, channel: Channel) -> bool:
        removed: bool = self.send(node, Unregister(channel)).removed
        return removed

    def set(self, key: str, value: Any) -> None:
        session = next(iter(self.sessions.values()))
        self.run(session, "core", SetSetting.of("lcr", key, value))

    # --- state ---

    def view(self) -> Any:
        return self.machine.view("lcr")

    def entry(self, client_id: str = "c") -> Any:
        return self.view().table("clients").get(client_id)

    def living(self, node: str, channel: str, client_id: str = "c") -> Channel:
        """A channel of the node's present life that has no row."""
        return Channel(client_id, channel, node, self.machine.members[node].incarnation, 0, 0)

    def digest(self) -> str:
        return self.machine.digest()
