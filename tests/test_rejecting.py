"""What becomes of a command that a core leaves out: at its origin, and on the way there."""

from __future__ import annotations

import types
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from raftkv import former_copies
from raftkv.errors import (
    NoLeader,
    NotApplied,
    NotPermitted,
    Overloaded,
    Timeout,
    TooLarge,
)
from raftkv.former_copies import FORMER_S, FormerCopies
from raftkv.parts import CorePart
from raftkv.proposals import Proposals
from raftkv.raft import wire
from raftkv.rejecting import Rejecting, error_of
from raftkv.state import Envelope
from raftkv.state.core import OutcomeReport
from tests import test_foreign as clients
from tests import test_outbox as queue
from tests.fakes import FakeRuntime
from tests.test_outbox import RESEND_S, SWEEP_S

FULL = Overloaded("the disk of the leader a is full")
LARGE = TooLarge("above limits.command_bytes_max")
NOT_APPLIED = OutcomeReport("not_applied")

# At the origin ------------------------------------------------------------------------------------


def test_the_only_copy_was_left_out_so_the_caller_gets_the_reason_at_once() -> None:
    bench = queue.Bench()
    future = bench.submit("a", timeout_s=60.0)
    bench.take()
    bench.outbox.rejected(1, LARGE)
    assert future.exception() is LARGE
    bench.runtime.advance(30.0)
    bench.outbox.office_changed()
    assert bench.take() == [], "it is never sent again"
    assert (len(bench.outbox), bench.outbox.size_bytes) == (0, 0)
    assert bench.outbox.fates.left_out == 1
    bench.submit("b")
    assert bench.take()[-1].floor == 2


@pytest.mark.parametrize("verdict", ["not_applied", "applied", "none"])
def test_of_a_command_that_was_sent_twice_the_log_decides(verdict: str) -> None:
    bench = queue.Bench()
    future = bench.submit("a", timeout_s=60.0)
    bench.take()
    bench.outbox.office_changed()
    bench.take()
    bench.outbox.rejected(1, LARGE)
    assert not future.done()
    ((question, about),) = bench.settling().items()
    assert about == (7, 1)
    bench.take()
    bench.outbox.office_changed()
    assert [sent.seq for sent in bench.take()] == [question], "only the question goes again"
    if verdict == "not_applied":
        bench.outbox.settle(question, NOT_APPLIED)
        bench.runtime.run()
        assert future.exception() is LARGE
    elif verdict == "applied":
        bench.outbox.settle(1, "done")
        bench.outbox.settle(question, OutcomeReport("applied"))
        assert future.result() == "done"
    else:
        bench.runtime.advance(61.0)
        assert type(future.exception()) is Timeout


def test_a_full_disk_is_named_at_the_deadline_and_costs_ever_fewer_attempts() -> None:
    bench = queue.Bench()
    future = bench.submit("a", timeout_s=20.0)
    attempts = 0
    for _ in range(round(20.0 / SWEEP_S) + 2):
        for sent in bench.take():
            attempts += 1
            bench.outbox.rejected(sent.seq, FULL)
        bench.runtime.advance(SWEEP_S)
    assert future.exception() is FULL
    assert attempts <= 5
    assert (len(bench.outbox), bench.outbox.size_bytes) == (0, 0)


def test_what_a_full_disk_left_out_is_taken_by_a_leader_with_room() -> None:
    bench = queue.Bench()
    future = bench.submit("a", timeout_s=20.0)
    bench.take()
    bench.outbox.rejected(1, FULL)
    bench.outbox.office_changed()
    assert [sent.seq for sent in bench.take()] == [1]
    bench.runtime.advance(20.0 + SWEEP_S)
    assert type(future.exception()) is Timeout, "this copy may be applied"


def test_a_number_that_was_given_up_and_left_out_holds_the_floor_no_longer() -> None:
    bench = queue.Bench()
    future = bench.submit("a", timeout_s=0.5)
    bench.take()
    bench.runtime.advance(1.0)
    assert type(future.exception()) is Timeout
    bench.outbox.rejected(1, FULL)
    bench.submit("b")
    assert bench.take()[-1].floor == 2


def test_a_rejection_of_what_is_not_under_way_is_passed_over() -> None:
    bench = queue.Bench()
    bench.outbox.rejected(1, LARGE)
    future = bench.submit("a")
    bench.outbox.rejected(2, LARGE)
    assert not future.done()


# A client's command, at the node that it asked ----------------------------------------------------


def test_each_caller_of_a_clients_command_gets_the_reason() -> None:
    bench = clients.Bench()
    futures = [bench.submit(1), bench.submit(1)]
    bench.take()
    bench.foreign.rejected(7, 1, LARGE)
    errors = [future.exception() for future in futures]
    assert [type(error) for error in errors] == [TooLarge, TooLarge]
    assert errors[0] is not errors[1]
    assert len(bench.foreign) == bench.foreign.size_bytes == 0
    bench.runtime.advance(10.0)
    assert bench.take() == []


def test_a_clients_command_that_was_sent_twice_is_unknown() -> None:
    bench = clients.Bench()
    future = bench.submit(1, timeout_s=60.0)
    bench.take()
    bench.foreign.office_changed()
    bench.take()
    bench.foreign.rejected(7, 1, LARGE)
    assert type(future.exception()) is Timeout


@pytest.mark.parametrize("error", [LARGE, FULL])
def test_the_rejection_of_an_earlier_request_is_not_that_of_a_later_one(error: Any) -> None:
    """A client that got no answer asks again; the copy of its first request is left out only now.

    The copy of the second one may yet be applied.
    """
    bench = clients.Bench()
    first = bench.submit(1, timeout_s=0.1)
    bench.take()
    bench.runtime.advance(1.0)
    assert type(first.exception()) is Timeout
    second = bench.submit(1, timeout_s=0.5)
    assert len(bench.take()) == 1
    bench.foreign.rejected(7, 1, error)
    bench.runtime.advance(1.0)
    assert type(second.exception()) is Timeout


def test_the_only_copy_of_two_requests_is_rejected_for_both() -> None:
    bench = clients.Bench()
    bench.submit(1, timeout_s=0.1)
    bench.take()
    bench.runtime.advance(1.0)
    bench.way_open = False
    second = bench.submit(1, timeout_s=0.1)
    bench.take()
    bench.foreign.rejected(7, 1, FULL)
    bench.runtime.advance(1.0)
    assert type(second.exception()) is Overloaded


def test_a_copy_behind_one_that_was_applied_is_not_that_of_a_later_request() -> None:
    """The answer was lost on its way to the client, which asks again."""
    bench = clients.Bench()
    bench.submit(1)
    bench.take()
    bench.foreign.office_changed()
    bench.take()
    bench.foreign.settle(7, 1, clients.Said("a"))
    again = bench.submit(1)
    bench.take()
    bench.foreign.rejected(7, 1, LARGE)
    assert type(again.exception()) is Timeout


def test_former_copies_are_remembered_for_a_time_and_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(former_copies, "FORMER_MAX", 2)
    now = 0.0
    former = FormerCopies(lambda: now)
    former.leave((7, 1), 2)
    former.leave((7, 2), 0)
    assert (former.of((7, 1)), former.of((7, 2))) == (2, 0)
    now = 1.0
    former.leave((7, 3), 1)
    assert former.of((7, 9)) == 0
    former.leave((7, 4), 1)
    # One too many: any number may be the one that was forgotten.
    assert (len(former), former.of((7, 1)), former.of((7, 9)), former.of((7, 4))) == (2, 1, 1, 1)
    now = FORMER_S
    assert (former.of((7, 9)), former.of((7, 3))) == (0, 1)
    now = FORMER_S + 1.0
    assert (former.of((7, 3)), len(former)) == (0, 0)


def test_a_full_disk_is_named_to_a_client_at_the_deadline() -> None:
    bench = clients.Bench()
    future = bench.submit(1, timeout_s=10.0)
    attempts = 0
    for _ in range(round(10.0 / SWEEP_S) + 2):
        for sent in bench.take():
            attempts += 1
            bench.foreign.rejected(sent.session, sent.seq, FULL)
        bench.runtime.advance(SWEEP_S)
    assert type(future.exception()) is Overloaded
    assert attempts <= 4
    bench.foreign.rejected(7, 99, LARGE)


def test_without_a_reason_it_is_the_leader_that_was_not_reached() -> None:
    bench = clients.Bench()
    bench.way_open = False
    future = bench.submit(1, timeout_s=RESEND_S)
    bench.runtime.advance(2 * RESEND_S)
    assert type(future.exception()) is NoLeader


# On the way back ----------------------------------------------------------------------------------


class FakeLink:
    def __init__(self, peer_name: str) -> None:
        self.peer_name = peer_name
        self.up = True
        self.unsent_bytes = 0
        self.sent: list[wire.Rejected] = []

    def send(self, message: wire.Rejected) -> None:
        self.sent.append(message)


class Core:
    """A core named core1 that two replicants copy from."""

    def __init__(self, core_format: int = 2) -> None:
        self.runtime = FakeRuntime()
        self.own: list[wire.Rejected] = []
        self.edges = [FakeLink("edge1"), FakeLink("edge2")]
        engine: Any = SimpleNamespace(me="core1-aa", runtime=self.runtime)
        machine: Any = SimpleNamespace(core_format=core_format)
        edges: Any = self.edges
        self.rejecting = Rejecting(engine, machine, lambda: edges)
        self.rejecting.own = self.own.append

    def reached(self) -> set[str]:
        found = {link.peer_name for link in self.edges if link.sent}
        return found | ({"core1"} if self.own else set())


def envelope(session: int, seq: int = 1) -> bytes:
    return msgspec.msgpack.encode(Envelope(session, seq, 0, "kv", b""))


@pytest.mark.parametrize("origin", ["", "edge1", "edge2", "edge3"])
def test_only_the_node_whose_copy_it_is_gets_a_rejection(origin: str) -> None:
    """Several nodes may have sent a client's command under one number; others may be taken."""
    expected = {origin or "core1"} - {"edge3"}
    core = Core()
    link: Any = FakeLink("core2")
    core.rejecting.on_rejected(link, wire.Rejected(6, 1, TooLarge.code, "why", origin))
    assert core.reached() == expected
    leader = Core()
    reject = leader.rejecting.to(origin) if origin else leader.rejecting.here
    reject(envelope(6), TooLarge.code, "why")
    if not origin:
        assert leader.reached() == set(), "a turn later: it is being sent"
        leader.runtime.run()
    assert leader.reached() == expected
    assert all(each.origin == "" for edge in core.edges for each in edge.sent)


@pytest.mark.parametrize("leads", [True, False])
@pytest.mark.parametrize("core_format", [1, 2])
def test_what_is_passed_on_for_a_replicant_names_it(core_format: int, *, leads: bool) -> None:
    sent: list[Any] = []
    core = Core(core_format)
    part: Any = SimpleNamespace(
        engine=SimpleNamespace(leading=leads or None),
        rejecting=core.rejecting,
        _replica=SimpleNamespace(core_format=core_format),
        _leader_link=lambda: SimpleNamespace(send=sent.append),
        _take=lambda commands, reject, origin: [
            reject(each, TooLarge.code, origin) for each in commands
        ],
    )
    CorePart._relay_on(part, "edge1", [envelope(6)])
    if leads:
        assert all(each.reason == "edge1" for edge in core.edges for each in edge.sent)
        assert core.reached() == ({"edge1"} if core_format == 2 else set())
    elif core_format == 2:
        assert sent == [wire.Relayed([envelope(6)], "edge1")]
        link: Any = FakeLink("core1")
        Core().rejecting.by(link, sent[0].origin)(sent[0].commands[0], TooLarge.code, "why")
        assert link.sent == [wire.Rejected(6, 1, TooLarge.code, "why", "edge1")]
    else:
        assert sent == [wire.Propose([envelope(6)])]


def test_at_core_format_1_only_the_leader_itself_learns_of_it() -> None:
    core, edge = Core(core_format=1), FakeLink("edge1")
    link: Any = edge
    core.rejecting.by(link)(envelope(3), TooLarge.code, "why")
    core.rejecting.here(envelope(6), TooLarge.code, "why")
    core.runtime.run()
    assert edge.sent == []
    assert core.reached() == {"core1"}


@pytest.mark.parametrize(
    "command", [b"garbage", envelope(-1), envelope(1, -1), envelope(10**17), envelope(1, 1 << 63)]
)
def test_what_no_node_can_have_made_is_not_answered(command: bytes) -> None:
    link: Any = FakeLink("edge1")
    Core().rejecting.by(link)(command, TooLarge.code, "why")
    assert link.sent == []


def test_a_peer_that_reads_nothing_gets_no_more_rejections() -> None:
    core, link = Core(), FakeLink("edge1")
    passed: Any = link
    for each in (link, *core.edges):
        each.unsent_bytes = 2 << 20
    core.rejecting.by(passed)(envelope(3), TooLarge.code, "why")
    core.rejecting.on_rejected(passed, wire.Rejected(6, 1, TooLarge.code, "why", "edge2"))
    assert link.sent == []
    assert core.reached() == set()


@pytest.mark.parametrize("room", [True, False])
def test_a_leader_that_takes_nothing_rejects_nothing_of_its_own(*, room: bool) -> None:
    """Else the origin would take the rejection for that of a copy that has left before."""
    rejected: list[Any] = []
    engine = SimpleNamespace(propose=lambda commands, origin: room)
    part: Any = SimpleNamespace(
        engine=engine,
        rejecting=SimpleNamespace(
            with_room=lambda commands, reject: [
                each for each in commands if each != b"put" or reject(each, "overloaded", "full")
            ]
        ),
    )
    taken = CorePart._take(part, [b"delete", b"put"], lambda *args: rejected.append(args))
    assert taken == room
    assert rejected == ([(b"put", "overloaded", "full")] if room else [])


def test_a_rejection_is_bounded_and_can_be_read() -> None:
    link: Any = FakeLink("edge1")
    Core().rejecting.by(link)(envelope(0, (1 << 63) - 1), NotPermitted.code, "why" * 1000)
    (sent,) = link.sent
    assert wire.decode(wire.encode(sent)[4:]) == sent
    assert len(sent.reason) == 500
    assert type(error_of(sent)) is NotPermitted
    unknown = msgspec.structs.replace(sent, code="of_a_later_release")
    assert type(error_of(unknown)) is NotApplied


def test_a_core_names_what_it_leaves_out_of_a_proposal() -> None:
    rejected: list[Any] = []
    proposals = Proposals(100, lambda: 0.0)
    large = msgspec.msgpack.encode(Envelope(1, 2, 0, "kv", b"x" * 100))
    good = envelope(1)
    fit = proposals.fit("b", [large, good, b"garbage"], lambda *args: rejected.append(args))
    assert fit == [good]
    assert [(command, code) for command, code, _ in rejected] == [
        (large, TooLarge.code),
        (b"garbage", TooLarge.code),
    ]
    assert "limits.command_bytes_max of this node, 100 bytes" in rejected[0][2]


@pytest.mark.parametrize(
    ("purpose", "message", "origin"),
    [
        ("follow", wire.Propose([envelope(6)]), "peer"),
        ("raft", wire.Propose([envelope(6)]), "peer"),
        ("raft", wire.Relayed([envelope(6)], "edge1"), "edge1"),
        ("raft", wire.Relayed([envelope(6)], ""), "peer"),
    ],
)
def test_a_leader_shares_entries_by_the_node_that_a_command_comes_from(
    purpose: str, message: Any, origin: str
) -> None:
    """By the link's name, never by a session: a node may open many of these."""
    taken: list[Any] = []
    part: Any = SimpleNamespace(
        engine=SimpleNamespace(
            leading=True, propose=lambda commands, origin: taken.append((commands, origin)) or True
        ),
        proposals=SimpleNamespace(fit=lambda name, commands, reject: commands),
        relay=SimpleNamespace(admit=lambda proposer, commands, reject: commands),
        rejecting=SimpleNamespace(
            by=lambda link, origin="": None, with_room=lambda commands, reject: commands
        ),
    )
    part._take = types.MethodType(CorePart._take, part)
    link: Any = SimpleNamespace(
        purpose=purpose, peer_name="peer", peer_id="p", proof=SimpleNamespace(kind=None)
    )
    on = CorePart._on_propose if type(message) is wire.Propose else CorePart._on_relayed
    on(part, link, message)
    assert taken == [([envelope(6)], origin)]
    CorePart._take(part, [envelope(7)], lambda *each: None)
    assert taken[1:] == [([envelope(7)], "")]
