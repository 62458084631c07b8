"""What a node may do to another one: one table for links, messages, calls and commands.

It is looked up at one place each: when a link begins and for every message on it by `Peering`, for
what a replicant proposes by the core at which its stream ends (relaying.py). What does not stand
here is refused; tests compare the table with the messages, calls and commands that exist.

What decides is the peer's certificate (`Kind`), the role in its handshake, and the end of the link
at which a message arrives. Without certificates (`Kind.NONE`) nothing of it is proved, and the
table only keeps honest nodes from what they have no business with.

A replicant speaks for itself: it proposes under its own session or a client's, and of the commands
of the core only what concerns itself or what any client may ask for. Commands of a core about
others (who is dead, who votes) come from cores only, that is, over a consensus link.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Final, NamedTuple

import msgspec

from .raft import wire
from .security.proof import Kind, Proof
from .state import (
    Envelope,
    NodeDown,
    NodeRole,
    NodeUp,
    OpenSession,
    SetSetting,
    SettleOutcome,
    SetVoters,
)
from .state.core import AnnounceFormats, DeclareDead, DisarmAlarm, ForgetMember, MemberRemoved

__all__ = [
    "CALLS",
    "COMMANDS",
    "LINKS",
    "MESSAGES",
    "Author",
    "Caller",
    "End",
    "Proposer",
    "Verdict",
    "is_known_call",
    "judge_proposal",
    "may_begin",
    "may_call",
    "may_take_part",
    "messages_at",
]

# Links --------------------------------------------------------------------------------------------

CORE, REPLICANT = "core", "replicant"

#: The roles that a certificate lets its owner have.
ROLES: Final[Mapping[Kind, frozenset[str]]] = {
    Kind.CORE: frozenset({CORE, REPLICANT}),
    Kind.REPLICANT_ONLY: frozenset({REPLICANT}),
    Kind.NONE: frozenset({CORE, REPLICANT}),
}


class Ends(NamedTuple):
    """The roles that may stand at either end of a link."""

    dialler: frozenset[str]
    acceptor: frozenset[str]


#: Links by purpose.
LINKS: Final[Mapping[str, Ends]] = {
    "raft": Ends(frozenset({CORE}), frozenset({CORE})),
    "follow": Ends(frozenset({REPLICANT}), frozenset({CORE})),
    "rpc": Ends(frozenset({CORE, REPLICANT}), frozenset({CORE, REPLICANT})),
}


def may_take_part(kind: Kind, purpose: str, role: str, *, dialler: bool) -> bool:
    """Whether a node with such a certificate, in this role, may stand at this end of a link."""
    ends = LINKS.get(purpose)
    roles = frozenset[str]() if ends is None else ends.dialler if dialler else ends.acceptor
    return role in roles & ROLES[kind]


def may_begin(hello: wire.Hello, proof: Proof) -> bool:
    """Whether the sender of a handshake may stand at its end of the link."""
    dialler = proof.dialled is None
    return may_take_part(proof.kind, hello.purpose, hello.role, dialler=dialler)


# Messages -----------------------------------------------------------------------------------------


class End(Enum):
    """Where a message arrives."""

    #: At a core, from a core, whichever of them dialled.
    CONSENSUS = auto()
    #: At a core, from a replicant that copies from it.
    UPSTREAM = auto()
    #: At a replicant, from the core that it dialled to copy from.
    DOWNSTREAM = auto()
    #: At the node that was dialled for a call.
    CALLED = auto()
    #: At the node that has dialled for a call.
    CALLING = auto()


_ENDS: Final[Mapping[tuple[str, bool], End]] = {
    ("raft", False): End.CONSENSUS,
    ("raft", True): End.CONSENSUS,
    ("follow", False): End.UPSTREAM,
    ("follow", True): End.DOWNSTREAM,
    ("rpc", False): End.CALLED,
    ("rpc", True): End.CALLING,
}

#: At which ends each kind of message may arrive once the handshake is done.
MESSAGES: Final[Mapping[type, frozenset[End]]] = {
    wire.Hello: frozenset(),
    # The dialling end judges the other one last, for every purpose.
    wire.Refusal: frozenset(End),
    wire.Founded: frozenset({End.CONSENSUS}),
    wire.Addresses: frozenset({End.CONSENSUS}),
    wire.Vote: frozenset({End.CONSENSUS}),
    wire.VoteReply: frozenset({End.CONSENSUS}),
    wire.Append: frozenset({End.CONSENSUS}),
    wire.AppendReply: frozenset({End.CONSENSUS}),
    wire.SnapshotChunk: frozenset({End.CONSENSUS}),
    wire.SnapshotReply: frozenset({End.CONSENSUS}),
    wire.TimeoutNow: frozenset({End.CONSENSUS}),
    wire.Propose: frozenset({End.CONSENSUS, End.UPSTREAM}),
    wire.Rejected: frozenset({End.CONSENSUS, End.DOWNSTREAM}),
    wire.Relayed: frozenset({End.CONSENSUS}),
    wire.ReadRequest: frozenset({End.CONSENSUS, End.UPSTREAM}),
    wire.ReadReply: frozenset({End.CONSENSUS, End.DOWNSTREAM}),
    wire.Liveness: frozenset({End.CONSENSUS}),
    wire.Presence: frozenset({End.CONSENSUS, End.UPSTREAM}),
    wire.Digests: frozenset({End.CONSENSUS}),
    wire.LostEntries: frozenset({End.CONSENSUS}),
    wire.Follow: frozenset({End.UPSTREAM}),
    wire.Progressed: frozenset({End.UPSTREAM}),
    wire.Feed: frozenset({End.DOWNSTREAM}),
    wire.FeedSnapshot: frozenset({End.DOWNSTREAM}),
    wire.FeedConfiguration: frozenset({End.DOWNSTREAM}),
    wire.LeaderChanged: frozenset({End.DOWNSTREAM}),
    wire.RpcRequest: frozenset({End.CALLED}),
    wire.RpcReply: frozenset({End.CALLING}),
}

_AT: Final[Mapping[End, frozenset[type]]] = {
    end: frozenset(kind for kind, ends in MESSAGES.items() if end in ends) for end in End
}


def messages_at(purpose: str, *, dialled: bool) -> frozenset[type]:
    """The messages that may arrive on a link; `dialled`: by the node at which they arrive."""
    return _AT[_ENDS[purpose, dialled]]


# Calls --------------------------------------------------------------------------------------------


class Caller(Enum):
    """Which members may make a call."""

    ANY = auto()
    #: Not with a certificate that is for a replicant only.
    UNRESTRICTED = auto()
    #: A core by the configuration file or the log, and not with such a certificate.
    CORE = auto()


#: The calls of raftkv itself. Those of plugins (`<plugin>.<method>`) are open to every member.
CALLS: Final[Mapping[str, Caller]] = {
    "core.become_core": Caller.CORE,
    "core.become_core_2": Caller.CORE,
    # A replicant passes on what its operator asks it for.
    "core.change_members": Caller.UNRESTRICTED,
    "core.change_members_2": Caller.UNRESTRICTED,
    "core.formats": Caller.ANY,
    "core.list_members": Caller.ANY,
    "core.list_members_2": Caller.ANY,
    "core.raise_format": Caller.UNRESTRICTED,
}
_OWN_CALLS: Final = "core."


def is_known_call(method: str) -> bool:
    """Whether this release has such a call, or leaves it to a plugin."""
    return method in CALLS or not method.startswith(_OWN_CALLS)


def may_call(method: str, kind: Kind, *, core: bool) -> bool:
    """Whether a peer may make this call; `core`: its name is a core's (peering.py)."""
    if not is_known_call(method):
        return False
    caller = CALLS.get(method, Caller.ANY)
    if caller is Caller.ANY:
        return True
    return kind is not Kind.REPLICANT_ONLY and (core or caller is Caller.UNRESTRICTED)


# Commands -----------------------------------------------------------------------------------------


class Author(Enum):
    """From whom a command of the core may come down the stream of a replicant."""

    #: From no replicant: cores propose it over their own links.
    CORES = auto()
    #: From the replicant that it is about.
    ITSELF = auto()
    #: From any that has a certificate without a role: an operator asked it for that.
    UNRESTRICTED = auto()
    #: From any: a client may ask for it.
    ANY = auto()


#: The commands of the built-in plugin "core". Those of other plugins are open to every member.
COMMANDS: Final[Mapping[type[msgspec.Struct], Author]] = {
    AnnounceFormats: Author.ITSELF,
    DeclareDead: Author.CORES,
    DisarmAlarm: Author.UNRESTRICTED,
    ForgetMember: Author.UNRESTRICTED,
    MemberRemoved: Author.CORES,
    NodeUp: Author.ITSELF,
    NodeDown: Author.CORES,
    NodeRole: Author.CORES,
    SetVoters: Author.CORES,
    OpenSession: Author.ANY,
    SetSetting: Author.ANY,
    SettleOutcome: Author.ITSELF,
}

_union: typing.Any = typing.Union[tuple(COMMANDS)]  # noqa: UP007
_decode_command = msgspec.msgpack.Decoder(_union).decode


class Proposer(NamedTuple):
    """A replicant, as its handshake and its certificate have it."""

    name: str
    raft_id: str
    kind: Kind


class Verdict(Enum):
    """What becomes of a proposal of a replicant at its upstream."""

    GRANTED = auto()
    REFUSED = auto()
    #: Its session is newer than what this core has applied: only later can it be judged.
    WAITS = auto()


def judge_proposal(
    proposer: Proposer,
    envelope: Envelope,
    node_of: Callable[[int], str | None],
    serial: int,
) -> Verdict:
    """Whether a replicant may propose this.

    `node_of` tells whose a session is ("" for a client's, None if it is not open), as of the
    command number `serial` of the log.
    """
    session = envelope.session
    if envelope.plugin == "core":
        try:
            command = _decode_command(envelope.command)
        except (msgspec.MsgspecError, ValueError):
            return Verdict.REFUSED  # of no kind that stands in the table
        author = COMMANDS[type(command)]
        restricted = proposer.kind is Kind.REPLICANT_ONLY
        if author is Author.CORES or (author is Author.UNRESTRICTED and restricted):
            return Verdict.REFUSED
        if isinstance(command, NodeUp):
            claimed = (command.name, command.raft_id, command.role)
            own = claimed == (proposer.name, proposer.raft_id, REPLICANT)
            return Verdict.GRANTED if own else Verdict.REFUSED
        if isinstance(command, AnnounceFormats) and command.name != proposer.name:
            return Verdict.REFUSED
        if isinstance(command, SettleOutcome):
            about = _judge_session(proposer.name, command.session, node_of, serial)
            if about is not Verdict.GRANTED:
                return about
    return _judge_session(proposer.name, session, node_of, serial)


def _judge_session(
    name: str, session: int, node_of: Callable[[int], str | None], serial: int
) -> Verdict:
    """A session that has ended is let through: the state refuses it by its own error."""
    if session > serial:
        return Verdict.WAITS
    return Verdict.GRANTED if node_of(session) in (None, "", name) else Verdict.REFUSED
