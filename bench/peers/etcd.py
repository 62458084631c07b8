"""Debian's etcd 3.4 as it comes, on loopback: one member for its semantics, three to be measured.

Every member is on free ports and keeps its data below one directory. Defaults are kept, fsync
included; only the log level and the quota of the database differ (a benchmark may write more than
etcd's default of 2 GiB, at which it refuses writes).
"""

from __future__ import annotations

import http.client
import json
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from bench.peers import debian
from bench.peers.children import Children
from bench.peers.peer import PeerFailed
from raftkv.cli.ports import free_ports

__all__ = ["Etcd", "EtcdFailed"]

HOST: Final = "127.0.0.1"
START_TIMEOUT_S: Final = 30.0
QUOTA_BYTES: Final = 8 << 30
_POLL_S: Final = 0.05


class EtcdFailed(PeerFailed):
    """etcd did not do what it should; the message has its last words."""


class Etcd:
    """`members` of one cluster, started by entering the context and ended by leaving it.

    `directory` must exist and is the caller's to remove. Raises `debian.Missing` when there is no
    etcd, `EtcdFailed` when it does not get ready.
    """

    def __init__(self, directory: Path, *, members: int = 3) -> None:
        self._directory = directory
        self._children = Children(directory)
        self._program = debian.find("etcd")
        ports = free_ports(2 * members)
        self._clients, self._peers = ports[:members], ports[members:]

    def __enter__(self) -> Etcd:
        try:
            for member in range(len(self._clients)):
                self._launch(member)
            self.leader()
        except BaseException:
            self._children.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._children.stop()

    @property
    def endpoints(self) -> list[str]:
        return [f"http://{HOST}:{port}" for port in self._clients]

    @property
    def pids(self) -> list[int]:
        return self._children.pids

    @property
    def version(self) -> str:
        """What `/version` says."""
        return str(self._ask(0, "GET", "/version")["etcdserver"])

    def leader(self) -> str:
        """The leader's endpoint, once all members agree upon it."""
        until = time.monotonic() + START_TIMEOUT_S
        while True:
            found = self._look()
            if found is not None:
                return found
            gone = self._children.ended()
            if gone is not None:
                raise EtcdFailed(f"etcd {gone} has ended: {self._children.last_words(gone)}")
            if time.monotonic() > until:
                raise EtcdFailed(f"etcd has no leader after {START_TIMEOUT_S:.0f} s")
            time.sleep(_POLL_S)

    def _look(self) -> str | None:
        members: dict[str, str] = {}
        leaders: set[str] = set()
        for number, endpoint in enumerate(self.endpoints):
            try:
                status = self._ask(number, "POST", "/v3/maintenance/status", {})
            except (OSError, ValueError, http.client.HTTPException):
                return None
            members[status["header"]["member_id"]] = endpoint
            leaders.add(status.get("leader", "0"))
        return members.get(leaders.pop()) if len(leaders) == 1 else None

    def _ask(self, member: int, method: str, path: str, body: Any = None) -> Any:
        connection = http.client.HTTPConnection(HOST, self._clients[member], timeout=2.0)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def _launch(self, member: int) -> None:
        name = f"m{member}"
        client = f"http://{HOST}:{self._clients[member]}"
        peer = f"http://{HOST}:{self._peers[member]}"
        cluster = ",".join(f"m{n}=http://{HOST}:{port}" for n, port in enumerate(self._peers))
        options = {
            "name": name,
            "data-dir": str(self._directory / name),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": cluster,
            "initial-cluster-state": "new",
            "logger": "zap",
            "log-level": "error",
            "quota-backend-bytes": str(QUOTA_BYTES),
        }
        arguments = [part for key, value in options.items() for part in (f"--{key}", value)]
        self._children.start(name, [self._program.path, *arguments], self._program.env)
