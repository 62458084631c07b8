"""ZooKeeper 3.8 as Debian has it: three servers on loopback, with its defaults: writes are synced.

What differs from the defaults is what several servers on one machine need: free ports, no web page
for administrators, no limit of connections from one address.
"""

from __future__ import annotations

import contextlib
import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Final

from bench.peers import debian
from bench.peers.children import Children
from bench.peers.peer import PeerFailed
from raftkv.cli.ports import free_ports

__all__ = ["ZooKeeper", "ZooKeeperFailed"]

HOST: Final = "127.0.0.1"
START_TIMEOUT_S: Final = 60.0
HEAP: Final = "-Xmx1g"
_POLL_S: Final = 0.1
_SERVER: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_CONFIG: Final = """\
tickTime=2000
initLimit=10
syncLimit=5
admin.enableServer=false
4lw.commands.whitelist=srvr
maxClientCnxns=0
dataDir={data}
clientPort={port}
clientPortAddress={host}
"""


class ZooKeeperFailed(PeerFailed):
    """ZooKeeper did not do what it should; the message has its last words."""


class ZooKeeper:
    """One ensemble, started by entering the context and ended by leaving it.

    `directory` must exist and is the caller's to remove. Raises `debian.Missing` when there is no
    ZooKeeper or no Java, `ZooKeeperFailed` when it does not get ready.
    """

    def __init__(self, directory: Path, *, members: int = 3) -> None:
        self._directory = directory
        self._children = Children(directory)
        self._program = debian.find("zookeeper")
        ports = free_ports(3 * members)
        self._clients = ports[:members]
        self._servers = list(zip(ports[members : 2 * members], ports[2 * members :], strict=True))

    def __enter__(self) -> ZooKeeper:
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
    def pids(self) -> list[int]:
        return self._children.pids

    @property
    def version(self) -> str:
        """What a server says of itself, without the commit that it was built from."""
        first = self._ask(self._clients[0]).splitlines()[0]
        return first.partition(": ")[2].partition("-")[0]

    def leader(self) -> str:
        """The leader's `host:port` for clients, once all servers serve."""
        until = time.monotonic() + START_TIMEOUT_S
        while True:
            modes = {port: self._mode(port) for port in self._clients}
            leaders = [port for port, mode in modes.items() if mode in ("leader", "standalone")]
            if all(modes.values()) and len(leaders) == 1:
                return f"{HOST}:{leaders[0]}"
            gone = self._children.ended()
            if gone is not None:
                words = self._children.last_words(gone)
                raise ZooKeeperFailed(f"zookeeper {gone} has ended: {words}")
            if time.monotonic() > until:
                raise ZooKeeperFailed(f"zookeeper has no leader after {START_TIMEOUT_S:.0f} s")
            time.sleep(_POLL_S)

    def _mode(self, port: int) -> str:
        """What this server is; "" as long as it does not serve."""
        with contextlib.suppress(OSError):
            for line in self._ask(port).splitlines():
                if line.startswith("Mode: "):
                    return line[len("Mode: ") :]
        return ""

    def _ask(self, port: int) -> str:
        """Its four-letter word for the state of a server."""
        with socket.create_connection((HOST, port), 2.0) as connection:
            connection.sendall(b"srvr")
            pieces = []
            while piece := connection.recv(4096):
                pieces.append(piece)
        return b"".join(pieces).decode()

    def _launch(self, member: int) -> None:
        name = f"z{member}"
        data = (self._directory / name).resolve()
        data.mkdir()
        (data / "myid").write_text(f"{member + 1}\n")
        config = _CONFIG.format(data=data, port=self._clients[member], host=HOST)
        if len(self._servers) > 1:
            for number, (peer, election) in enumerate(self._servers, start=1):
                config += f"server.{number}={HOST}:{peer}:{election}\n"
        file = data / "zoo.cfg"
        file.write_text(config)
        command = [*self._program.command, _SERVER, str(file)]
        command[1:1] = [HEAP, "-Dzookeeper.jmx.log4j.disable=true"]
        self._children.start(name, command, self._program.env)
