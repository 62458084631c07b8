"""A development cluster: one directory, one process per node, all on loopback.

    DIR/cluster.json            how many cores and replicants; written last, so that a directory
                                without it was never started and may be laid out again
    DIR/lock                    held while a command starts or stops nodes
    DIR/certs/                  with TLS: the authority and the nodes' certificates
    DIR/<name>/node.toml        the node's configuration with its ports, chosen once
    DIR/<name>/data             the node's data directory
    DIR/<name>/log, pid         what it said, and which process it was started as

The directory is the only state: any process may make a `DevCluster` for it and see and act on the
same nodes. The classes here block; they are for the command line, for tests of real processes, for
the benchmark and the demonstration, not for production: there everybody starts `raftkv serve`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Literal

import msgspec

from raftkv.config import NodeConfig, load_config
from raftkv.errors import ConfigError, NodeFault, NotApplied, RaftkvError
from raftkv.security.ownership import make_directory, open_own, require_own

from . import processes
from .door_client import DoorClient, request
from .layout import ClusterShape, Fsync, lay_out, read_shape, set_options, shape_path

__all__ = ["ClusterShape", "ClusterStatus", "DevCluster", "NodeStatus"]

# How long a node gets to stop by itself before it is killed.
STOP_TIMEOUT_S: Final = 10.0
# A node that does not answer its status in this time counts as not answering.
STATUS_TIMEOUT_S: Final = 2.0
_POLL_S: Final = 0.05


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One node as seen from outside. What only the node can tell is None if it does not answer."""

    name: str
    kind: Literal["core", "replicant"]
    running: bool
    pid: int | None
    endpoint: str
    role: str | None = None
    leader: str | None = None
    term: int | None = None
    commit_index: int | None = None
    applied_index: int | None = None
    fsync: str | None = None
    upstream: str | None = None


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status document: `leader` is the one named by the answering nodes at the highest term."""

    nodes: list[NodeStatus]
    leader: str | None


class DevCluster:
    """The cluster in `directory`. Making the object touches nothing; `up` creates and starts.

    `command` starts the `raftkv` command; ` serve --config FILE` is added to it.
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, command: Sequence[str] | None = None
    ) -> None:
        self._command = [sys.executable, "-m", "raftkv"] if command is None else list(command)
        # Absolute, so that a node's command line names the directory from wherever it is read.
        self.directory = os.path.abspath(directory)
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    # ---- the layout -----------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        """Whether the directory has been laid out as a cluster."""
        return os.path.exists(shape_path(self.directory))

    @property
    def shape(self) -> ClusterShape:
        """How the cluster was laid out; `ConfigError` if there is none in the directory."""
        return read_shape(self.directory)

    @property
    def names(self) -> list[str]:
        """All nodes, cores first."""
        return self.shape.names

    def config(self, name: str) -> NodeConfig:
        """The configuration of one node, as it stands in its file."""
        if name not in self.names:
            raise ConfigError(f"{name!r} is not a node of the cluster in {self.directory}")
        return load_config(self.config_path(name))

    def config_path(self, name: str) -> str:
        """The node's configuration file, absolute; it stands in the node's command line."""
        return self._path(name, "node.toml")

    def log_path(self, name: str) -> str:
        """The file with everything the node's process has written."""
        return self._path(name, "log")

    def endpoint(self, name: str) -> str:
        """`http://host:port` of the node's door; https if its configuration says so."""
        return _endpoint(self.config(name))

    def endpoints(self) -> list[str]:
        """The endpoints of all nodes, cores first."""
        return [self.endpoint(name) for name in self.names]

    def create(
        self,
        *,
        cores: int | None = None,
        replicants: int | None = None,
        fsync: Fsync | None = None,
        tls: bool | None = None,
        plugins: Sequence[str] | None = None,
    ) -> ClusterShape:
        """Lay out the directory, or check an existing one against what is asked.

        None means the existing value, or 3 cores, 3 replicants, fsync on, no TLS, and the default
        plugins for a new cluster. Raises `ConfigError` if an existing cluster differs from what
        is asked.
        """
        self._make_directory()
        asked = {"cores": cores, "replicants": replicants, "fsync": fsync, "tls": tls}
        given = {key: value for key, value in asked.items() if value is not None}
        if self.exists:
            shape = self.shape
            for key, value in given.items():
                if getattr(shape, key) != value:
                    raise ConfigError(
                        f"the cluster in {self.directory} has {key} = {getattr(shape, key)}, not "
                        f"{value}: leave --{key} out, or choose another directory"
                    )
            return shape
        shape = msgspec.convert({"cores": 3, "replicants": 3, **given}, ClusterShape)
        lay_out(self.directory, shape, plugins)
        return shape

    def set_options(self, options: Mapping[str, Mapping[str, Any]]) -> None:
        """What the plugins shall know locally (plugin -> its options), at all nodes from their next
        start on; what was set before is replaced. Raises `ConfigError` if a node cannot read it."""
        for name in self.names:
            set_options(self.config_path(name), options)

    # ---- starting and stopping ------------------------------------------------------------------

    def up(
        self,
        *,
        cores: int | None = None,
        replicants: int | None = None,
        fsync: Fsync | None = None,
        tls: bool | None = None,
        plugins: Sequence[str] | None = None,
        timeout_s: float = 60.0,
        progress: Callable[[str], None] | None = None,
    ) -> ClusterShape:
        """Create if need be, start what is not running, return when every node takes writes.

        `progress` gets a line for each step. Raises `ConfigError` as `create` does, and `NodeFault`
        with a node's own last words if one ends, or if the cluster takes no writes in time.
        """
        with self._locked(create=True):
            shape = self.create(
                cores=cores, replicants=replicants, fsync=fsync, tls=tls, plugins=plugins
            )
            for name in shape.names:
                started = self._start(name)
                if progress is not None:
                    progress(f"{name} {'started' if started else 'is running'}")
            self.wait_writable(timeout_s=timeout_s)
        return shape

    def down(self, *, timeout_s: float = STOP_TIMEOUT_S) -> list[str]:
        """Stop all nodes: SIGTERM, and SIGKILL for those that take longer. The data stays.

        Returns the names of the nodes that were running. Harmless when nothing runs.
        """
        with self._locked():
            names = self.names
            running = {name: pid for name in names if (pid := self.pid(name)) is not None}
            with ThreadPoolExecutor(max(1, len(running))) as pool:
                list(pool.map(lambda name: self._stop(name, running[name], timeout_s), running))
            return list(running)

    def _stop(self, name: str, pid: int, timeout_s: float) -> None:
        # A stopped process (SIGSTOP) would take the SIGTERM only once it continues.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        path = self.config_path(name)
        if not processes.terminate(pid, path, signal.SIGTERM, timeout_s):
            processes.terminate(pid, path, signal.SIGKILL, timeout_s)
        self._reap(name)

    def start_node(self, name: str) -> bool:
        """Start one node if it is not running; whether it had to be started. Does not wait."""
        with self._locked():
            return self._start(name)

    def _start(self, name: str) -> bool:
        if self.pid(name) is not None:
            return False
        if not os.path.exists(self.config_path(name)):
            raise ConfigError(
                f"{self.config_path(name)} is missing, so the cluster in {self.directory} is not "
                f"complete: restore the file, or choose another directory"
            )
        for part in ("", "data"):
            require_own(self._path(name, part).rstrip(os.sep))
        child = processes.start(self._command, self.config_path(name), self.log_path(name))
        self._children[name] = child
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with open(open_own(self._path(name, "pid"), flags), "w", encoding="ascii") as file:
            file.write(f"{child.pid}\n")
        return True

    def kill_node(self, name: str, sent: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal to one node and return its pid; `NodeFault` if it is not running.

        Returns once the process is gone if the signal ends it (SIGKILL, SIGTERM, SIGINT), else
        (SIGSTOP, SIGCONT) at once.
        """
        pid = self.pid(name)
        if pid is None:
            raise NodeFault(f"{name} is not running")
        if sent in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
            if not processes.terminate(pid, self.config_path(name), sent, STOP_TIMEOUT_S):
                raise NodeFault(f"{name} (pid {pid}) did not end on {sent.name}")
            self._reap(name)
        else:
            os.kill(pid, sent)
        return pid

    def pid(self, name: str) -> int | None:
        """The pid of the node if its process runs, whoever started it."""
        self._reap(name)
        return processes.find_pid(self.config_path(name), self._path(name, "pid"))

    def _reap(self, name: str) -> None:
        child = self._children.get(name)
        if child is not None and child.poll() is not None:
            del self._children[name]

    # ---- watching -------------------------------------------------------------------------------

    def wait_writable(self, names: Sequence[str] | None = None, *, timeout_s: float = 60.0) -> None:
        """Return once a write through the door of each of the nodes has been acknowledged.

        `names` defaults to all nodes that run. The key that is written is deleted again. Raises
        `NodeFault` if one of the nodes ends meanwhile or the time is up.
        """
        deadline = time.monotonic() + timeout_s
        waiting = [name for name in self.names if self.pid(name)] if names is None else list(names)
        if not waiting:
            raise NodeFault(f"no node of the cluster in {self.directory} is running")
        key = f"raftkv/ready/{os.getpid()}".encode()
        while True:
            waiting = [name for name in waiting if not self._writable(name, key)]
            if not waiting:
                break
            for name in waiting:
                if self.pid(name) is None:
                    raise NodeFault(f"{name} has ended: {self._last_words(name)}")
            if time.monotonic() > deadline:
                raise NodeFault(
                    f"no writes through {', '.join(waiting)} within {timeout_s:.0f} s; the logs "
                    f"are {self._path('<name>', 'log')}. {waiting[0]} said last: "
                    f"{self._last_words(waiting[0])}"
                )
            time.sleep(_POLL_S)
        self.client().delete(key)

    def _writable(self, name: str, key: bytes) -> bool:
        try:
            DoorClient([self.endpoint(name)], timeout_s=1.0).put(key, name.encode())
        except ConfigError:
            raise
        except RaftkvError:
            return False
        return True

    def client(self, *, timeout_s: float = 5.0) -> DoorClient:
        """A client that tries the nodes in turn, those that run first."""
        names = sorted(self.names, key=lambda name: self.pid(name) is None)
        return DoorClient([self.endpoint(name) for name in names], timeout_s=timeout_s)

    def status(self, *, timeout_s: float = STATUS_TIMEOUT_S) -> ClusterStatus:
        """Ask every node at the same time; those that do not answer are shown as such."""
        names = self.names
        with ThreadPoolExecutor(len(names)) as pool:
            nodes = list(pool.map(lambda name: self._node_status(name, timeout_s), names))
        named = [(node.term or 0, node.leader) for node in nodes if node.leader is not None]
        return ClusterStatus(nodes=nodes, leader=max(named)[1] if named else None)

    def statuses(self) -> list[tuple[str, ClusterStatus]]:
        """The status of the one cluster that this is (foreground.py)."""
        return [("", self.status())]

    def _node_status(self, name: str, timeout_s: float) -> NodeStatus:
        config = self.config(name)
        pid = self.pid(name)
        answer: dict[str, Any] = {}
        if pid is not None:
            with contextlib.suppress(RaftkvError):
                answer = request(self.endpoint(name), "GET", "/v1/status", timeout_s=timeout_s)
        live = ("role", "leader", "term", "commit_index", "applied_index", "fsync", "upstream")
        return NodeStatus(
            name=name,
            kind=config.role,
            running=pid is not None,
            pid=pid,
            endpoint=_endpoint(config),
            **{key: answer.get(key) for key in live},
        )

    def leader(self, *, timeout_s: float = 20.0) -> str:
        """The name of the leader once a running node is known as such; `NotApplied` if none is."""
        deadline = time.monotonic() + timeout_s
        while True:
            status = self.status()
            for node in status.nodes:
                if node.name == status.leader and node.running and node.role == "leader":
                    return node.name
            if time.monotonic() > deadline:
                raise NotApplied(f"the cluster in {self.directory} has no leader")
            time.sleep(_POLL_S)

    def _last_words(self, name: str) -> str:
        try:
            with open(self.log_path(name), "rb") as file:
                file.seek(max(0, os.path.getsize(self.log_path(name)) - 8_192))
                lines = file.read().decode("utf-8", "replace").strip().splitlines()
        except OSError:
            lines = []
        return lines[-1] if lines else "(nothing in its log)"

    def _path(self, *parts: str) -> str:
        return os.path.join(self.directory, *parts)

    @contextlib.contextmanager
    def _locked(self, *, create: bool = False) -> Iterator[None]:
        if create:
            self._make_directory()
        elif not self.exists:
            _ = self.shape  # raises the error that says so
        else:
            require_own(self.directory)
        with processes.exclusive(self._path("lock"), timeout_s=120.0):
            yield

    def _make_directory(self) -> None:
        make_directory(self.directory)


def _endpoint(config: NodeConfig) -> str:
    scheme = "http" if config.http_tls is None else "https"
    return f"{scheme}://{config.http_address}"
