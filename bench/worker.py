"""One process of a layout: a node with the benchmark's driver inside, or a caller over HTTP.

    python -m bench.worker --config FILE

It is started by `bench.layouts`, takes requests on its standard input and ends with it.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol

import msgspec

from bench.calls import Caller, CallPlace, HttpCaller, Mix, call_rows
from bench.clock import OsClock
from bench.control import (
    Audit,
    CallLoad,
    Channel,
    Collect,
    Done,
    Failed,
    Flush,
    HangUp,
    Lag,
    Play,
    ProfileStart,
    ProfileStop,
    Ran,
    Request,
    Setup,
    State,
    Status,
    Stop,
    SwitchMode,
    open_control,
)
from bench.live import Tally
from bench.mesh import SocketMesh
from bench.messages import MessageCount
from bench.probe import Probe
from bench.registries import LegacyRegistry, LinearRegistry, Registry, inject_lag
from bench.roles import RoleWatch
from bench.runner.product import App, Door, door_of
from bench.scenarios import Driver, Load, Place
from bench.schema import Row, RowWriter
from bench.sessions import SessionRegistry, attached_broker, switch_mode
from raftkv import Node
from raftkv.config import parse_address
from raftkv.errors import RaftkvError
from raftkv_lcr import LCR

__all__ = ["main"]

log = logging.getLogger("bench.worker")

ROWS_MAX = 5_000_000
"""Rows are written between the loads, never during one: this many are never reached."""

READY_TIMEOUT_S = 50.0

SWITCH_TIMEOUT_S = 30.0
"""A mode is switched while no session is open: nodes have next to nothing to adopt."""


class InNode(Protocol):
    """What works in a node."""

    async def start(self) -> None: ...

    async def handle(self, request: Request) -> Any: ...

    def close(self) -> None: ...


class NodeWorker:
    """A node, its driver, and the requests that concern them."""

    def __init__(self, setup: Setup, node: Node, writer: RowWriter) -> None:
        self._setup = setup
        self._node = node
        self._writer = writer
        self._tally = Tally()
        self._probe = Probe()
        self._role = RoleWatch(node)
        self._load: Load | None = None
        api = self._api = node.plugin(LCR)
        self._legacy = api.legacy
        self._messages = MessageCount()
        self._sessions: dict[str, SessionRegistry] = {}
        if setup.sessions:
            self._messages.install()
            self._sessions = attached_broker(setup.name, api)
        registries: dict[str, Registry] = {
            "lcr": LinearRegistry(api),
            "legacy": LegacyRegistry(api),
            **self._sessions,
        }
        self._mesh = SocketMesh(setup.name, setup.drivers)
        self._driver = Driver(
            Place(setup.run, setup.layout, setup.name, self._current_role),
            registries,
            self._mesh,
            OsClock(),
            self._add,
        )

    async def start(self) -> None:
        """Wait for the node to take part, listen to the other drivers."""
        if self._setup.name in self._setup.drivers:
            await self._mesh.listen(self._driver.receive)
        await self._node.wait_ready(READY_TIMEOUT_S)
        # Both registries are there from the start, as on a broker that has been up for a while.
        await self._legacy.ready()
        self._role.start()

    def _add(self, row: Row) -> None:
        self._writer.add(row)
        self._tally.add(row)

    def _current_role(self) -> str:
        lags = self._load is not None and self._load.lagging == self._setup.name
        return "lagging" if lags else self._role.current

    async def handle(self, request: Request) -> Any:
        """Does what is asked; returns the answer."""
        match request:
            case Status():
                return self._state()
            case Load():
                await self._mesh.connect()
                self._load, self._tally = request, Tally()
                self._driver.start(request)
            case Play():
                self._driver.play()
            case Collect(final):
                return self._driver.collect(final=final)
            case Audit():
                await self._driver.audit(request.load, request.expectations)
            case CallLoad():
                return await self._calls(request)
            case Lag(seconds):
                inject_lag(self._node, self._legacy, seconds)
            case SwitchMode(mode):
                await switch_mode(self._api, mode, SWITCH_TIMEOUT_S)
            case HangUp():
                # Of the old registry, whose rows go last: nobody waits for their removal.
                await self._sessions["session-off"].hang_up()
            case Flush():
                await asyncio.to_thread(self._writer.flush)
            case ProfileStart(calls):
                self._probe.start(calls=calls)
            case ProfileStop():
                return self._probe.stop()
        return Done()

    async def _calls(self, load: CallLoad) -> Ran:
        setup, kv = self._setup, self._node.kv
        place = CallPlace(setup.run, setup.layout, setup.name, self._current_role)
        # No function of ours between the loop and a linearizable get: it would be measured too.
        get = kv.get
        if load.consistency != "linearizable":
            get = functools.partial(kv.get, consistency=load.consistency)
        callers = [Caller(kv.put, get)] * load.in_flight
        return await _run_calls(
            callers, load, place, self._writer.add, waits=load.consistency == "linearizable"
        )

    def _state(self) -> State:
        status = self._node.status()
        return State(
            role=status.role,
            leader=status.leader,
            commit_index=status.commit_index,
            applied_index=status.applied_index,
            endpoint=status.endpoint,
            outcomes=self._tally.outcomes,
            buckets=self._tally.buckets,
            **self._counted(),
        )

    def _counted(self) -> dict[str, Any]:
        """What only loads with sessions ask for; older revisions may not have it."""
        if not self._sessions:
            return {}
        return {
            "commands_applied": self._node.status().commands_applied,
            "messages": self._messages.messages,
            "sent_bytes": self._messages.bytes,
            "handovers_lost": sum(each.lost.total() for each in set(self._sessions.values())),
            "hollow": sum(each.hollow for each in set(self._sessions.values())),
            "in_doubt": len(self._api.reaper),
        }

    def close(self) -> None:
        self._mesh.close()
        self._messages.remove()


class HttpWorker:
    """A process without a node: it calls the leader's door."""

    def __init__(self, setup: Setup, writer: RowWriter) -> None:
        self._setup = setup
        self._writer = writer

    async def handle(self, request: Request) -> Any:
        """Does what is asked; returns the answer."""
        match request:
            case CallLoad():
                return await self._calls(request)
            case Flush():
                await asyncio.to_thread(self._writer.flush)
        return Done()

    async def _calls(self, load: CallLoad) -> Ran:
        assert load.endpoint is not None
        assert load.serves is not None
        role = load.role or "http"
        place = CallPlace(self._setup.run, self._setup.layout, load.serves, lambda: role)
        doors = [await HttpCaller.open(load.endpoint) for _ in range(load.in_flight)]
        local = load.consistency == "local"
        callers = [Caller(door.put, door.get_local if local else door.get) for door in doors]
        try:
            return await _run_calls(callers, load, place, self._writer.add, waits=True)
        finally:
            for door in doors:
                door.close()


async def _run_calls(
    callers: list[Caller],
    load: CallLoad,
    place: CallPlace,
    sink: Callable[[Row], None],
    *,
    waits: bool,
) -> Ran:
    value = bytes(load.value_bytes)
    mix = Mix(load.scenario, load.put_every, value, load.consistency, waits, load.calls_max)
    tally, elapsed_s = await call_rows(callers, mix, load.seconds, place, sink)
    return Ran(outcomes=tally.outcomes, buckets=tally.buckets, elapsed_s=elapsed_s)


async def _serve(channel: Channel, handle: Callable[[Request], Coroutine[Any, Any, Any]]) -> None:
    """One request after the other, until the coordinator says stop or is gone."""
    while (request := await channel.receive()) is not None:
        if isinstance(request, Stop):
            channel.send(Done())
            return
        try:
            reply = await handle(request)
        except Exception as error:
            # Whatever went wrong belongs on the coordinator's terminal, not only into a log.
            log.exception("%s failed", type(request).__name__)
            reply = Failed(f"{type(request).__name__}: {type(error).__name__}: {error}")
        channel.send(reply)


async def _run_node(setup: Setup, channel: Channel, writer: RowWriter) -> None:
    assert setup.node is not None
    assert setup.node.http_address is not None
    host, port = parse_address(setup.node.http_address)
    make, plugin = _kind_of(setup)
    async with Node(setup.node, plugins=[plugin]) as node:
        # First, so that the functions of cluster calls are known when the node executes one.
        worker = make(setup, node, writer)
        # Former revisions serve nothing by themselves (`bench compare`). Other regions fetch at the
        # plugin's routes; other loads need none of their plugins'.
        served = getattr(node, "http_api", None)
        if served is None:
            served = door_of(node) if setup.subscriptions else Door(App(node), host, port)
            await served.start()
        serving = asyncio.ensure_future(_start_and_serve(worker, channel))
        try:
            fault = node.fault
            ends: list[asyncio.Future[Any]] = [serving, fault]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                raise fault.result()
            await serving
        finally:
            serving.cancel()
            worker.close()
            await served.stop()


def _kind_of(setup: Setup) -> tuple[Callable[[Setup, Node, RowWriter], InNode], Any]:
    """What works in this process' node, and the plugin that it works with."""
    # Here, because `bench compare` runs the other loads on revisions without these plugins.
    if setup.limbo:
        from bench.limbo_worker import LimboWorker
        from raftkv_limbo import Limbo

        return LimboWorker, Limbo
    if setup.txqueue:
        from bench.txqueue_worker import TxqueueWorker
        from raftkv_txqueue import TxQueue

        return TxqueueWorker, TxQueue
    if setup.subscriptions:
        from bench.subscriptions_worker import SubscriptionsWorker
        from raftkv_subscriptions import Subscriptions

        return SubscriptionsWorker, Subscriptions
    if not setup.cluster_calls:
        return NodeWorker, LCR
    from bench.cluster_call_worker import ClusterCallWorker
    from raftkv_cluster_call import Calls

    return ClusterCallWorker, Calls


async def _start_and_serve(worker: InNode, channel: Channel) -> None:
    await worker.start()
    await _serve(channel, worker.handle)


async def _run(path: Path) -> None:
    channel = await open_control()
    setup = msgspec.json.decode(path.read_bytes(), type=Setup)
    with RowWriter(Path(setup.out), setup.run, setup.name, rows_max=ROWS_MAX) as writer:
        if setup.node is None:
            await _serve(channel, HttpWorker(setup, writer).handle)
        else:
            await _run_node(setup, channel, writer)


def main(arguments: list[str] | None = None) -> int:
    """Runs one worker to its end. Exit code 1 when its node could not start or stopped itself."""
    given = sys.argv[1:] if arguments is None else arguments
    if len(given) != 2 or given[0] != "--config":
        print("usage: python -m bench.worker --config FILE", file=sys.stderr)
        return 2
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_run(Path(given[1])))
    except RaftkvError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed, as `raftkv serve` does."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


if __name__ == "__main__":
    sys.exit(main())
