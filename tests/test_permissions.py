"""The table of permissions, entry by entry, and that nothing is missing from it."""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from raftkv import permissions
from raftkv.permissions import Caller, End, Proposer, Verdict
from raftkv.raft import wire
from raftkv.relaying import SHARE_PART, WAITING_BYTES_MAX, WAITING_MAX, WAITING_S, Relay
from raftkv.security.proof import Kind
from raftkv.state import (
    Envelope,
    NodeDown,
    NodeRole,
    NodeUp,
    OpenSession,
    SetSetting,
    SettleOutcome,
    SetVoters,
)
from raftkv.state.core import (
    AnnounceFormats,
    Core,
    DeclareDead,
    DisarmAlarm,
    ForgetMember,
    MemberRemoved,
)
from raftkv.testing.local_cluster import LocalCluster
from tests.test_membership import in_loop

# Nothing is missing ---------------------------------------------------------------------------


def test_every_message_stands_in_the_table() -> None:
    assert set(permissions.MESSAGES) == set(typing.get_args(wire.Message))


def test_every_command_of_the_core_stands_in_the_table() -> None:
    assert set(permissions.COMMANDS) == set(Core.commands)


@in_loop
async def test_every_call_of_the_core_stands_in_the_table() -> None:
    async with LocalCluster(cores=1) as cluster:
        methods = cluster.cores[0].rpc.methods
    assert {method for method in methods if method.startswith("core.")} == set(permissions.CALLS)


# Links ----------------------------------------------------------------------------------------

#: (purpose, the role of the peer, the peer has dialled) -> with which certificates.
BOTH = {Kind.CORE, Kind.NONE}
LINKS = {
    ("raft", "core", True): BOTH,
    ("raft", "core", False): BOTH,
    ("follow", "core", False): BOTH,
    ("follow", "replicant", True): set(Kind),
    ("rpc", "core", True): BOTH,
    ("rpc", "core", False): BOTH,
    ("rpc", "replicant", True): set(Kind),
    ("rpc", "replicant", False): set(Kind),
}


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("dialler", [True, False])
@pytest.mark.parametrize("role", ["core", "replicant", "other"])
@pytest.mark.parametrize("purpose", ["raft", "follow", "rpc", "other"])
def test_who_may_stand_at_which_end_of_a_link(
    purpose: str, role: str, dialler: bool, kind: Kind
) -> None:
    allowed = kind in LINKS.get((purpose, role, dialler), set())
    assert permissions.may_take_part(kind, purpose, role, dialler=dialler) is allowed


# Messages -------------------------------------------------------------------------------------

EVERYWHERE = {wire.Refusal}
ARRIVING: dict[tuple[str, bool], set[type]] = {
    ("follow", False): {
        *(wire.Follow, wire.Presence, wire.Progressed, wire.Propose, wire.ReadRequest)
    },
    ("follow", True): {
        wire.Feed,
        wire.FeedSnapshot,
        wire.FeedConfiguration,
        wire.LeaderChanged,
        wire.ReadReply,
        wire.Rejected,
    },
    ("rpc", False): {wire.RpcRequest},
    ("rpc", True): {wire.RpcReply},
}
CONSENSUS = {
    *(wire.Vote, wire.VoteReply, wire.Append, wire.AppendReply, wire.SnapshotChunk),
    *(wire.SnapshotReply, wire.TimeoutNow, wire.Founded, wire.Addresses, wire.Liveness),
    *(wire.LostEntries, wire.Digests, wire.Presence),
    *(wire.Propose, wire.ReadRequest, wire.ReadReply),
    *(wire.Rejected, wire.Relayed),
}


@pytest.mark.parametrize("dialled", [True, False])
@pytest.mark.parametrize("purpose", ["raft", "follow", "rpc"])
def test_what_may_arrive_on_a_link(purpose: str, dialled: bool) -> None:
    expected = CONSENSUS if purpose == "raft" else ARRIVING[purpose, dialled]
    assert permissions.messages_at(purpose, dialled=dialled) == expected | EVERYWHERE


def test_a_handshake_is_no_message_of_a_link() -> None:
    assert permissions.MESSAGES[wire.Hello] == frozenset()
    assert set(End) == {end for ends in permissions.MESSAGES.values() for end in ends}


# Calls ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("core", [True, False])
@pytest.mark.parametrize("kind", Kind)
def test_who_may_call_what(kind: Kind, core: bool) -> None:
    allowed = {
        method for method in permissions.CALLS if permissions.may_call(method, kind, core=core)
    }
    expected = {"core.formats", "core.list_members", "core.list_members_2"}
    if kind is not Kind.REPLICANT_ONLY:
        expected |= {"core.change_members", "core.change_members_2", "core.raise_format"}
        if core:
            expected |= {"core.become_core", "core.become_core_2"}
    assert allowed == expected
    assert permissions.may_call("kv.renew", kind, core=core)
    assert not permissions.may_call("core.of_a_later_version", kind, core=core)
    assert set(permissions.CALLS.values()) == set(Caller)


# Commands -------------------------------------------------------------------------------------

ME = Proposer("edge1", "edge1-aa", Kind.CORE)
#: session -> its node; "" is a client's. Those up to SERIAL that are not here have ended.
SESSIONS = {3: "edge1", 4: "edge2", 5: "core1", 6: ""}
SERIAL = 10
MINE, CLIENTS, ENDED, NEWER, OTHERS = 3, 6, 7, 11, 5

_encode = msgspec.msgpack.Encoder().encode


def up(**changes: Any) -> NodeUp:
    return msgspec.structs.replace(
        NodeUp(7, "edge1", "replicant", "edge1-aa", "edge1:1", None), **changes
    )


def verdict(command: msgspec.Struct, session: int = MINE, plugin: str = "core") -> Verdict:
    envelope = Envelope(session, 1, 0, plugin, _encode(command))
    return permissions.judge_proposal(ME, envelope, SESSIONS.get, SERIAL)


#: (command, the session it is proposed under, the verdict).
PROPOSALS: list[tuple[msgspec.Struct, int, Verdict]] = [
    (up(), 0, Verdict.GRANTED),
    (up(name="edge2"), 0, Verdict.REFUSED),
    (up(raft_id="edge1-bb"), 0, Verdict.REFUSED),
    (up(role="core"), 0, Verdict.REFUSED),
    (NodeDown("edge1", 1), MINE, Verdict.REFUSED),
    (DeclareDead("edge1", 1, 1), MINE, Verdict.REFUSED),
    (DeclareDead("core1", 1, 1), MINE, Verdict.REFUSED),
    (NodeDown("core1", 1), MINE, Verdict.REFUSED),
    (NodeRole("edge1", 1, "core"), MINE, Verdict.REFUSED),
    (NodeRole("core1", 1, "replicant"), MINE, Verdict.REFUSED),
    (SetVoters(("edge1-aa",), 0), MINE, Verdict.REFUSED),
    (SetVoters(("edge1-aa",), 0), OTHERS, Verdict.REFUSED),
    (AnnounceFormats("edge1", 1, ()), MINE, Verdict.GRANTED),
    (AnnounceFormats("core1", 1, ()), MINE, Verdict.REFUSED),
    (ForgetMember("edge2", 1), MINE, Verdict.GRANTED),
    (MemberRemoved("core1-a"), MINE, Verdict.REFUSED),
    (DisarmAlarm("NOSPACE"), MINE, Verdict.GRANTED),
    (DisarmAlarm("NOSPACE"), OTHERS, Verdict.REFUSED),
    (OpenSession(9), 0, Verdict.GRANTED),
    (SetSetting("kv", "x", None), MINE, Verdict.GRANTED),
    (SetSetting("kv", "x", None), OTHERS, Verdict.REFUSED),
    (SettleOutcome(MINE, 1), MINE, Verdict.GRANTED),
    (SettleOutcome(CLIENTS, 1), MINE, Verdict.GRANTED),
    (SettleOutcome(ENDED, 1), MINE, Verdict.GRANTED),
    (SettleOutcome(OTHERS, 1), MINE, Verdict.REFUSED),
    (SettleOutcome(4, 1), MINE, Verdict.REFUSED),
    (SettleOutcome(NEWER, 1), MINE, Verdict.WAITS),
    (SettleOutcome(MINE, 1), OTHERS, Verdict.REFUSED),
]


@pytest.mark.parametrize(("command", "session", "expected"), PROPOSALS)
def test_what_a_replicant_may_propose_of_the_core(
    command: msgspec.Struct, session: int, expected: Verdict
) -> None:
    assert verdict(command, session) is expected


def test_every_command_of_the_core_is_tried() -> None:
    assert {type(command) for command, _, _ in PROPOSALS} == set(permissions.COMMANDS)


@pytest.mark.parametrize("command", [ForgetMember("edge2", 1), DisarmAlarm("NOSPACE")])
def test_a_replicant_with_such_a_certificate_does_nothing_for_an_operator(
    command: msgspec.Struct,
) -> None:
    envelope = Envelope(MINE, 1, 0, "core", _encode(command))
    restricted = ME._replace(kind=Kind.REPLICANT_ONLY)
    judged = permissions.judge_proposal(restricted, envelope, SESSIONS.get, SERIAL)
    assert judged is Verdict.REFUSED


@pytest.mark.parametrize(
    ("session", "expected"),
    [
        (MINE, Verdict.GRANTED),
        (CLIENTS, Verdict.GRANTED),
        (ENDED, Verdict.GRANTED),  # the state refuses it
        (4, Verdict.REFUSED),
        (OTHERS, Verdict.REFUSED),
        (NEWER, Verdict.WAITS),
    ],
)
def test_under_which_sessions_a_replicant_may_propose(session: int, expected: Verdict) -> None:
    assert verdict(OpenSession(1), session, plugin="kv") is expected


def test_a_command_of_the_core_of_an_unknown_kind_is_refused() -> None:
    envelope = Envelope(MINE, 1, 0, "core", _encode({"later": 1}))
    assert permissions.judge_proposal(ME, envelope, SESSIONS.get, SERIAL) is Verdict.REFUSED


# What passes through a core ---------------------------------------------------------------------


class AMachine:
    """The sessions above, as of a command of the log."""

    def __init__(self) -> None:
        self.serial = SERIAL
        self.sessions = dict(SESSIONS)

    def session_owner(self, session: int) -> str | None:
        return self.sessions.get(session)


class Upstream:
    """A core that a replicant proposes through."""

    def __init__(self) -> None:
        self.now = 0.0
        self.machine = AMachine()
        self.later: list[bytes] = []
        machine: Any = self.machine
        clock: Callable[[], float] = lambda: self.now  # noqa: E731
        self.relay = Relay(machine, clock, lambda origin, commands: self.later.extend(commands))

    def admit(self, *commands: bytes) -> list[bytes]:
        return self.relay.admit(ME, commands)


def put(session: int, seq: int = 1, plugin: str = "kv", size: int = 1) -> bytes:
    return _encode(Envelope(session, seq, 0, plugin, b"x" * size))


def test_what_is_not_allowed_is_left_out_and_the_rest_goes_on() -> None:
    upstream = Upstream()
    forged = _encode(Envelope(MINE, 2, 0, "core", _encode(NodeDown("core1", 1))))
    good = [put(MINE), put(CLIENTS), put(ENDED)]
    assert upstream.admit(good[0], forged, b"\xc1", put(OTHERS), *good[1:]) == good
    assert upstream.relay.refused == 3


def test_a_command_under_a_newer_session_waits_until_that_is_applied() -> None:
    upstream = Upstream()
    assert upstream.admit(put(NEWER), put(NEWER + 1), put(MINE)) == [put(MINE)]
    upstream.relay.progressed()
    assert not upstream.later
    upstream.machine.serial = NEWER
    upstream.machine.sessions[NEWER] = "edge1"
    upstream.relay.progressed()
    assert upstream.later == [put(NEWER)]
    upstream.machine.serial = NEWER + 1
    upstream.machine.sessions[NEWER + 1] = "core1"
    upstream.relay.progressed()
    assert upstream.later == [put(NEWER)]
    assert upstream.relay.refused == 1


def test_what_waits_is_bounded_in_number_bytes_and_time() -> None:
    upstream, share = Upstream(), WAITING_MAX // SHARE_PART
    assert upstream.admit(*(put(NEWER + 1, seq) for seq in range(share + 5))) == []
    assert upstream.relay.dropped == 5
    large, size = Upstream(), WAITING_BYTES_MAX // SHARE_PART // 2 - 100
    assert large.admit(*(put(NEWER, seq, size=size) for seq in range(5))) == []
    assert large.relay.dropped == 3
    upstream.now = WAITING_S
    upstream.machine.serial += 1  # the session is still to come
    upstream.relay.progressed()
    assert not upstream.later
    assert upstream.relay.dropped == share + 5


def test_one_replicant_leaves_room_to_others() -> None:
    upstream = Upstream()
    for number in range(SHARE_PART):
        other = ME._replace(name=f"edge{number}")
        assert upstream.relay.admit(other, [put(NEWER, seq) for seq in range(WAITING_MAX)]) == []
    share = WAITING_MAX // SHARE_PART
    assert upstream.relay.dropped == SHARE_PART * (WAITING_MAX - share)
    upstream.machine.serial, upstream.machine.sessions[NEWER] = NEWER, ""
    upstream.relay.progressed()
    assert upstream.later == [put(NEWER, seq) for seq in range(share)] * SHARE_PART


def test_one_large_command_may_wait() -> None:
    upstream = Upstream()
    large = put(NEWER, size=WAITING_BYTES_MAX - 100)
    assert upstream.admit(large) == []
    assert upstream.relay.dropped == 0


def test_what_can_be_judged_goes_on_however_long_it_has_waited() -> None:
    upstream = Upstream()
    assert upstream.admit(put(NEWER)) == []
    upstream.now = 60.0
    upstream.machine.serial, upstream.machine.sessions[NEWER] = NEWER, "edge1"
    upstream.relay.progressed()
    assert upstream.later == [put(NEWER)]
    assert upstream.relay.dropped == 0
