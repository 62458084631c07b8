"""The pure half on the real state machine: every outcome of the decision, fencing, cleaning."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    Ahead,
    BadTicket,
    Channel,
    Cleaned,
    Cleanup,
    InProgress,
    NoOrigin,
    OutdatedLate,
    Register,
    Registered,
    Restart,
    SelfTakeover,
    TakeTicket,
    Unregister,
    is_newer,
)


class Log:
    """One machine and the sessions of its nodes; every command is an entry of its own."""

    def __init__(self, nodes: tuple[str, ...] = ("n1", "n2")) -> None:
        self.machine = StateMachine([LCR()])
        self.now = 1_000
        self.seqs = itertools.count(1)
        self.sessions: dict[str, int] = {}
        for name in nodes:
            self.node_up(name)

    def run(self, session: int, plugin: str, command: msgspec.Struct, seq: int = 0) -> Any:
        envelope = Envelope(
            session, seq or next(self.seqs), 1, plugin, msgspec.msgpack.encode(command)
        )
        [(_, _, outcome)] = self.machine.apply(
            self.machine.index + 1, encode_batch(self.now, [envelope])
        )
        assert not self.machine.faults, self.machine.faults[0].detail
        assert LCR().invariants(self.machine.view("lcr")) == []
        if isinstance(outcome, Refused):
            raise outcome
        return outcome

    def node_up(self, name: str) -> None:
        command = NodeUp(next(self.seqs), name, "core", name, "", None, (("lcr", 1),))
        self.sessions[name] = self.run(0, "core", command, command.nonce).session

    def node_down(self, name: str) -> None:
        other = next(n for n in self.sessions if n != name)
        incarnation = self.machine.members[name].incarnation
        self.run(self.sessions[other], "core", NodeDown(name, incarnation))

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

    def set(self, key: str, value: Any) -> None:
        session = next(iter(self.sessions.values()))
        self.run(session, "core", SetSetting.of("lcr", key, value))

    def entry(self, client_id: str = "c") -> Any:
        return self.machine.view("lcr").table("clients").get(client_id)

    def digest(self) -> str:
        return self.machine.digest()


def test_first_registration_is_new() -> None:
    log = Log()
    answer = log.register("n1", "a")
    assert isinstance(answer, Registered)
    assert answer.took_over is None
    assert not answer.session_present
    assert answer.channel == Channel("c", "a", "n1", 1, answer.channel.ticket, log.machine.serial)
    assert log.entry().owner == answer.channel


def test_registration_over_the_real_predecessor_takes_over() -> None:
    log = Log()
    a = log.register("n1", "a").channel
    answer = log.register("n2", "b", a)
    assert isinstance(answer, Registered)
    assert answer.took_over == a
    assert answer.session_present
    assert log.entry().owner == answer.channel


def test_missed_predecessor_restarts_and_claims() -> None:
    log = Log()
    a = log.register("n1", "a").channel
    answer = log.register("n2", "b")
    assert isinstance(answer, Restart)
    assert answer.predecessor == a
    assert log.entry().owner == a
    assert log.entry().claim.channel == answer.claim
    again = log.register("n2", "b", a, ticket=answer.claim.ticket)
    assert isinstance(again, Registered)
    assert again.channel == answer.claim
    assert log.entry().claim is None


def test_outdated_late_without_any_predecessor_seen() -> None:
    """Scenario 7 of the research page."""
    log = Log()
    log.register("n1", "new", version=20)
    before = log.entry()
    answer = log.register("n2", "old", version=10)
    assert isinstance(answer, OutdatedLate)
    assert answer.newer == before.owner
    assert log.entry() == before


def test_older_connection_that_has_seen_the_newer_one_is_refused() -> None:
    """Scenario 8: naming the newer owner as predecessor must not help."""
    log = Log()
    newer = log.register("n1", "new", version=20).channel
    before = log.entry()
    answer = log.register("n2", "old", newer, version=10)
    assert isinstance(answer, OutdatedLate)
    assert log.entry() == before


def test_older_ticket_that_has_seen_the_newer_one_is_refused() -> None:
    """Scenario 8 with versions of the log."""
    log = Log()
    ticket = log.send("n2", TakeTicket()).ticket
    newer = log.register("n1", "new").channel
    assert isinstance(log.register("n2", "old", newer, ticket=ticket), OutdatedLate)
    assert log.entry().owner == newer


def test_predecessor_gone_is_ahead_and_writes_nothing() -> None:
    log = Log()
    a = log.register("n1", "a").channel
    log.send("n1", Unregister(a))
    answer = log.register("n2", "b", a)
    assert isinstance(answer, Ahead)
    assert answer.predecessor is None
    assert log.entry() is None
    again = log.register("n2", "b", None, ticket=answer.ticket)
    assert isinstance(again, Registered)
    assert again.channel.ticket == answer.ticket
    assert not again.session_present


def test_predecessor_replaced_by_an_older_one_is_ahead_too() -> None:
    log = Log()
    a = log.register("n1", "a", version=20).channel
    log.send("n1", Unregister(a))
    older = log.register("n1", "older", version=5).channel
    answer = log.register("n2", "b", a, version=30)
    assert isinstance(answer, Ahead)
    assert answer.predecessor == older
    assert log.entry().claim is None


def test_same_millisecond_is_decided_by_the_log() -> None:
    log = Log()
    a = log.register("n1", "a", version=1_000).channel
    b = log.register("n2", "b", a, version=1_000)
    assert isinstance(b, Registered)
    assert isinstance(log.register("n1", "a2", b.channel, version=999), OutdatedLate)


def test_repeated_registration_gets_the_same_answer() -> None:
    log = Log()
    a = log.register("n1", "a").channel
    first = log.register("n2", "b", a)
    before = log.entry()
    again = log.register("n2", "b", a)
    assert isinstance(again, Registered)
    assert again.repeated
    assert again.channel == first.channel
    assert again.session_present
    assert log.entry() == before


def test_newer_claim_displaces_and_the_older_claimant_is_outdated() -> None:
    log = Log()
    a = log.register("n1", "a").channel
    b = log.register("n1", "b")
    d = log.register("n2", "d")
    assert log.entry().claim.channel == d.claim
    late = log.register("n1", "b", a, ticket=b.claim.ticket)
    assert isinstance(late, OutdatedLate)
    assert late.newer == d.claim
    assert isinstance(log.register("n2", "d", a, ticket=d.claim.ticket), Registered)


def test_expired_claim_no_longer_counts() -> None:
    log = Log()
    a = log.register("n1", "a").channel
    b = log.register("n1", "b")
    log.register("n2", "d")
    log.now += 30_000
    assert isinstance(log.register("n1", "b", a, ticket=b.claim.ticket), Registered)


def test_claim_of_a_dead_node_no_longer_counts() -> None:
    log = Log()
    a = log.register("n1", "a").channel
    b = log.register("n1", "b")
    log.register("n2", "d")
    log.node_down("n2")
    assert isinstance(log.register("n1", "b", a, ticket=b.claim.ticket), Registered)


def test_policy_refuse_lets_the_claimant_finish() -> None:
    log = Log()
    log.set("policy", "refuse")
    a = log.register("n1", "a").channel
    b = log.register("n1", "b")
    third = log.register("n2", "d")
    assert isinstance(third, InProgress)
    assert third.claimant == b.claim
    assert isinstance(log.register("n1", "b", a, ticket=b.claim.ticket), Registered)


def test_settings_are_checked() -> None:
    log = Log()
    for key, value in (("policy", "first"), ("claim_ms", 1), ("cleanup_rows_max", 0)):
        with pytest.raises(Refused, match=key):
            log.set(key, value)


def test_unregister_deletes_the_exact_row_only() -> None:
    """Scenario 10: late, doubled, and naming what was written before."""
    log = Log()
    a = log.register("n1", "a").channel
    b = log.register("n2", "b", a).channel
    assert not log.send("n1", Unregister(a)).removed
    assert not log.send("n1", Unregister(a)).removed
    assert log.entry().owner == b
    assert log.send("n2", Unregister(b)).removed
    assert not log.send("n2", Unregister(b)).removed
    # The same connection registers anew: a delete of its former row finds nothing.
    b2 = log.register("n2", "b").channel
    assert not log.send("n2", Unregister(b)).removed
    assert log.entry().owner == b2


def test_unregister_of_the_owner_ends_the_claim_and_the_claimant_gets_in() -> None:
    log = Log()
    a = log.register("n1", "a").channel
    b = log.register("n2", "b")
    log.send("n1", Unregister(a))
    assert log.entry() is None
    again = log.register("n2", "b", a, ticket=b.claim.ticket)
    assert isinstance(again, Ahead)
    assert isinstance(log.register("n2", "b", None, ticket=b.claim.ticket), Registered)


def test_unregister_of_a_claim_keeps_the_owner() -> None:
    log = Log()
    a = log.register("n1", "a").channel
    b = log.register("n2", "b")
    assert log.send("n2", Unregister(b.claim)).removed
    assert log.entry().owner == a
    assert log.entry().claim is None


def test_refusals_write_nothing() -> None:
    log = Log()
    a = log.register("n1", "a").channel
    before = log.digest()
    serial = log.machine.serial
    with pytest.raises(SelfTakeover):
        log.register("n1", "a2", msgspec.structs.replace(a, channel="a2"))
    with pytest.raises(BadTicket, match="not been issued"):
        log.register("n2", "b", a, ticket=serial + 1_000)
    with pytest.raises(BadTicket, match="in use"):
        log.register("n2", "b", a, ticket=a.ticket)
    client = log.run(0, "core", OpenSession(77), 77).session
    with pytest.raises(NoOrigin):
        log.run(client, "lcr", Register("c", "x", None))
    assert log.entry().owner == a
    assert before != log.digest()  # sessions and serial went on, the tables did not
    assert len(log.machine.view("lcr").table("clients")) == 1


@pytest.mark.parametrize(
    "command",
    [
        Register("", "a", None),
        Register("c", "", None),
        Register("c", "a" * 257, None),
        Register("c" * 16_384, "a", None),
        Register("c", "a", None, version=-1),
        Register("c", "a", None, ticket=-1),
        Cleanup("n1", 1, ("c",) * 1_001, False),
    ],
)
def test_fields_beyond_their_limits_are_not_decoded(command: msgspec.Struct) -> None:
    log = Log()
    with pytest.raises(Refused, match="cannot decode"):
        log.send("n1", command)


def test_dead_node_is_fenced_at_once_and_cleaned_in_batches() -> None:
    log = Log()
    for number in range(5):
        log.send("n2", Register(f"client-{number}", "a", None))
    survivor = log.send("n1", Register("other", "a", None)).channel
    log.node_down("n2")
    # Fenced: a connection elsewhere meets an empty place, in the very next entry.
    answer = log.send("n1", Register("client-0", "b", None))
    assert isinstance(answer, Registered)
    assert not answer.session_present
    assert ("n2", 1) in log.machine.view("lcr").table("ended")
    first = log.send("n1", Cleanup("n2", 1, ("client-0", "client-1", "client-2"), False))
    assert isinstance(first, Cleaned)
    assert first.rows == 2
    ids = tuple(f"client-{n}" for n in range(5))
    assert log.send("n1", Cleanup("n2", 1, (*ids, "other"), True)).rows == 2
    assert log.entry("client-0").owner == answer.channel
    assert log.entry("other").owner == survivor
    assert len(log.machine.view("lcr").table("ended")) == 0


def test_cleanup_never_hits_the_returned_node() -> None:
    log = Log()
    log.register("n2", "a")
    log.node_down("n2")
    log.node_up("n2")
    fresh = log.register("n2", "a").channel
    assert fresh.incarnation == 3
    assert log.send("n1", Cleanup("n2", 3, ("c",), False)).rows == 0
    assert log.send("n1", Cleanup("n2", 1, ("c",), True)).rows == 0
    assert log.entry().owner == fresh


def test_restart_of_a_node_ends_its_rows_too() -> None:
    log = Log()
    a = log.register("n2", "a").channel
    log.node_up("n2")
    assert ("n2", 1) in log.machine.view("lcr").table("ended")
    answer = log.register("n1", "b", a)
    assert isinstance(answer, Ahead)


def test_snapshot_carries_the_registry() -> None:
    log = Log()
    log.register("n1", "a")
    log.register("n2", "b")
    frozen = log.machine.freeze()
    chunks = list(frozen.slices())
    copy = StateMachine([LCR()])
    copy.restore(chunks, log.machine.index)
    assert copy.digest() == log.digest()
    assert copy.view("lcr").table("clients").get("c") == log.entry()


versions = st.none() | st.integers(1, 5)
channel = st.builds(
    lambda version, ticket: Channel(
        "c", f"{ticket}", "n", 1, version or ticket, ticket, version is not None
    ),
    versions,
    st.integers(100, 110),
)


@given(channel, channel)
def test_newer_is_strict_and_total_for_different_tickets(one: Channel, other: Channel) -> None:
    assert not (is_newer(one, other) and is_newer(other, one))
    if one.ticket != other.ticket:
        assert is_newer(one, other) or is_newer(other, one)


steps = st.lists(
    st.tuples(
        st.sampled_from(["register", "follow", "unregister", "down", "up", "clean"]),
        st.sampled_from(["n1", "n2", "n3"]),
        st.integers(0, 3),
        versions,
    ),
    max_size=25,
)


@settings(max_examples=150, deadline=None)
@given(steps)
def test_any_history_keeps_the_invariants_and_never_moves_backwards(
    history: list[tuple[str, str, int, int | None]],
) -> None:
    """Every node proposes with what it knows, possibly stale; an older channel never wins."""
    log = Log(("n1", "n2", "n3"))
    known: dict[str, Channel | None] = {}
    tickets: dict[str, int] = {}
    for action, node, number, version in history:
        before = log.entry()
        name = f"{node}-{number}"
        if action == "register":
            if not log.machine.members[node].up:
                continue
            result = log.register(
                node, name, _not_self(known.get(node), node, name, log), version=version
            )
            tickets[name] = result.claim.ticket if isinstance(result, Restart) else 0
            if isinstance(result, Registered) and not result.repeated and before is not None:
                live = _is_live(before.owner, log)
                assert not (live and is_newer(before.owner, result.channel))
        elif action == "follow":
            known[node] = None if before is None else before.owner
        elif action == "unregister" and log.machine.members[node].up and before is not None:
            log.send(node, Unregister(before.owner))
        elif action == "down" and log.machine.members[node].up and node != "n1":
            log.node_down(node)
        elif action == "up":
            log.node_up(node)
        elif action == "clean":
            for key, _ in list(log.machine.view("lcr").table("ended").scan()):
                log.send("n1", Cleanup(key[0], key[1], ("c",), True))


def _not_self(row: Channel | None, node: str, name: str, log: Log) -> Channel | None:
    if row is not None and (row.channel, row.node) == (name, node):
        return None
    return row


def _is_live(row: Channel, log: Log) -> bool:
    member = log.machine.members[row.node]
    return member.up and member.incarnation == row.incarnation
