"""Layouts as real processes: the coordinator's side.

Every node of a layout is a process of its own (`bench.worker`) with its own data directory, on
loopback; the driver runs inside the replicants' processes, and where there are none, inside the
cores'. So a layout measures what a program sees that embeds a node, and core-only layouts carry
the clients in the same processes that replicate: they are not comparable with a layout that has
replicants in this respect, and the conditions say where the drivers sat.

Nothing outlives the coordinator: leaving the context ends all processes, and a worker whose
standard input closes ends itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, TypeVar

import msgspec

from bench.control import LINE_BYTES_MAX, Failed, Reply, Request, Setup, State, Status, Stop
from bench.runner.product import free_ports
from bench.schema import LAYOUTS
from bench.setups import encoded
from raftkv.config import NodeConfig, RaftTimes, parse_address

__all__ = ["HTTP_CALLER", "Cluster", "Layout", "WorkerFailed", "node_configs"]

HOST = "127.0.0.1"
ROOT = Path(__file__).resolve().parent.parent

HTTP_CALLER = "http"
"""The process that has no node and calls the leader's door."""

START_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 10.0
LAST_WORDS_CHARS = 2000

R = TypeVar("R")


@dataclass(frozen=True)
class Layout:
    """So many cores, so many replicants."""

    name: str
    cores: int
    replicants: int

    @staticmethod
    def parse(name: str) -> Layout:
        """One of `LAYOUTS`: "3", or "3+3". Raises ValueError."""
        if name not in LAYOUTS:
            raise ValueError(f"layout {name!r} is unknown: choose from {', '.join(LAYOUTS)}")
        cores, _, replicants = name.partition("+")
        return Layout(name, int(cores), int(replicants or 0))

    @property
    def core_names(self) -> list[str]:
        return [f"c{number}" for number in range(1, self.cores + 1)]

    @property
    def replicant_names(self) -> list[str]:
        return [f"r{number}" for number in range(1, self.replicants + 1)]

    @property
    def names(self) -> list[str]:
        return self.core_names + self.replicant_names

    @property
    def drivers(self) -> list[str]:
        """The nodes with a driver inside."""
        return self.replicant_names or self.core_names


class WorkerFailed(Exception):
    """A worker could not do what was asked, or is gone. The message says which and why."""


class Worker:
    """One process and its control channel: one request, one answer."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self._process = process
        self._log = log
        self._decoder = msgspec.json.Decoder(Reply)
        self._turn = asyncio.Lock()

    async def ask(self, request: Request, kind: type[R], timeout_s: float = ANSWER_TIMEOUT_S) -> R:
        """The answer, of the type that it must have. Raises WorkerFailed."""
        async with self._turn:
            try:
                async with asyncio.timeout(timeout_s):
                    reply = await self._exchange(request)
            except TimeoutError:
                raise WorkerFailed(
                    f"{self.name} did not answer within {timeout_s:.0f} s to "
                    f"{type(request).__name__}; see {self._log}"
                ) from None
        if isinstance(reply, Failed):
            raise WorkerFailed(f"{self.name}: {reply.message}")
        if not isinstance(reply, kind):
            raise WorkerFailed(f"{self.name} answered {reply!r} to {type(request).__name__}")
        return reply

    async def _exchange(self, request: Request) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(ConnectionError):  # it is gone: the empty line below says so
            self._process.stdin.write(msgspec.json.encode(request) + b"\n")
            await self._process.stdin.drain()
        line = await self._process.stdout.readline()
        if not line.endswith(b"\n"):
            code = await self._process.wait()
            raise WorkerFailed(f"{self.name} ended (exit code {code}).{self._last_words()}")
        return self._decoder.decode(line)

    async def stop(self) -> None:
        """Ask it to end, and make it end."""
        if self._process.returncode is None:
            with contextlib.suppress(WorkerFailed, TimeoutError):
                await self.ask(Stop(), object, STOP_TIMEOUT_S)  # then killed below, if need be
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await self._process.wait()
        await self.kill()

    async def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    def _last_words(self) -> str:
        try:
            text = self._log.read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""
        return f" Its last words, from {self._log}:\n{text[-LAST_WORDS_CHARS:]}" if text else ""


class Cluster:
    """The processes of one layout: an async context in which they run."""

    def __init__(
        self,
        layout: Layout,
        out: Path,
        run: str,
        *,
        fsync: Literal["on", "off"] = "on",
        tls: bool = False,
        lease_ms: int = 0,
        sessions: bool = False,
        cluster_calls: bool = False,
        limbo: bool = False,
        txqueue: bool = False,
        region: str = "",
    ) -> None:
        """`sessions`: a broker on every node, as `bench.sessions` has it.

        `cluster_calls`: the plugin `calls` instead, as `bench.cluster_calls` has it. `limbo`: the
        plugin `limbo`, as `bench.limbo` has it; `txqueue`: the plugin `txqueue`, likewise.
        `region`: one of several clusters with the plugin `subscriptions`; see `link_to`.
        """
        self.layout = layout
        self._out = out
        self.run = run
        self._sessions = sessions
        self._cluster_calls = cluster_calls
        self._limbo = limbo
        self._txqueue = txqueue
        self.region = region
        kinds = {
            "-sessions": sessions, "-calls": cluster_calls, "-limbo": limbo, "-txqueue": txqueue,
            f"-region-{region}": bool(region),
        }  # fmt: skip
        kind = next((name for name, is_it in kinds.items() if is_it), "")
        self._data = out / "nodes" / f"{layout.name}{kind}"
        self._configs = node_configs(layout, self._data, fsync, tls=tls, lease_ms=lease_ms)
        self._logs: list[IO[bytes]] = []
        self.workers: dict[str, Worker] = {}
        self.killed: set[str] = set()

    async def __aenter__(self) -> Cluster:
        # Not below `out`: the path of a Unix socket has at most 107 characters.
        self._sockets = Path(tempfile.mkdtemp(prefix="raftkv-bench-"))
        try:
            self._data.mkdir(parents=True, exist_ok=True)
            for name in [*self.layout.names, HTTP_CALLER]:
                (self._data / f"{name}.log").unlink(missing_ok=True)
                self.workers[name] = await self._spawn(name)
            await self.states(START_TIMEOUT_S)
        except BaseException:
            await self._kill()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await asyncio.gather(*(worker.stop() for worker in self.workers.values()))
        await self._kill()

    async def _kill(self) -> None:
        await asyncio.gather(*(worker.kill() for worker in self.workers.values()))
        for log in self._logs:
            log.close()
        shutil.rmtree(self._sockets, ignore_errors=True)
        for name in self.layout.names:
            shutil.rmtree(self._data / name, ignore_errors=True)

    async def _spawn(self, name: str) -> Worker:
        setup = Setup(
            name=name,
            run=self.run,
            layout=self.layout.name,
            out=str(self._out),
            node=self._configs.get(name),
            drivers={driver: str(self._sockets / driver) for driver in self.layout.drivers},
            sessions=self._sessions,
            cluster_calls=self._cluster_calls,
            limbo=self._limbo,
            txqueue=self._txqueue,
            subscriptions=bool(self.region),
        )
        file = self._data / f"{name}.json"
        file.write_bytes(msgspec.json.format(encoded(setup)))
        log = self._data / f"{name}.log"
        stream = log.open("ab")  # of a process that was killed, too, and comes again
        self._logs.append(stream)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.worker", "--config", str(file),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=stream,
            limit=LINE_BYTES_MAX, env=_environment(), preexec_fn=_ignore_interrupt,
        )  # fmt: skip
        return Worker(name, process, log)

    @property
    def data(self) -> Path:
        """Where the nodes have their directories, and the workers what is not for the log."""
        return self._data

    def link_to(self, region: str, endpoints: Sequence[str]) -> None:
        """Let this region fetch from another one. To be called before the processes are started."""
        links = {region: {"endpoints": list(endpoints)}}
        options = {"subscriptions": {"region": self.region, "links": links}}
        self._configs = {
            name: msgspec.structs.replace(config, options=options).validated()
            for name, config in self._configs.items()
        }

    @property
    def doors(self) -> list[tuple[str, int]]:
        """Host and port of every node's door, known before they are open."""
        addresses = [config.http_address for config in self._configs.values()]
        return [parse_address(address) for address in addresses if address is not None]

    async def ask(
        self, name: str, request: Request, kind: type[R], timeout_s: float = ANSWER_TIMEOUT_S
    ) -> R:
        """One worker's answer."""
        return await self.workers[name].ask(request, kind, timeout_s)

    async def ask_all(
        self, names: list[str], request: Request, kind: type[R],
        timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> dict[str, R]:  # fmt: skip
        """The answers of several workers, which work at the same time."""
        replies = await asyncio.gather(
            *(self.workers[name].ask(request, kind, timeout_s) for name in names)
        )
        return dict(zip(names, replies, strict=True))

    async def states(self, timeout_s: float = ANSWER_TIMEOUT_S) -> dict[str, State]:
        """What every running node says about itself; a node answers once it is ready."""
        running = [name for name in self.layout.names if name not in self.killed]
        return await self.ask_all(running, Status(), State, timeout_s)

    async def kill(self, name: str) -> None:
        """SIGKILL. The node's directory stays, so that it can come back."""
        self.killed.add(name)
        await self.workers[name].kill()

    async def revive(self, name: str) -> None:
        """Start a killed node again, as its old self; returns when it is ready."""
        self.workers[name] = await self._spawn(name)
        await self.ask(name, Status(), State, START_TIMEOUT_S)
        self.killed.discard(name)


def node_configs(
    layout: Layout,
    directory: Path,
    fsync: Literal["on", "off"],
    *,
    tls: bool = False,
    lease_ms: int = 0,
) -> Mapping[str, NodeConfig]:
    """A configuration for each node, on free ports of the loopback address.

    With `tls` there are certificates for them, too, below `directory`.
    """
    ports = free_ports(2 * len(layout.names))
    peers = {name: f"{HOST}:{ports.pop()}" for name in layout.names}
    cores = {name: peers[name] for name in layout.core_names}
    cluster = f"bench-{layout.name.replace('+', '-')}"
    secured: dict[str, Any] = {}
    if tls:
        # Here, because `bench compare` runs this on revisions that have no certificates yet.
        from bench.runner.product import certify

        secured = dict(certify(str((directory / "certs").resolve()), cluster, layout.names, [HOST]))
    return {
        name: NodeConfig(
            name=name,
            dir=str((directory / name).resolve()),
            cluster=cluster,
            role="core" if name in cores else "replicant",
            peer_address=peers[name],
            http_address=f"{HOST}:{ports.pop()}",
            cores=cores,
            fsync=fsync,
            raft=RaftTimes(lease_ms=lease_ms),
            **({"tls": secured[name]} if tls else {}),
        ).validated()
        for name in layout.names
    }


def _environment() -> dict[str, str]:
    paths = [str(ROOT), str(ROOT / "plugins"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def _ignore_interrupt() -> None:
    """Ctrl-C at the terminal reaches the whole group; the coordinator alone decides what ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
