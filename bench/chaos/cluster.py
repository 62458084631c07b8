"""The processes of a chaos cluster: laid out, started, killed and asked; the network is a proxy.

    DIR/<name>/setup.json    what node.py is started with
    DIR/<name>/data          the node's data directory
    DIR/<name>/books         what a power cut would take (files.py)
    DIR/<name>/control.json  the disk's faults, while there are any
    DIR/<name>/strikes       the faults that met an operation of the node, one a line
    DIR/<name>/log           what the process said, through all its lives

Every exit of a process is looked at: one that nobody asked for is *unexpected*, and a node that
stopped itself without a fault of its disk is a finding like a lost write.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import msgspec

from bench.chaos.door import DoorClient
from bench.chaos.files import Order, Strike
from bench.chaos.node import EXIT_FAULT, NodeSetup
from bench.chaos.power import Loss, cut_power
from bench.chaos.proxy import Network
from raftkv.cli.ports import free_ports
from raftkv.config import Limits, NodeConfig, RaftTimes, TlsFiles
from raftkv.errors import RaftkvError
from raftkv.security.directory import certify

__all__ = ["ChaosCluster", "ChaosError", "Exit", "Layout"]

CLUSTER = "chaos"
HOST = "127.0.0.1"
ROOT = Path(__file__).resolve().parent.parent.parent
POLL_S = 0.02
LAST_WORDS_BYTES = 4096

SMALL_LIMITS = Limits(snapshot_log_entries=4_000, log_tail_entries=500, segment_bytes_max=1 << 20)
"""Snapshots, new segments and the sending of snapshots belong to what is tested: they come often
with these, where a production node would see one an hour."""

CALL_TIMEOUT_S = 2.0
"""A node gives up on a call after this. Short, so that faults make many unknown outcomes."""


class ChaosError(Exception):
    """The run cannot go on: a cluster that does not come up, a process that does not end."""


class Layout(msgspec.Struct, frozen=True):
    """So many cores and replicants: "3+3", "3", "5+2"."""

    cores: int
    replicants: int = 0

    @staticmethod
    def parse(text: str) -> Layout:
        """Raises ValueError."""
        cores, _, replicants = text.partition("+")
        layout = Layout(int(cores), int(replicants or 0))
        if layout.cores < 1 or layout.replicants < 0:
            raise ValueError(f"{text!r} is no layout: write CORES or CORES+REPLICANTS")
        return layout

    @property
    def core_names(self) -> list[str]:
        return [f"core{n}" for n in range(1, self.cores + 1)]

    @property
    def names(self) -> list[str]:
        return self.core_names + [f"replicant{n}" for n in range(1, self.replicants + 1)]

    def __str__(self) -> str:
        return f"{self.cores}+{self.replicants}" if self.replicants else f"{self.cores}"


class Exit(msgspec.Struct, frozen=True):
    """How a life of a node ended. A negative code is a signal's number."""

    name: str
    code: int
    expected: bool
    last_words: str


class ChaosCluster:
    """An async context: inside, the processes that were started run; none of them outlives it.

    `callers`: so many closed-loop callers in each core that is named there. `proxied` False leaves
    the network as it is: no faults of links, and nothing between the nodes.
    """

    def __init__(
        self,
        directory: Path,
        layout: Layout,
        *,
        raft: RaftTimes | None = None,
        limits: Limits = SMALL_LIMITS,
        callers: dict[str, int] | None = None,
        proxied: bool = True,
        books: bool = True,
        fsync: Literal["on", "off"] = "on",
        tls: bool = False,
    ) -> None:
        self.directory = directory.resolve()
        self.layout = layout
        self.names = layout.names
        self.network = Network()
        self.exits: list[Exit] = []
        self._raft = RaftTimes() if raft is None else raft
        self._limits = limits
        self._callers = callers or {}
        self._proxied = proxied
        self._books = books
        self._fsync: Literal["on", "off"] = fsync
        self._tls = tls
        self._configs: dict[str, NodeConfig] = {}
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._watches: dict[str, asyncio.Task[None]] = {}
        # Nodes whose next exit was asked for.
        self._doomed: set[str] = set()
        self._clients: dict[str, DoorClient] = {}

    async def __aenter__(self) -> ChaosCluster:
        await self._lay_out()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.kill(self.running)
        for client in self._clients.values():
            client.close()
        self.network.close()

    async def _lay_out(self) -> None:
        ports = free_ports(2 * len(self.names), HOST)
        listening = {name: f"{HOST}:{ports[2 * n]}" for n, name in enumerate(self.names)}
        doors = {name: f"{HOST}:{ports[2 * n + 1]}" for n, name in enumerate(self.names)}
        self.network.addresses = {name: (HOST, ports[2 * n]) for n, name in enumerate(self.names)}
        advertised = dict(listening)
        if self._proxied:
            advertised = {name: await self.network.listen(name) for name in self.names}
            self.network.sources = _source_hosts(self.names)
        cores = {core: advertised[core] for core in self.layout.core_names}
        certificates: dict[str, TlsFiles] = {}
        if self._tls:
            path = str(self.directory / "certs")
            certificates = dict(certify(path, CLUSTER, self.names, [HOST]))
        for name in self.names:
            self._configs[name] = NodeConfig(
                name=name,
                dir=str(self.directory / name / "data"),
                cluster=CLUSTER,
                tls=certificates.get(name),
                role="core" if name in cores else "replicant",
                peer_address=advertised[name],
                listen_address=listening[name],
                http_address=doors[name],
                cores=cores,
                plugins=(),
                fsync=self._fsync,
                timeout_s=CALL_TIMEOUT_S,
                raft=self._raft,
                limits=self._limits,
            ).validated()
            self._write_setup(name)
            self._clients[name] = DoorClient(self.endpoint(name))

    def _write_setup(self, name: str) -> None:
        home = self.directory / name
        home.mkdir(parents=True, exist_ok=True)
        setup = NodeSetup(
            node=self._configs[name],
            control=str(home / "control.json"),
            strikes=str(home / "strikes"),
            books=str(home / "books") if self._books else None,
            source_host=self.network.sources.get(name),
            callers=self._callers.get(name, 0),
        )
        (home / "setup.json").write_bytes(msgspec.json.format(msgspec.json.encode(setup)))

    # -- processes

    @property
    def running(self) -> list[str]:
        """The nodes with a process, stopped ones too."""
        return [name for name in self.names if name in self._processes]

    def endpoint(self, name: str) -> str:
        """`http://host:port` of the node's door."""
        return f"http://{self._configs[name].http_address}"

    async def start(self, names: Iterable[str]) -> None:
        """Start what does not run. Does not wait."""
        for name in names:
            if name not in self._processes:
                await self._start(name)

    async def _start(self, name: str) -> None:
        home = self.directory / name
        with (home / "log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "bench.chaos.node", str(home / "setup.json"),
                stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
                env=_environment(), cwd=ROOT, start_new_session=True,
            )  # fmt: skip
        self._doomed.discard(name)
        self._processes[name] = process
        self._watches[name] = asyncio.create_task(self._watch(name, process))

    async def _watch(self, name: str, process: asyncio.subprocess.Process) -> None:
        code = await process.wait()
        del self._processes[name]
        self.exits.append(Exit(name, code, name in self._doomed, self.last_words(name)))

    def send_signal(self, name: str, sent: signal.Signals) -> None:
        """SIGSTOP or SIGCONT. Signals that end a node go through `kill` and `stop`."""
        self._processes[name].send_signal(sent)

    def is_stopped(self, name: str) -> bool:
        """Whether the process is held by SIGSTOP, as the kernel sees it."""
        pid = self._processes[name].pid
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{pid}/stat").read_text()
            return stat.rpartition(")")[2].split()[0] == "T"
        return False

    async def kill(self, names: Iterable[str]) -> list[str]:
        """SIGKILL to all of them within a moment; returns, once they are gone, who was running."""
        return await self._end(names, signal.SIGKILL)

    async def stop(self, names: Iterable[str]) -> list[str]:
        """SIGTERM: a clean stop."""
        return await self._end(names, signal.SIGTERM)

    async def _end(self, names: Iterable[str], sent: signal.Signals) -> list[str]:
        chosen = [name for name in names if name in self._processes]
        watches = [self._watches[name] for name in chosen]
        self._doomed.update(chosen)
        for name in chosen:
            with contextlib.suppress(ProcessLookupError):
                self._processes[name].send_signal(sent)
        await asyncio.gather(*watches)
        return chosen

    async def exited(self, name: str, timeout_s: float) -> int | None:
        """Wait for the node to end by itself: its code, or None if it runs on."""
        watch = self._watches[name]
        self._doomed.add(name)
        await asyncio.wait([watch], timeout=timeout_s)
        if not watch.done():
            self._doomed.discard(name)
            return None
        return next(one.code for one in reversed(self.exits) if one.name == name)

    @property
    def unexpected(self) -> list[Exit]:
        """Ends of nodes that nobody asked for."""
        return [one for one in self.exits if not one.expected]

    def last_words(self, name: str) -> str:
        """The end of the node's log."""
        path = self.directory / name / "log"
        with contextlib.suppress(OSError), open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - LAST_WORDS_BYTES))
            lines = file.read().decode("utf-8", "replace").strip().splitlines()
            return lines[-1] if lines else ""
        return ""

    # -- disks

    def order(self, name: str, order: Order | None) -> None:
        """Let the node's disk fail so from now on; None makes it sound again."""
        path = self.directory / name / "control.json"
        if order is None:
            path.unlink(missing_ok=True)
            return
        temporary = path.with_suffix(".new")
        temporary.write_bytes(msgspec.json.encode(order))
        os.replace(temporary, path)

    def strikes(self, name: str) -> list[Strike]:
        """The faults that met the node's disk so far."""
        path = self.directory / name / "strikes"
        if not path.exists():
            return []
        lines = path.read_bytes().splitlines()
        return [msgspec.json.decode(line, type=Strike) for line in lines]

    def cut_power(self, names: Iterable[str], rng: random.Random) -> Loss:
        """Take from nodes that were killed what they had not synced."""
        loss = Loss(0, 0, 0)
        for name in names:
            assert name not in self._processes, f"{name} runs"
            home = self.directory / name
            if (home / "books").exists():
                loss += cut_power(str(home / "data"), str(home / "books"), rng)
        return loss

    # -- asking

    async def status(self, name: str, timeout_s: float = 1.0) -> dict[str, Any]:
        """The node's status; raises RaftkvError if it does not answer."""
        answer: dict[str, Any] = await self._clients[name].page("/v1/status", timeout_s)
        return answer

    async def statuses(self, timeout_s: float = 1.0) -> dict[str, dict[str, Any]]:
        """The statuses of those that answer."""
        names = self.running
        found = await asyncio.gather(
            *(self.status(name, timeout_s) for name in names), return_exceptions=True
        )
        return {name: one for name, one in zip(names, found, strict=True) if isinstance(one, dict)}

    async def page(self, name: str, path: str, timeout_s: float = 30.0) -> Any:
        """The JSON at `path` of the node's door."""
        return await self._clients[name].page(path, timeout_s)

    async def leader(self, timeout_s: float = 20.0) -> str:
        """The running node that leads, once there is one; raises ChaosError."""
        deadline = time.monotonic() + timeout_s
        while True:
            leaders = [
                (one["term"], name)
                for name, one in (await self.statuses()).items()
                if one["role"] == "leader"
            ]
            if leaders:
                return max(leaders)[1]
            if time.monotonic() > deadline:
                raise ChaosError(f"no leader within {timeout_s:g} s; see {self.directory}/*/log")
            await asyncio.sleep(POLL_S)

    async def writable(self, names: Iterable[str], timeout_s: float = 60.0) -> None:
        """Return once a write through the door of each has been acknowledged; else ChaosError."""
        chosen = list(names)
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*(self._writable(name) for name in chosen))
        except TimeoutError:
            raise ChaosError(
                f"no writes through all of {', '.join(chosen)} within {timeout_s:g} s; "
                f"see {self.directory}/*/log"
            ) from None

    async def _writable(self, name: str) -> None:
        client = DoorClient(self.endpoint(name))
        try:
            while True:
                try:
                    await client.put(b"ready/" + name.encode(), b"", timeout_s=1.0)
                    return
                except RaftkvError:
                    if name not in self._processes:
                        raise ChaosError(f"{name} has ended: {self.last_words(name)}") from None
                    await asyncio.sleep(POLL_S)
        finally:
            client.close()

    def fault_code(self, code: int | None) -> bool:
        """Whether an exit code says that the node stopped itself."""
        return code == EXIT_FAULT


def _source_hosts(names: Iterable[str]) -> dict[str, str]:
    """A loopback address for each node to dial from, where the system has more than one (Linux)."""
    hosts = {name: f"127.0.0.{number}" for number, name in enumerate(names, 11)}
    with socket.socket() as probe:
        try:
            probe.bind((next(iter(hosts.values())), 0))
        except OSError:
            return {}  # every partition then isolates its targets from everybody
    return hosts


def _environment() -> dict[str, str]:
    paths = [str(ROOT), str(ROOT / "plugins"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
