"""A cluster without consensus, for the tests of one plugin: one list is the log.

    async def body() -> None:
        cluster = await FakeCluster(Locks, cores=3).start()
        held = await cluster.nodes["core1"].opened.acquire(b"door")
        cluster.isolate("core1")
        cluster.declare_dead("core1")
        ...
        cluster.check()

    run(body())                                    # raftkv.testing.clock: virtual time

Real are the state machine, the plugin with its API and its service, and the order in which the
node calls their hooks. Faked are the log (an append is a commit, `NETWORK_S` after `propose`), the
network between nodes (a delay, and what `mishap` does to a call) and the disks. So a test decides
what happens between two entries, and a story of a minute takes milliseconds. What it cannot show
is what consensus does: elections, lost entries, refused reads. Tests on `LocalCluster` remain.

A node may be *paused*: it goes on proposing but applies nothing until it is resumed, like one that
lags. It may be *isolated*: nothing reaches it or leaves it, but it goes on; when it was declared
dead meanwhile, it comes back in a new life (`rejoin`). It may *jump*: a snapshot takes it over
entries that it has not applied. It may be deaf to answers (`lose_answers`): a proposal is applied,
and its caller does not hear of it. Or it is *killed*, and *restarted* with its disk. Nobody is
declared dead or made leader unless the test does it.

`beside` are the plugins that the one under test uses: they are there with their pure half, so that
their commands can be called and their tables read, but without API and service.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, cast

import msgspec

from raftkv.errors import Refused
from raftkv.plugin import Plugin
from raftkv.state import (
    Envelope,
    NodeDown,
    NodeUp,
    SetSetting,
    SetVoters,
    StateMachine,
    encode_batch,
)
from raftkv.state.machine import Outcomes
from raftkv.testing.disk import SimDisk
from raftkv.testing.plugin_host import NETWORK_S, FakeHost, FakeRpc, FakeRuntime, Mishap, Role

__all__ = [
    "EPOCH_MS",
    "NETWORK_S",
    "FakeCluster",
    "FakeHost",
    "FakeRpc",
    "FakeRuntime",
    "Mishap",
    "Role",
    "tag_of",
    "until",
]

# The log's clock where a world begins.
EPOCH_MS = 1_000_000

NodeT = TypeVar("NodeT", bound=FakeHost[Any])


class FakeCluster(Generic[NodeT]):
    """The log and the nodes: cores core1.., replicants rep1... `await cluster.start()` before use.

    `plugin` makes the plugin under test, `beside` those that it uses; a class will do. `options`
    is what every node's `Host.options` is.
    """

    def __init__(
        self,
        plugin: Callable[[], Plugin[Any]],
        cores: int = 3,
        replicants: int = 0,
        *,
        beside: Sequence[Callable[[], Plugin[Any]]] = (),
        options: Any = None,
    ) -> None:
        self.make_plugin = plugin
        self.options = options
        self.log: list[bytes] = []
        #: The indices of entries that raise the core format.
        self.raises: set[int] = set()
        self.nodes: dict[str, NodeT] = {}
        self.disks: dict[str, SimDisk] = {}
        self.leader: str | None = None
        self.boots = 0
        #: The log's clock as of the last entry; a test may move it forward.
        self.stamp_ms = EPOCH_MS
        #: (node, task, error) of tasks and hooks that failed: `check` wants none.
        self.failures: list[tuple[str, str, BaseException | None]] = []
        #: (session, seq) of proposals whose callers do not hear of the outcome.
        self.unheard: set[tuple[int, int]] = set()
        #: Nodes that no call between nodes reaches or leaves, while the log does.
        self.cut: set[str] = set()
        #: Nodes whose process has gone and whose machine refuses connections.
        self.refusing: set[str] = set()
        #: Called with each envelope before it is appended; a false answer keeps it off the log.
        self.filter: Callable[[NodeT, Envelope], bool] = lambda node, envelope: True
        #: Called with (sender, receiver, method) of each call between nodes.
        self.mishap: Callable[[str, str, str], Mishap] = lambda sender, receiver, method: "none"
        self._beside = beside
        self._nonce = 0
        self._shape = (cores, replicants)
        #: Applies everything at once: what the log says, whatever the nodes do.
        self.witness = self.make_machine(plugin())

    def make_machine(self, plugin: Plugin[Any]) -> StateMachine:
        """An empty state with these plugins."""
        return StateMachine([*(make() for make in self._beside), plugin])

    def make_node(self, name: str, role: Role) -> NodeT:
        """Override to use a subclass of `FakeHost`."""
        return cast(NodeT, FakeHost(self, name, role))

    def prepare(self, node: NodeT) -> None:
        """Override to do something with each new node before its service starts."""

    # --- nodes ---

    async def start(self) -> FakeCluster[NodeT]:
        """Start all nodes; core1 leads."""
        cores, replicants = self._shape
        for number in range(1, cores + 1):
            await self.add(f"core{number}", "core")
        for number in range(1, replicants + 1):
            await self.add(f"rep{number}", "replicant")
        self.lead("core1")
        return self

    async def add(self, name: str, role: Role = "core") -> NodeT:
        self.boots += 1
        node = self.make_node(name, role)
        await self.join(node)
        return node

    async def join(self, node: NodeT) -> None:
        """Start a node that was made elsewhere, such as one of an older version."""
        self.nodes[node.name] = node
        self.prepare(node)
        await node.boot()
        node.catch_up()
        self.node_up(node)

    def kill(self, name: str) -> None:
        """The process is gone; the cluster has not noticed yet."""
        self.nodes[name].alive = False
        self.nodes[name].runtime.die()

    async def restart(self, name: str) -> NodeT:
        """A new process under the same name, with its disk and the log."""
        self.kill(name)
        return await self.add(name, self.nodes[name].role)

    async def stop(self, name: str) -> None:
        """The node stops in good order."""
        await self.nodes[name].service.stop()
        self.kill(name)

    def node_up(self, node: NodeT) -> None:
        """The node begins a life: it gets a session and an incarnation."""
        self._nonce += 1
        versions = tuple(node.machine.plugin_versions.items())
        command = NodeUp(self._nonce, node.name, node.role, node.name, "", None, versions)
        self.append([Envelope(0, self._nonce, 1, "core", msgspec.msgpack.encode(command))])
        opened = self.witness.session_of(node.name, self._nonce)
        assert opened is not None
        node.session, node.incarnation = opened
        node.seq = 0
        node.service.on_incarnation(node.incarnation)
        version, voters = self.witness.voters
        if node.role == "core" and node.name not in voters:
            self.append_core(SetVoters((*voters, node.name), version))

    def declare_dead(self, name: str) -> None:
        """What the leader's failure detector proposes."""
        self.append_core(NodeDown(name, self.witness.members[name].incarnation))

    def configure(self, **settings: Any) -> None:
        """Set replicated settings of the plugin under test."""
        for key, value in settings.items():
            self.append_core(SetSetting.of(self.make_plugin().name, key, value))

    def lead(self, name: str) -> None:
        """This node leads from now on, and the former leader learns of it if it lives."""
        if self.leader is not None and self.nodes[self.leader].alive:
            self.nodes[self.leader].service.on_follower()
        self.leader = name
        self.nodes[name].service.on_leader()

    def any_live(self) -> NodeT:
        """The first node that lives and is not paused."""
        return next(node for node in self.nodes.values() if node.alive and not node.paused)

    # --- the log ---

    def now_ms(self) -> int:
        return EPOCH_MS + int(asyncio.get_running_loop().time() * 1000)

    def append_core(self, command: msgspec.Struct) -> None:
        """Append a command of the core, from some node whose life goes on. Raises its refusal."""
        node = next(node for node in self.nodes.values() if node.alive and self._lives(node))
        node.seq += 1
        body = msgspec.msgpack.encode(command)
        [(_, _, outcome)] = self.append([Envelope(node.session, node.seq, 1, "core", body)])
        if isinstance(outcome, Refused):
            raise outcome

    def raise_core_format(self, version: int = 2) -> None:
        """The entry by which all nodes use a newer core format. A world begins at format 1."""
        body = msgspec.msgpack.encode(version)
        self.log.append(body)
        self.raises.add(len(self.log))
        self.witness.raise_format(len(self.log), body)
        for node in list(self.nodes.values()):
            node.catch_up()

    def _lives(self, node: NodeT) -> bool:
        member = self.witness.members.get(node.name)
        return member is not None and member.up and member.incarnation == node.incarnation

    def append(self, envelopes: list[Envelope]) -> Outcomes:
        """One entry: committed at once, and applied by every node that hears it."""
        self.stamp_ms = max(self.stamp_ms, self.now_ms())
        body = encode_batch(self.stamp_ms, envelopes)
        self.log.append(body)
        outcomes = self.witness.apply(len(self.log), body)
        assert not self.witness.faults, self.witness.faults[0].detail
        for node in list(self.nodes.values()):
            node.catch_up()
        return outcomes

    def transmit(self, node: NodeT, envelope: Envelope) -> None:
        loop = asyncio.get_running_loop()
        if node.alive and not node.isolated and self.filter(node, envelope):
            loop.call_later(NETWORK_S, self._arrive, envelope)

    def _arrive(self, envelope: Envelope) -> None:
        """What a fault or a failing hook raises here reaches nobody but the loop's log."""
        try:
            self.append([envelope])
        except Exception as error:
            self.failures.append(("the log", tag_of(envelope), error))
            raise

    # --- mishaps ---

    def reaches(self, sender: str, receiver: str) -> bool:
        """Whether what one node sends arrives at the other."""
        one, other = self.nodes[sender], self.nodes[receiver]
        if not one.alive or not other.alive or {sender, receiver} & self.cut:
            return False
        return sender == receiver or not (one.isolated or other.isolated)

    def pause(self, name: str) -> None:
        self.nodes[name].paused = True

    def resume(self, name: str) -> None:
        self.nodes[name].paused = False
        self.nodes[name].catch_up()

    def isolate(self, name: str) -> None:
        """Cut the node off from all others and from the log; it does not know."""
        self.nodes[name].isolated = True

    def heal(self, name: str) -> None:
        """The node hears the others again, and catches up."""
        self.nodes[name].isolated = False
        self.nodes[name].catch_up()

    def rejoin(self, name: str) -> None:
        """The node hears the others again, learns that it was declared dead, and begins anew."""
        self.heal(name)
        self.node_up(self.nodes[name])

    def jump(self, name: str) -> None:
        """A snapshot of the log's end takes the paused or isolated node over all before it."""
        node = self.nodes[name]
        node.restore(list(self.witness.freeze().slices()), self.witness.index)
        node.paused = node.isolated = False

    def hold(self, name: str, *tags: str) -> Callable[[], None]:
        """Keep what this node proposes (of these tags) off the log until the result is called."""
        held: list[Envelope] = []

        def keep(node: NodeT, envelope: Envelope) -> bool:
            if node.name == name and (not tags or tag_of(envelope) in tags):
                held.append(envelope)
                return False
            return True

        def release() -> None:
            self.filter = lambda node, envelope: True
            for envelope in held:
                self.append([envelope])

        self.filter = keep
        return release

    def lose_answers(self, name: str, *tags: str, times: int = 1) -> list[Envelope]:
        """The next proposals of these tags are applied, but their callers do not hear of it."""
        lost: list[Envelope] = []

        def deafen(node: NodeT, envelope: Envelope) -> bool:
            if node.name == name and tag_of(envelope) in tags and len(lost) < times:
                lost.append(envelope)
                self.unheard.add((envelope.session, envelope.seq))
            return True

        self.filter = deafen
        return lost

    def lose_calls(self, rng: random.Random, share: float) -> None:
        """From now on, that share of the calls between nodes is lost on the way there or back."""

        def mishap(sender: str, receiver: str, method: str) -> Mishap:
            if rng.random() >= share:
                return "none"
            return "request lost" if rng.random() < 0.5 else "reply lost"

        self.mishap = mishap

    # --- looking and judging ---

    def table(self, name: str) -> dict[Any, Any]:
        """The rows of one of the plugin's tables, as the log has them."""
        return dict(self.witness.view(self.make_plugin().name).table(name).scan())

    def check(self) -> None:
        """Nothing failed, the invariants hold, and who is up to date has the log's state."""
        assert not self.failures, self.failures
        assert self.witness.invariants() == []
        for node in self.nodes.values():
            if node.applies:
                assert node.machine.index == len(self.log), node.name
                assert node.machine.digest() == self.witness.digest(), node.name


def tag_of(envelope: Envelope) -> str:
    """The tag of the command of a plugin; "" for the core's."""
    if envelope.plugin == "core":
        return ""
    tag: str = msgspec.msgpack.decode(envelope.command)[0]
    return tag


async def until(condition: Callable[[], bool], timeout_s: float = 120.0) -> None:
    """Wait, in virtual time, for something to become true."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while not condition():
        assert loop.time() < deadline, f"not within {timeout_s:g} s of virtual time"
        await asyncio.sleep(NETWORK_S)
