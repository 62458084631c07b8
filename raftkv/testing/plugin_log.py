"""Logs for checking a plugin: what happens to a small cluster, as steps that can be played again.

A step is one entry of the log. It names nodes, not sessions or numbers, because those follow from
what was played before: so steps can be left out of a log, and the rest still means something. That
is how a long log that shows a mistake is made short.

The cluster: cores core1 to core3, the replicant rep1, and a client without a node ("client"), whose
commands have no `ctx.origin`. All are up when the first step is played.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from raftkv.state import (
    Envelope,
    NodeDown,
    NodeRole,
    NodeUp,
    OpenSession,
    SetSetting,
    SetVoters,
    StateMachine,
    encode_batch,
)
from raftkv.state.machine import Outcomes

__all__ = [
    "CLIENT",
    "CORES",
    "NODES",
    "Again",
    "Batch",
    "Down",
    "Log",
    "Player",
    "Promoted",
    "Sent",
    "SetTo",
    "Step",
    "Up",
    "Votes",
]

CORES: Final = ("core1", "core2", "core3")
REPLICANT: Final = "rep1"
NODES: Final = (*CORES, REPLICANT)
_ROLES: Final = {**dict.fromkeys(CORES, "core"), REPLICANT: "replicant"}
CLIENT: Final = "client"
# Who sends what no node would: it has a session of its own.
_OPERATOR: Final = "operator"
# Where the log's clock begins.
EPOCH_MS: Final = 1_000_000


class Sent(msgspec.Struct, frozen=True):
    """A command of the plugin, sent in the session of a node or client."""

    sender: str
    command: Any

    def __str__(self) -> str:
        return f"{self.sender}: {self.command}"


class _Step(msgspec.Struct, frozen=True, kw_only=True):
    #: How far the log's clock has moved since the step before.
    after_ms: int = 0


class Batch(_Step, frozen=True):
    """Some commands in one entry."""

    sent: tuple[Sent, ...]

    def __str__(self) -> str:
        return "; ".join(map(str, self.sent))


class Again(_Step, frozen=True):
    """A command that was sent before comes once more: the one so many before the last."""

    back: int

    def __str__(self) -> str:
        return f"the command {self.back} before the last comes again"


class Up(_Step, frozen=True):
    """A node starts again, with the plugin in its newest format."""

    name: str

    def __str__(self) -> str:
        return f"{self.name} starts"


class Down(_Step, frozen=True):
    """A node is declared dead."""

    name: str

    def __str__(self) -> str:
        return f"{self.name} is declared dead"


class Promoted(_Step, frozen=True):
    """The replicant becomes a core, in the same life."""

    def __str__(self) -> str:
        return f"{REPLICANT} becomes a core"


class SetTo(_Step, frozen=True):
    """A setting of the plugin is written; None: back to its default."""

    key: str
    value: Any

    def __str__(self) -> str:
        return f"setting {self.key} = {self.value!r}"


class Votes(_Step, frozen=True):
    """The cores that vote are announced."""

    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"those who vote: {', '.join(self.names)}"


Step = Batch | Again | Up | Down | Promoted | SetTo | Votes


class Log(msgspec.Struct, frozen=True):
    """What is played. `version`: of the plugin on all nodes at first; 0: the newest. `voters`:
    whether they are announced before the first step."""

    version: int
    voters: bool
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        lines = [f"    all nodes have format {self.version}"] if self.version else []
        if not self.voters:
            lines.append("    nobody has said who votes")
        for number, step in enumerate(self.steps, 1):
            later = f"{step.after_ms} ms later, " if step.after_ms else ""
            lines.append(f"    {number:3}. {later}{step}")
        return "\n".join(lines)


class _Life:
    """A session, and the next number in it."""

    __slots__ = ("incarnation", "seq", "session")

    def __init__(self, session: int, incarnation: int = 0) -> None:
        self.session = session
        self.incarnation = incarnation
        self.seq = 0


class Player:
    """Plays steps on an empty machine, whose entries it hands to `apply`, one by one."""

    def __init__(
        self,
        apply: Callable[[bytes], Outcomes],
        machine: StateMachine,
        plugin: str,
        version: int,
        voters: bool,
    ) -> None:
        self.machine = machine
        self._apply = apply
        # All commands of the plugin, as they were sent first.
        self._sent: list[Envelope] = []
        self._plugin = plugin
        self._now_ms = EPOCH_MS
        self._nonce = 0
        self._lives: dict[str, _Life] = {}
        for name in NODES:
            self._start(name, version)
        if voters:
            self._vote(CORES)

    def play(self, step: Step) -> Outcomes:
        """The outcomes of the entry that this step makes."""
        self._now_ms += step.after_ms
        if isinstance(step, Batch):
            return self._append([self._envelope(each) for each in step.sent])
        if isinstance(step, Again):
            sent = self._sent
            return self._append([sent[-1 - step.back % len(sent)]] if sent else [])
        if isinstance(step, Up):
            return self._start(step.name)
        if isinstance(step, Votes):
            return self._vote(step.names)
        if isinstance(step, Promoted):
            incarnation = self._lives[REPLICANT].incarnation
            return self._operate(NodeRole(REPLICANT, incarnation, "core"))
        if isinstance(step, Down):
            return self._operate(NodeDown(step.name, self._lives[step.name].incarnation))
        if step.value is None:
            return self._operate(SetSetting(self._plugin, step.key, None))
        return self._operate(SetSetting.of(self._plugin, step.key, step.value))

    def _envelope(self, sent: Sent) -> Envelope:
        body = msgspec.msgpack.encode(sent.command)
        made = self._numbered(sent.sender, self._plugin, body)
        self._sent.append(made)
        return made

    def _operate(self, command: msgspec.Struct) -> Outcomes:
        return self._append([self._numbered(_OPERATOR, "core", msgspec.msgpack.encode(command))])

    def _vote(self, names: Sequence[str]) -> Outcomes:
        version, _ = self.machine.voters
        return self._operate(SetVoters(tuple(names), version))

    def _numbered(self, sender: str, plugin: str, body: bytes) -> Envelope:
        life = self._lives.get(sender)
        if sender not in NODES and (
            life is None or self.machine.client_nonce(life.session) is None
        ):
            life = self._lives[sender] = self._opened()
        assert life is not None
        life.seq += 1
        return Envelope(life.session, life.seq, 1, plugin, body)

    def _opened(self) -> _Life:
        """A client opens a session: the first one, or one in place of one that has expired."""
        self._nonce += 1
        body = msgspec.msgpack.encode(OpenSession(self._nonce))
        [(_, _, opened)] = self._append([Envelope(0, self._nonce, 1, "core", body)])
        return _Life(opened.session)

    def _start(self, name: str, version: int = 0) -> Outcomes:
        self._nonce += 1
        versions = self.machine.plugin_versions
        if version:
            versions[self._plugin] = version
        member = self.machine.members.get(name)
        role: Any = member.role if member is not None else _ROLES[name]
        up = NodeUp(self._nonce, name, role, name, "", None, tuple(versions.items()))
        body = msgspec.msgpack.encode(up)
        outcomes = self._append([Envelope(0, self._nonce, 1, "core", body)])
        opened = self.machine.session_of(name, self._nonce)
        assert opened is not None, outcomes
        self._lives[name] = _Life(*opened)
        return outcomes

    def _append(self, envelopes: Sequence[Envelope]) -> Outcomes:
        return self._apply(encode_batch(self._now_ms, envelopes))
