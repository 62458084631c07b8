"""Which members hold plugin formats up, at both core formats."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from raftkv.errors import Refused, StaleIncarnation, UnknownCommand
from raftkv.state.activation import VANISHED_MS, counts
from raftkv.state.contract import Member
from raftkv.state.core import DeclareDead, ForgetMember, NodeDown, SetVoters

from .harness import Driver

OLD = (("bank", 1), ("shop", 1))
NEW = (("bank", 1), ("shop", 2))


class Cluster(Driver):
    """Nodes by name. `session` stays that of "n1", which is up all the time."""

    def __init__(self, core_format: int = 2) -> None:
        super().__init__()
        if core_format > 1:
            index = self.machine.index + 1
            self.machine.raise_format(index, msgspec.msgpack.encode(core_format))
        self.incarnations: dict[str, int] = {}

    def up(self, name: str, plugins: Any = NEW, **changes: Any) -> None:
        kept = self.session, self.seq
        self.incarnations[name] = self.start(name, plugins=plugins, **changes).incarnation
        if name != "n1":
            self.session, self.seq = kept

    def down(self, name: str) -> None:
        command: NodeDown | DeclareDead = NodeDown(name, self.incarnations[name])
        if self.machine.core_format >= 2:
            command = DeclareDead(name, self.incarnations[name], self.term)
        self.incarnations[name] = self.send(command, "core").incarnation

    def vote(self, *names: str) -> None:
        version = self.machine.voters[0]
        answer = self.send(SetVoters(tuple(f"r-{name}" for name in names), version), "core")
        assert answer.accepted

    def forget(self, name: str, *, early: bool = False) -> Any:
        return self.send(ForgetMember(name, self.incarnations.get(name, 1), early), "core")

    @property
    def shop(self) -> int:
        return self.machine.active_versions.get("shop", 0)


def replaced_core(cluster: Cluster) -> None:
    """n3, of the former release, dies and is replaced by n4; then all are upgraded."""
    for name in ("n1", "n2", "n3"):
        cluster.up(name, OLD)
    cluster.vote("n1", "n2", "n3")
    cluster.down("n3")
    cluster.vote("n1", "n2")
    cluster.up("n4")
    cluster.vote("n1", "n2", "n4")
    for name in ("n1", "n2"):
        cluster.up(name)


@pytest.mark.parametrize(("core_format", "active"), [(1, 1), (2, 2)])
def test_a_core_that_was_replaced_keeps_no_format_up(core_format: int, active: int) -> None:
    cluster = Cluster(core_format)
    replaced_core(cluster)
    assert cluster.shop == active


def test_the_raise_itself_ends_what_a_replaced_core_holds_up() -> None:
    cluster = Cluster(1)
    replaced_core(cluster)
    index = cluster.machine.index + 1
    cluster.machine.raise_format(index, msgspec.msgpack.encode(2))
    assert cluster.shop == 2


@pytest.mark.parametrize(("core_format", "active"), [(1, 0), (2, 2)])
def test_a_core_that_was_removed_without_the_plugin(core_format: int, active: int) -> None:
    cluster = Cluster(core_format)
    cluster.up("n1")
    cluster.up("n3", ())
    cluster.vote("n1", "n3")
    cluster.down("n3")
    cluster.vote("n1")
    cluster.up("n1")
    assert cluster.machine.active_versions.get("shop", 0) == (active or 2)
    # A core that was there first, and lacked the plugin, is what kept it inactive.
    other = Cluster(core_format)
    other.up("n3", ())
    other.up("n1", ())
    other.vote("n1", "n3")
    other.down("n3")
    other.vote("n1")
    other.up("n1")
    assert other.shop == active


def vanished(core_format: int = 2) -> Cluster:
    cluster = Cluster(core_format)
    cluster.up("n1", OLD)
    cluster.vote("n1")
    cluster.up("pod", OLD, role="replicant")
    cluster.up("n1")
    return cluster


def test_a_replicant_that_is_down_holds_its_format_up_for_an_hour() -> None:
    cluster = vanished()
    cluster.down("pod")
    assert cluster.shop == 1
    assert isinstance(cluster.forget("pod"), Refused)
    cluster.now += VANISHED_MS
    assert cluster.forget("pod") is None
    assert cluster.shop == 2
    assert cluster.machine.formats_of("pod") == {}


def test_a_replicant_that_is_gone_can_be_forgotten_at_once() -> None:
    cluster = vanished()
    cluster.down("pod")
    assert cluster.forget("pod", early=True) is None
    assert cluster.shop == 2
    before = cluster.incarnations["pod"]
    cluster.up("pod", role="replicant")
    assert cluster.incarnations["pod"] == before + 1  # numbers of incarnations do not repeat


def test_who_is_up_or_votes_cannot_be_forgotten() -> None:
    cluster = vanished()
    assert isinstance(cluster.forget("pod", early=True), StaleIncarnation)
    assert isinstance(cluster.forget("stranger", early=True), StaleIncarnation)
    cluster.up("n2", OLD)
    cluster.vote("n1", "n2")
    cluster.down("n2")
    refusal = cluster.forget("n2", early=True)
    assert "remove it from the cores first" in str(refusal)
    assert cluster.shop == 1


def test_at_core_format_1_a_member_cannot_be_forgotten() -> None:
    cluster = vanished(1)
    cluster.down("pod")
    assert isinstance(cluster.forget("pod", early=True), UnknownCommand)


def test_at_core_format_1_a_death_leaves_the_row_as_the_first_release_does() -> None:
    cluster = vanished(1)
    started_ms = cluster.machine.members["pod"].started_ms
    cluster.down("pod")
    assert cluster.machine.members["pod"].started_ms == started_ms


@pytest.mark.parametrize(
    ("role", "up", "voters", "age", "expected"),
    [
        ("core", False, ("r-m",), 10**9, True),
        ("core", True, ("r-x",), 0, True),  # a learner
        ("core", False, ("r-x",), 0, False),
        ("core", False, (), 10**9, True),
        ("replicant", True, ("r-x",), 10**9, True),
        ("replicant", False, ("r-x",), VANISHED_MS - 1, True),
        ("replicant", False, ("r-x",), VANISHED_MS, False),
    ],
)
def test_who_counts(role: str, up: bool, voters: tuple[str, ...], age: int, expected: bool) -> None:
    member = Member("m", role, "r-m", "h:1", None, 1, up, 1000)
    assert counts(member, voters, 1000 + age) is expected


def test_a_change_of_the_members_looks_at_each_of_them_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their rows stay for ever, and each start and each death of a node compares the formats."""
    cluster = Cluster()
    for number in range(20):
        cluster.up(f"n{number + 1}", role="core" if number < 3 else "replicant")
    looked: list[str] = []

    def counted(member: Member, voters: tuple[str, ...], now: int) -> bool:
        looked.append(member.name)
        return counts(member, voters, now)

    monkeypatch.setattr("raftkv.state.activation.counts", counted)
    cluster.up("n21", role="replicant")
    assert len(looked) == 21
    cluster.down("n20")
    assert len(looked) == 42
