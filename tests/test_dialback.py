"""Which links count for a bootstrap, and what the one that counts goes by."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from raftkv import dialback
from raftkv.addresses import AddressBook
from raftkv.config import NodeConfig
from raftkv.credibility import Credibility
from raftkv.dialback import DialBack
from raftkv.raft import wire
from raftkv.repeats import Repeats
from raftkv.security.proof import Kind, Proof
from raftkv.testing.patching import replaced

CORES = {"core1": "core1:1", "core2": "core2:1", "core3": "core3:1"}
ABOUT = wire.About("0.2.0", [("core", 2)], "p2", "digest")
HELLO = wire.Hello(1, "raft", "raftkv", "", "core2-aa", "core", "core2:1", about=ABOUT)
ACCEPTED = Proof(Kind.NONE)


class Link:
    """A link as far as it is looked at."""

    def __init__(self, peer: wire.Hello, proof: Proof = ACCEPTED) -> None:
        self.peer = peer
        self.proof = proof


def hello(**changes: Any) -> wire.Hello:
    return msgspec.structs.replace(HELLO, **changes)


class World:
    """One core's dial-backs, with the links it has and what answers at addresses."""

    def __init__(self, *links: Link, answer: wire.Hello | None = HELLO) -> None:
        self.links = list(links)
        self.answer = answer
        self.dialled: list[str] = []
        self.slept: list[float] = []
        self.done = self.begun = 0
        self.tasks: list[asyncio.Task[None]] = []
        runtime = SimpleNamespace(spawn=self._spawn, sleep=self._sleep, monotonic=lambda: 0.0)
        hub: Any = SimpleNamespace(runtime=runtime)
        config = NodeConfig(
            name="core1", dir="/d", peer_address="core1:1", cores=CORES, insecure=True
        )
        addresses, repeats = AddressBook(CORES), Repeats(lambda: 0.0)
        credibility = Credibility(config, addresses, lambda: None, repeats, lambda: 0.0)
        links_of: Any = lambda name: self.links if name == "core2" else []  # noqa: E731
        self.dial_back = DialBack(hub, addresses, credibility, repeats, links_of, self._count)

    def _spawn(self, coroutine: Any, name: str) -> None:
        self.tasks.append(asyncio.ensure_future(coroutine))

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def _count(self) -> None:
        self.done += 1

    async def _answer(self, hub: Any, address: str, name: str, timeout_s: float) -> Any:
        self.dialled.append(f"{name} at {address} within {timeout_s:g} s")
        return self.answer

    def counted(self, asked: int = 1) -> wire.Hello | None:
        """What counts, asked so often, once the dial-backs that this began are done."""

        async def ask() -> None:
            for _ in range(asked):
                self.dial_back.counted("core2")
            await asyncio.gather(*self.tasks)

        with replaced(dialback, "handshake_at", self._answer):
            asyncio.run(ask())
        self.begun, self.tasks = len(self.tasks), []
        return self.now()

    def now(self) -> wire.Hello | None:
        """What counts now; dial-backs that this would begin do not run."""
        hub: Any = self.dial_back._hub
        hub.runtime.spawn = lambda coroutine, name: coroutine.close()
        found = self.dial_back.counted("core2")
        hub.runtime.spawn = self._spawn
        self.dial_back._dialling.clear()
        return found


def test_a_proved_link_counts_at_once() -> None:
    for proof in (Proof(Kind.CORE, "core2"), Proof(Kind.NONE, "", "core2:1", "core2")):
        world = World(Link(HELLO, proof), answer=None)
        assert world.counted() == HELLO
        assert world.begun == 0


def test_of_two_proved_links_the_newer_one_counts() -> None:
    """The older one may be of a machine that is gone: its directory would never be a voter."""
    newer = hello(raft_id="core2-bb")
    proof = Proof(Kind.CORE, "core2")
    world = World(Link(HELLO, proof), Link(newer, proof), answer=None)
    assert world.counted() == newer


def test_an_accepted_link_counts_once_the_same_process_answers_at_its_address() -> None:
    world = World(Link(HELLO))
    assert world.now() is None
    assert world.counted(asked=2) == HELLO
    assert world.begun == 1, "one dial-back at a time"
    assert world.dialled == ["core2 at core2:1 within 1 s"]
    assert world.done == 1
    assert not world.slept


@pytest.mark.parametrize(
    "claimed",
    [
        hello(raft_id="core2-bb"),
        hello(about=msgspec.structs.replace(ABOUT, process="p3")),
        hello(about=None),
        hello(raft_id="core2-bb", about=None),
    ],
)
def test_another_process_does_not_count(claimed: wire.Hello) -> None:
    world = World(Link(claimed))
    assert world.counted() is None
    assert world.slept == [dialback.AGAIN_S]
    assert world.done == 1, "it is tried again"


def test_a_core_that_does_not_answer_does_not_count() -> None:
    assert World(Link(HELLO), answer=None).counted() is None


def test_a_replicant_of_the_name_is_no_core() -> None:
    assert World(Link(HELLO), answer=hello(role="replicant")).counted() is None


def test_a_node_of_the_former_release_is_known_by_its_raft_id() -> None:
    former = hello(about=None)
    assert World(Link(former), answer=former).counted() == former


def test_a_false_claim_does_not_stand_in_the_way_of_the_core() -> None:
    false = Link(hello(raft_id="core2-bb"))
    for links in ([false, Link(HELLO)], [Link(HELLO), false]):
        assert World(*links).counted() == HELLO


def test_what_counts_is_the_answer_not_the_claim() -> None:
    """A core of a cluster whose handshake is repeated without the cluster, and with old formats."""
    now = hello(cluster_id="c1")
    old = msgspec.structs.replace(ABOUT, formats=[("core", 1)])
    assert World(Link(hello(about=old)), answer=now).counted() == now


def test_the_next_link_is_dialled_back_again() -> None:
    world = World(Link(HELLO))
    assert world.counted() == HELLO
    world.links[:] = [Link(hello(cluster_id=""))]
    world.answer = hello(raft_id="core2-bb")
    assert world.counted() is None
