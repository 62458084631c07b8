"""A hostile program in the simulated world that reaches the nodes' ports and speaks their protocol.

It is no member. It dials any node in the name of a core or of a replicant that does not exist, with
epochs that are newer than the cluster's, with other cluster ids, with a node's raft id, and with an
address that is another node's. As a replicant it is let in where no certificates are in
use; then it sends proposals that cannot be decoded, requests for no method, positions beyond the
log, reports about nodes that it has never met, and what only a core may send: commands about other
members, under a node's own session too, entries of a later term, and answers to reads that the core
has just asked its leader for. It guesses numbers as well as can be: it is shown them. To a core
that belongs to no cluster yet it comes as all the other cores of that one's file at once, so that a
cluster seems to be complete.

What it must not achieve is checked by all other checks: no node stops itself, no promise breaks.
It takes a running node's raft id only to reach that node itself: without certificates nothing
tells the two apart elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from raftkv.raft import wire
from raftkv.raft.epoch import FOUNDED, Epoch
from raftkv.raft.membership import Configuration, encode
from raftkv.runtime import Runtime
from raftkv.state import SetVoters
from raftkv.testing.marks import Marks
from raftkv.testing.restricted import calls

if TYPE_CHECKING:
    from raftkv.testing.simulated import SimulatedCluster

__all__ = ["HOST", "Hostile"]

HOST: Final = "stranger"
CLUSTER_DEFAULT: Final = "raftkv"
PORT: Final = 7000
# Between two connections, uniform.
PAUSE_S: Final = (0.05, 0.5)
# How long a connection is kept once the handshakes were exchanged, uniform.
STAY_S: Final = (0.0, 0.5)
ANSWER_S: Final = 1.0
MESSAGES_MAX: Final = 8
# Of the connections, those that come as a replicant that wants to follow.
FOLLOW_SHARE: Final = 0.4
# And those that call as one with a certificate for replicants only (restricted.py).
CALL_SHARE: Final = 0.15
PURPOSES: Final = ("raft", "follow", "rpc")
# While a core is known to belong to no cluster, the share of visits to it in all others' names.
CLAIM_SHARE: Final = 0.5
# Before the cluster exists it comes in that way as fast as it can.
FIRST_CLAIMS: Final = 6
FIRST_PAUSE_S: Final = (0.0, 0.02)
# Of the visits as a replicant, those that repeat one forgery, how often and how fast on average.
FORGE_SHARE: Final = 0.5
FORGED_MAX: Final = 20
FORGED_EVERY_S: Final = 0.02
# Numbers of a session that its node has not used yet, and that its window still judges.
SEQ_AHEAD: Final = 30

_encode = msgspec.msgpack.Encoder().encode


class _Stream(asyncio.Protocol):
    """Sends a handshake and keeps the first frame that comes back."""

    def __init__(self, hello: wire.Hello, answer: asyncio.Future[wire.Message | None]) -> None:
        self._hello = hello
        self._answer = answer
        self._frames = wire.Frames(wire.HELLO_BYTES_MAX)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(wire.encode(self._hello))

    def data_received(self, data: bytes) -> None:
        if self._answer.done():
            return
        body = self._frames.feed_one(data)
        if body is not None:
            self._answer.set_result(wire.decode(body))

    def connection_lost(self, error: Exception | None) -> None:
        if not self._answer.done():
            self._answer.set_result(None)


def _is_unbound(message: wire.Message | None) -> bool:
    """Whether this is the answer of a core that belongs to no cluster."""
    return isinstance(message, wire.Hello) and message.role == "core" and not message.cluster_id


class Hostile:
    """What the program does; `program` runs on a host of its own until it is crashed."""

    def __init__(self, cluster: SimulatedCluster, rng: random.Random, *, early: bool) -> None:
        """With `early` there is no cluster yet when it begins."""
        self._early = early
        self._cluster = cluster
        self._rng = rng
        self._marks: Marks = cluster.marks
        # Learnt from the first answer, as anyone can.
        self._cluster_id = ""
        self._raft_ids: dict[str, str] = {}
        # Cores that belonged to no cluster when they answered last.
        self._unbound: set[str] = set()
        self.connections = 0

    async def program(self, runtime: Runtime) -> None:
        for _ in range(FIRST_CLAIMS if self._early else 0):
            await runtime.sleep(self._rng.uniform(*FIRST_PAUSE_S))
            with contextlib.suppress(OSError, TimeoutError):
                await self._claim_cores(runtime, self._rng.choice(self._cluster.cores))
        while True:
            await runtime.sleep(self._rng.uniform(*PAUSE_S))
            with contextlib.suppress(OSError, TimeoutError):
                if self._unbound and self._rng.random() < CLAIM_SHARE:
                    await self._claim_cores(runtime, self._rng.choice(sorted(self._unbound)))
                else:
                    await self._visit(runtime, self._rng.choice(list(self._cluster.names)))

    async def _visit(self, runtime: Runtime, target: str) -> None:
        hello = self._hello(target)
        answer: asyncio.Future[wire.Message | None] = runtime.future()
        transport = await runtime.connect(lambda: _Stream(hello, answer), target, PORT)
        self.connections += 1
        try:
            message = await asyncio.wait_for(answer, ANSWER_S)
            if isinstance(message, wire.Hello):
                self._cluster_id = message.cluster_id
                self._raft_ids[target] = message.raft_id
                self._unbound.discard(target)
                if _is_unbound(message):
                    self._unbound.add(target)
                if hello.purpose == "rpc" and hello.role == "replicant":
                    self._call(transport)
                if hello.purpose == "follow":
                    self._marks.hit("hostile replicant let in")
                    await self._misbehave(runtime, transport, target)
                await runtime.sleep(self._rng.uniform(*STAY_S))
            elif isinstance(message, wire.Refusal):
                unproved = message.code == "unproved_epoch"
                self._marks.hit("newer epoch not believed" if unproved else "stranger refused")
        finally:
            transport.close()

    async def _claim_cores(self, runtime: Runtime, target: str) -> None:
        """Come as each of the cores that the target's file names, as if all were new."""
        self._unbound.discard(target)
        others = [name for name in self._cluster.configs[target].cores if name != target]
        if not others:
            return  # a single core bootstraps at its start: no claim is awaited
        transports: list[asyncio.Transport] = []
        answers: list[asyncio.Future[wire.Message | None]] = []
        try:
            for name in others:
                made = self._made("raft", f"{name}-{self._rng.getrandbits(32):08x}", FOUNDED)
                hello = msgspec.structs.replace(made, cluster_id="", member=False)
                answer: asyncio.Future[wire.Message | None] = runtime.future()
                stream = functools.partial(_Stream, hello, answer)
                transports.append(await runtime.connect(stream, target, PORT))
                answers.append(answer)
            await asyncio.wait(answers, timeout=ANSWER_S)
            answered = [answer.result() for answer in answers if answer.done()]
            if len(answered) == len(others) and all(map(_is_unbound, answered)):
                self._marks.hit("all cores claimed before a bootstrap")
                self._unbound.add(target)
            await runtime.sleep(self._rng.uniform(*STAY_S))
        finally:
            for transport in transports:
                transport.close()

    def _hello(self, target: str) -> wire.Hello:
        """As a replicant that is none, or as a core with something wrong about it."""
        rng, minted = self._rng, f"{self._rng.getrandbits(32):08x}"
        if rng.random() < CALL_SHARE:
            caller = self._made("rpc", f"{HOST}-{minted}", Epoch())
            return msgspec.structs.replace(caller, role="replicant")
        if rng.random() < FOLLOW_SHARE:
            return self._made("follow", f"{HOST}-{minted}", Epoch())
        name = rng.choice((HOST, *(each for each in self._cluster.cores if each != target)))
        purpose = rng.choice(PURPOSES)
        match rng.randrange(4):
            case 0:
                other = self._made(purpose, f"{HOST}-{minted}", Epoch())
                return msgspec.structs.replace(other, cluster_id=minted)
            case 1 if target in self._raft_ids:
                return self._made(purpose, self._raft_ids[target], Epoch())
            case _:
                number = rng.choice((1, 2, 9, 2**31 - 1))
                return self._made(purpose, f"{name}-{minted}", Epoch(number, "forged"))

    def _made(self, purpose: str, raft_id: str, epoch: Epoch) -> wire.Hello:
        cores = self._cluster.cores
        about = wire.About("0.0.0", [("core", 2)], "forged", "")
        return wire.Hello(
            wire.PROTOCOL_VERSION,
            purpose,
            CLUSTER_DEFAULT,
            self._cluster_id,
            raft_id,
            "replicant" if purpose == "follow" else "core",
            f"{self._rng.choice((HOST, *cores))}:{PORT}",
            epoch,
            "",
            self._rng.random() < 0.5,
            about,
        )

    def _call(self, transport: asyncio.Transport) -> None:
        """What a node with such a certificate may not ask for."""
        members = sorted(self._raft_ids.values())
        for make in calls(self._rng, self._cluster.cores, members):
            transport.write(wire.encode(make()))
        self._marks.hit("member call tried")

    async def _misbehave(self, runtime: Runtime, transport: asyncio.Transport, target: str) -> None:
        """Some messages; or one kind of forgery again and again, for as long as the link lives."""
        forgeries = self._forgeries(target)
        if forgeries and self._rng.random() < FORGE_SHARE:
            forge = self._rng.choice(forgeries)
            for _ in range(FORGED_MAX):
                transport.write(wire.encode(forge()))
                await runtime.sleep(self._rng.uniform(0, 2 * FORGED_EVERY_S))
                if transport.is_closing():
                    return
            return
        makers = self._messages()
        for _ in range(self._rng.randint(1, MESSAGES_MAX)):
            transport.write(wire.encode(self._rng.choice(makers)()))

    def _forgeries(self, target: str) -> Sequence[Callable[[], wire.Message]]:
        """What only a core may send, with numbers that fit."""
        node, part = self._cluster.nodes.get(target), None
        if node is not None and self._cluster.is_up(target):
            part = self._cluster.part(target)
        if node is None or part is None:
            return ()
        engine = part.engine

        def read_reply() -> wire.Message:
            return wire.ReadReply(node.reader._number, 1)

        def voters() -> wire.Message:
            command = SetVoters((f"{HOST}-0badbad0",), node.machine.voters[0])
            number = node.outbox._next_seq + SEQ_AHEAD
            return wire.Propose(
                [_encode((node.session, number, 0, "core", _encode(command)))],
            )

        def entry() -> wire.Message:
            last, term = engine.wal.last_index, engine.term + 1
            entries = [(term, b"\2" + encode(Configuration((f"{HOST}-0badbad0",))))]
            return wire.Append(term, last, engine.wal.last_term, last + 1, 1, entries)

        return (read_reply, voters, entry)

    def _messages(self) -> Sequence[Callable[[], wire.Message]]:
        rng = self._rng
        number = rng.choice((0, 1, 7, 10**6, wire.NUMBER_MAX))
        return (
            lambda: wire.Propose([rng.randbytes(rng.randint(0, 40)) for _ in range(3)]),
            lambda: wire.ReadRequest(number),
            lambda: wire.Progressed(number),
            lambda: wire.Liveness([*self._cluster.names, HOST]),
            lambda: wire.RpcRequest(number, "core.nothing", rng.randbytes(8)),
            lambda: wire.Follow(number, number),
        )
