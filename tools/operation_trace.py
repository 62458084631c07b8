"""The way of one operation through the files of a node: how many, and how often it changes them.

    trace = trace_of("put")
    trace.path.files, trace.path.changes

Stated precisely:

- The cluster is one of `SeveralClusters` in the simulated world, without load and faults; by
  default it has one core. Nothing depends on the machine. Its nodes run the plugin of the operation
  and no other, besides the keyspace.
- Counted is what the leader does, on which the operation is called: whatever runs between the call
  and its return, in the caller's task or another one. Work for the disk, which a real node does in
  a thread, runs on the world's one thread and is counted too. Other nodes are not.
- An event is a call of a Python function, a resumption of a coroutine or generator, or the return
  from one, in a file below `raftkv/` or `plugins/`; the folders `testing` do not count. A *change*
  is an event in another file than that of the event before.
- Once a future is resolved that a task of the caller waits for, the *path* leaves out what the node
  does until a task of the caller is resumed, such as notifying watchers. `whole` has it. Tasks of
  the caller are the one that makes the call and those that its calls have started.
- The operation is repeated until everything is loaded, and then measured several times. The figures
  are those of the shortest one: a timer of the node may expire during another.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any, Final, NamedTuple

import msgspec

from checkout import ROOT, require_own_modules
from raftkv.node import Node
from raftkv.plugin import Plugin
from raftkv.testing.current import CURRENT
from raftkv.testing.several import SeveralClusters, Shape
from raftkv.testing.world import World
from raftkv_lcr.plugin import LCR
from raftkv_lcr.testing.broker import MemoryBroker
from raftkv_txqueue.plugin import TxQueue
from raftkv_txqueue.xa import Xid

SEED: Final = 1
CLUSTER: Final = "traced"
WARM_UP: Final = 3
MEASURED: Final = 3
#: Virtual seconds: what the cluster gets to become calm, and what an operation may take.
CALM_S: Final = 0.5
OPERATION_S: Final = 20.0


class Event(NamedTuple):
    """A call or a return. `file` is relative to the checkout."""

    file: str
    function: str
    is_call: bool


class Figures(msgspec.Struct, frozen=True):
    """`files` in the order in which they are passed first."""

    files: tuple[str, ...]
    changes: int
    calls: int


class Trace(msgspec.Struct, frozen=True):
    """Of one operation: up to the answer, and up to the return of the call."""

    operation: str
    path: Figures
    whole: Figures
    #: Of the path: each call with which it changes the file, as "file function".
    steps: tuple[str, ...]


@dataclass(frozen=True)
class Operation:
    """`make(node)` prepares the node and gives (what is done before each one, the operation)."""

    what: str
    plugins: Callable[[], Sequence[Plugin[Any]]]
    make: Callable[[Node], Awaitable[Calls]]


#: What is done before each operation, and the operation. Both are given the number of the turn.
Calls = tuple[Callable[[int], Awaitable[Any]], Callable[[int], Awaitable[Any]]]


# The operations -----------------------------------------------------------------------------------


async def _nothing(number: int) -> None:
    """Nothing has to be done before the operation."""


async def _put(node: Node) -> Calls:
    return _nothing, lambda number: node.kv.put(b"key", b"value")


async def _get(node: Node) -> Calls:
    await node.kv.put(b"key", b"value")
    return _nothing, lambda number: node.kv.get(b"key")


async def _register(node: Node) -> Calls:
    lcr = node.plugin(LCR)
    await lcr.switch_mode("enabled")
    return _nothing, lambda n: lcr.register(f"client{n}", f"channel{n}", predecessor=None)


async def _open(node: Node) -> Calls:
    lcr = node.plugin(LCR)
    await lcr.switch_mode("enabled")
    broker = MemoryBroker(node.name)
    broker.attach(lcr)
    return _nothing, lambda n: broker.manager.open_session(f"client{n}", False, f"channel{n}")


async def _commit(node: Node) -> Calls:
    queues = node.plugin(TxQueue)
    await queues.declare("queue")
    session = await queues.session("tx")

    async def publish(number: int) -> None:
        await session.publish("queue", b"message")

    return publish, lambda number: session.commit()


async def _branch(node: Node) -> Callable[[int], Awaitable[Xid]]:
    """Makes a branch of a distributed transaction that is ended and not prepared."""
    queues = node.plugin(TxQueue)
    await queues.declare("queue")
    session = await queues.session("dtx")

    async def ended(number: int) -> Xid:
        xid = Xid(1, b"%d" % number)
        await session.start(xid)
        await session.publish("queue", b"message")
        await session.end(xid)
        return xid

    return ended


async def _prepare(node: Node) -> Calls:
    dtx, ended = node.plugin(TxQueue).dtx, await _branch(node)
    return ended, lambda n: dtx.prepare(Xid(1, b"%d" % n))


async def _commit_prepared(node: Node) -> Calls:
    dtx, ended = node.plugin(TxQueue).dtx, await _branch(node)

    async def prepared(number: int) -> None:
        await dtx.prepare(await ended(number))

    return prepared, lambda n: dtx.commit(Xid(1, b"%d" % n))


def _lcr() -> tuple[Plugin[Any], ...]:
    return (LCR(),)


def _txqueue() -> tuple[Plugin[Any], ...]:
    return (TxQueue(),)


OPERATIONS: Final = {
    "put": Operation("a put", tuple, _put),
    "get": Operation("a linearizable get", tuple, _get),
    "register": Operation("LCR: one registration of a channel", _lcr, _register),
    "open": Operation("LCR: a session opened at a broker", _lcr, _open),
    "commit": Operation("queues: the commit of a local transaction", _txqueue, _commit),
    "prepare": Operation("queues: the prepare of a distributed one", _txqueue, _prepare),
    "commit-prepared": Operation("queues: its commit", _txqueue, _commit_prepared),
}


# Tracing ------------------------------------------------------------------------------------------

#: Set in the context of everything that is called on the node, which tasks started by it inherit.
IS_CALLER: Final = ContextVar("is_caller", default=False)


class Tracer:
    """Records the events of one operation on one host while its profile function is set."""

    def __init__(self, host: str) -> None:
        self.path: list[Event] = []
        self.whole: list[Event] = []
        self._host = host
        self._files: dict[str, str] = {}
        self._answered = False

    async def measure(self, call: Callable[[], Awaitable[Any]]) -> None:
        """Await the operation, recorded from its call to its return."""
        before = sys.getprofile()
        sys.setprofile(self._event)
        try:
            await call()
        finally:
            sys.setprofile(before)

    def _event(self, frame: FrameType, kind: str, argument: Any) -> None:
        if kind == "c_call":
            if argument.__name__ in ("set_result", "set_exception"):
                self._answered = self._answered or _is_awaited(argument.__self__)
            return
        if kind not in ("call", "return"):
            return
        if self._answered and IS_CALLER.get() and asyncio.current_task() is not None:
            self._answered = False
        file = self._file_of(frame.f_code.co_filename)
        runtime = CURRENT.get()
        if file and runtime is not None and runtime.host == self._host:
            event = Event(file, frame.f_code.co_qualname, kind == "call")
            self.whole.append(event)
            if not self._answered:
                self.path.append(event)

    def _file_of(self, filename: str) -> str:
        """Relative to the checkout; "" if the file does not count."""
        file = self._files.get(filename)
        if file is None:
            file = self._files[filename] = counted(filename)
        return file


def _is_awaited(future: Any) -> bool:
    """Whether a task of a caller waits for the future."""
    callbacks = getattr(future, "_callbacks", None) or ()
    return any(
        isinstance(getattr(callback, "__self__", None), asyncio.Task) and context.get(IS_CALLER)
        for callback, context in callbacks
    )


def counted(filename: str) -> str:
    """The name of a file of the product relative to the checkout; "" for any other."""
    file = filename.removeprefix(f"{ROOT}/")
    parts = file.split("/")
    of_product = file != filename and parts[0] in ("raftkv", "plugins") and "testing" not in parts
    return file if of_product else ""


def figures(events: Sequence[Event]) -> Figures:
    """Count the files and changes of some events in their order."""
    files = dict.fromkeys(event.file for event in events)
    changes = sum(a.file != b.file for a, b in itertools.pairwise(events))
    return Figures(tuple(files), changes, sum(event.is_call for event in events))


def steps(events: Sequence[Event]) -> tuple[str, ...]:
    """The calls with which some events change the file."""
    calls = [event for event in events if event.is_call]
    before = [None, *(event.file for event in calls)]
    return tuple(
        f"{call.file} {call.function}"
        for call, file in zip(calls, before, strict=False)
        if call.file != file
    )


def trace_of(name: str, cores: int = 1) -> Trace:
    """Trace the operation of that name, one of `OPERATIONS`."""
    operation, world = OPERATIONS[name], World(SEED)
    shape = Shape(cores=cores, plugins=operation.plugins())
    clusters = SeveralClusters(world, {CLUSTER: shape}, _violated)
    tracers: list[Tracer] = []
    with clusters:
        world.run(CALM_S)
        leader = clusters.leader_of(CLUSTER)
        assert leader is not None, "the cluster has no leader"

        async def called(coroutine: Any) -> Any:
            IS_CALLER.set(True)
            return await coroutine

        def call(coroutine: Any) -> Any:
            answer = world.call(leader, called(coroutine))
            world.wait(answer.done, OPERATION_S, f"the end of {name}")
            world.run(CALM_S)
            return answer.result()

        before, act = call(operation.make(clusters.nodes[leader]))
        for number in range(WARM_UP + MEASURED):
            call(before(number))
            tracer = Tracer(leader)
            call(tracer.measure(partial(act, number)))
            tracers.append(tracer)
    require_own_modules()
    shortest = min(tracers[WARM_UP:], key=lambda tracer: len(tracer.whole))
    path, whole = figures(shortest.path), figures(shortest.whole)
    return Trace(name, path, whole, steps(shortest.path))


def _violated(check: str, found: Sequence[str]) -> None:
    if found:
        raise AssertionError(f"{check}: {'; '.join(found)}")
