"""Frames that lie, among whole nodes: three cores and a replicant in the simulated world.

Every frame that a node sends may be changed on its way: its bytes (then the receiver drops the
link), or its fields, so that it is a message of the protocol with other numbers, names, entries in
it. So every handler is met in every state that a cluster gets into by itself: elections, streaming,
snapshots, a replicant's feed, reads, proposals, calls between services.

What the handlers must withstand. The sender has been let in, by its certificate where there are
any, so it can lie with plausible values; it can contradict what was committed, and then the node
must stop itself with `Diverged`, or lie about who it is, and be refused. It can never cause an
exception that the node does not expect (`InternalFault`), a damaged disk (`DamagedLog`,
`DamagedSnapshot`, also not at the next start), a failed world (an exception in a callback or task)
or a loop without an end. That its lies do no harm to the state is not promised: Raft is not made
for members that lie.

A case is a seed; nothing in it can be left out, so a finding is replayed as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import msgspec
import pysyncobj.syncobj  # type: ignore[import-untyped, unused-ignore]

from raftkv.config import Limits, NodeConfig
from raftkv.errors import (
    Diverged,
    MissingPlugin,
    OutdatedData,
    RaftkvError,
    RemovedNode,
    WipedNode,
    WrongCluster,
)
from raftkv.node import Node
from raftkv.raft.transport import Link
from raftkv.runtime import Runtime
from raftkv.testing import current
from raftkv.testing.fuzz.frames import samples
from raftkv.testing.fuzz.mutate import damaged, damaged_document, lied
from raftkv.testing.fuzz.target import Case, Finding
from raftkv.testing.host import HostCrashed
from raftkv.testing.patching import around
from raftkv.testing.world import World, WorldFailed

__all__ = ["HandlerTarget"]

CORES: Final = ("core1", "core2", "core3")
NAMES: Final = (*CORES, "replicant1")
PORT: Final = 7000
# Small, so that snapshots are written, sent and installed within seconds.
LIMITS: Final = Limits(
    segment_bytes_max=4096,
    snapshot_log_entries=40,
    log_tail_entries=8,
    snapshot_chunk_bytes=256,
)
EPISODE_S: Final = 6.0
STEP_S: Final = 0.25
# Chance that a frame is changed, drawn for each episode. Most changed ones are still messages: the
# others cost a link each, and then nothing arrives for a while.
CHANGED_MAX: Final = 0.6
BYTES_SHARE: Final = 0.004
MALFORMED_SHARE: Final = 0.012
# A greeting that lies ends the link as well.
HELLO_SHARE: Final = 0.02
# A lie may end a node in these ways, and in no other.
ALLOWED: Final = (Diverged, MissingPlugin, OutdatedData, RemovedNode, WipedNode, WrongCluster)


class _Liar:
    """Changes frames between `send_frame` and the stream."""

    def __init__(self, rng: random.Random) -> None:
        self.active = False
        self.changed = 0
        self._rng = rng
        self._share = CHANGED_MAX * rng.random()
        self._documents = [msgspec.msgpack.decode(body) for body in samples()]

    def wrap(self, original: Callable[..., None]) -> Callable[..., None]:
        def send_frame(link: Link, frame: bytes) -> None:
            share = self._share if link.peer is not None else HELLO_SHARE
            original(link, self._maybe(frame, share) if self.active else frame)

        return send_frame

    def _maybe(self, frames: bytes, share: float) -> bytes:
        """One frame or several behind each other, each changed with this chance."""
        sent, at = [], 0
        while at < len(frames):
            end = at + 4 + int.from_bytes(frames[at : at + 4], "little")
            frame, at = frames[at:end], end
            if self._rng.random() < share:
                frame = self._change(frame)
                self.changed += 1
            sent.append(frame)
        return b"".join(sent)

    def _change(self, frame: bytes) -> bytes:
        rng, draw = self._rng, self._rng.random()
        if draw < BYTES_SHARE:
            return damaged(frame, rng, frame, times=1)
        document = msgspec.msgpack.decode(frame[4:])
        if draw < BYTES_SHARE + MALFORMED_SHARE:
            body = damaged_document(document, rng, self._documents)
        else:
            body = lied(document, rng)
        return len(body).to_bytes(4, "little") + body


class _Episode:
    """One cluster, from its start to the end of the lies."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"handlers {seed}")
        self.liar = _Liar(self.rng)
        self.world = World(seed)
        self.world.network.records_deliveries = False
        self.nodes: dict[str, Node] = {}
        self.faults: Counter[str] = Counter()
        self.configs = {
            name: NodeConfig(
                name=name,
                role="core" if name in CORES else "replicant",
                dir=f"/{name}",
                peer_address=f"{name}:{PORT}",
                cores={core: f"{core}:{PORT}" for core in CORES},
                insecure=True,
                plugins=(),
                limits=LIMITS,
            )
            for name in NAMES
        }

    async def _program(self, runtime: Runtime) -> None:
        name = current.running_host()
        self.nodes.pop(name, None)
        async with Node(self.configs[name], plugins=(), runtime=runtime) as node:
            self.nodes[name] = node
            raise await asyncio.shield(node.fault)

    def _is_up(self, name: str) -> bool:
        return self.world.host(name).is_up and name in self.nodes

    def _all_ready(self) -> bool:
        return all(self._is_up(name) and self.nodes[name].session for name in NAMES)

    def run(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(current.installed(pysyncobj.syncobj))
            stack.enter_context(around(Link, "send_frame", self.liar.wrap))
            stack.enter_context(self.world)
            for name in NAMES:
                self.world.start(name, self._program)
            self.world.wait(self._all_ready, 20, "a cluster in which every node is ready")
            self.world.spawn(self._load(), "load")
            self.liar.active = True
            for _ in range(int(EPISODE_S / STEP_S)):
                self.world.run(STEP_S)
                self._disturb()
                self._judge()

    def _disturb(self) -> None:
        """Now and then a node starts again; who has stopped itself does at once."""
        for name in NAMES:
            host = self.world.host(name)
            if host.is_up and self.rng.random() < 0.03:
                self.world.crash(name, power_cut=False)
            if not host.is_up and self.rng.random() < 0.7:
                self._judge()
                self.world.restart(name, self._program)

    def _judge(self) -> None:
        for name in NAMES:
            failure = self.world.host(name).failure
            if failure is None:
                continue
            if not isinstance(failure, ALLOWED):
                raise Finding(f"{type(failure).__name__} stopped a node: {failure}") from failure
            self.faults[f"stopped by {type(failure).__name__}"] += 1
            self.world.host(name).failure = None

    async def _load(self) -> None:
        """Writes and reads everywhere; what they are answered is of no interest here."""
        number = 0
        while True:
            await asyncio.sleep(0.01)
            name = NAMES[int(self.rng.random() * len(NAMES))]
            if self._is_up(name):
                number += 1
                self.world.spawn(self._operation(name, number), "operation")

    async def _operation(self, name: str, number: int) -> None:
        node = self.nodes[name]
        key = b"key %d" % (number % 20)
        action: Coroutine[Any, Any, Any]
        if number % 3:
            action = node.kv.put(key, bytes(number % 300), timeout_s=0.5)
        else:
            action = node.kv.get(key, timeout_s=0.5)
        with contextlib.suppress(RaftkvError, HostCrashed, asyncio.CancelledError):
            await self.world.call(name, action)


class HandlerTarget:
    """See the module's text. Counts changed frames."""

    name = "handlers"
    unit = "changed frames among nodes"
    traced: Sequence[str] = ()
    batch = 1

    def make(self, rng: random.Random) -> Case:
        return Case({}, choice=int(rng.random() * (1 << 40)))

    def vary(self, case: Case, rng: random.Random) -> Case:
        return self.make(rng)

    def run(self, case: Case) -> Counter[str]:
        episode = _Episode(case.choice)
        try:
            episode.run()
        except WorldFailed as failed:
            # What was raised counts, not that the world noticed it.
            raise (failed.__cause__ or failed) from None
        return Counter({"sent": episode.liar.changed})
