"""A cluster of real processes in which each node runs the release that the test gives it."""

from __future__ import annotations

import dataclasses
import http.client
import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from raftkv.cli.ports import free_ports
from tests.upgrade.releases import Release

HOST = "127.0.0.1"
PLUGINS = ("lcr", "limbo", "txqueue", "calls", "subscriptions", "conf")
# Snapshots are written often, so that each release starts from the other's, and sends its own.
LIMITS = {"snapshot_log_entries": 200, "snapshot_log_percent": 0, "log_tail_entries": 50}
READY_S = 45.0
STOP_S = 20.0
REQUEST_S = 10.0
POLL_S = 0.05

Body = dict[str, Any]


class Unanswered(Exception):
    """No answer, or one of the 5xx: what was asked for may have happened or not."""


@dataclasses.dataclass
class NodeProcess:
    """One node: its files, its ports, and the process and release that run it now."""

    name: str
    directory: Path
    peer_port: int
    http_port: int
    release: Release | None = None
    process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.http_port}"

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text(encoding="utf-8", errors="replace")

    def request(self, method: str, path: str, body: Body | None = None) -> tuple[int, Any]:
        """Send one request; the status and the JSON answer. Raises `Unanswered`."""
        connection = http.client.HTTPConnection(HOST, self.http_port, timeout=REQUEST_S)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise Unanswered(f"{self.name}: {method} {path}: {error!r}") from None
        finally:
            connection.close()
        if answer.status >= 500:
            raise Unanswered(f"{self.name}: {method} {path}: {answer.status} {text!r}")
        try:
            return answer.status, json.loads(text)
        except ValueError:
            return answer.status, text.decode(errors="replace")

    def ask(self, method: str, path: str, body: Body | None = None) -> Any:
        """As `request`, and the answer must be 200 to 299."""
        status, answer = self.request(method, path, body)
        assert 200 <= status < 300, f"{self.name}: {method} {path}: {status} {answer}"
        return answer

    def is_ready(self) -> bool:
        try:
            return self.request("GET", "/readyz")[0] == 200
        except Unanswered:
            return False


class MixedCluster:
    """Three cores and three replicants on loopback; nothing is started by the constructor."""

    def __init__(self, directory: Path, cores: int = 3, replicants: int = 3) -> None:
        names = [f"core{n + 1}" for n in range(cores)]
        names += [f"replicant{n + 1}" for n in range(replicants)]
        ports = free_ports(2 * len(names))
        self.directory = directory
        self.nodes = {
            name: NodeProcess(name, directory / name, ports.pop(), ports.pop()) for name in names
        }
        self.cores = names[:cores]
        for node in self.nodes.values():
            self._lay_out(node)

    def _lay_out(self, node: NodeProcess) -> None:
        node.directory.mkdir(parents=True)
        lines = [
            f'name = "{node.name}"',
            f'role = "{"core" if node.name in self.cores else "replicant"}"',
            'cluster = "upgrade"',
            'dir = "data"',
            f'peer_address = "{HOST}:{node.peer_port}"',
            f'http_address = "{HOST}:{node.http_port}"',
            f"plugins = {json.dumps(PLUGINS)}",
            "[cores]",
            *(f'{core} = "{HOST}:{self.nodes[core].peer_port}"' for core in self.cores),
            "[limits]",
            *(f"{name} = {value}" for name, value in LIMITS.items()),
        ]
        (node.directory / "node.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")

    @property
    def endpoints(self) -> str:
        return ",".join(node.endpoint for node in self.nodes.values())

    def start(self, name: str, release: Release) -> None:
        node = self.nodes[name]
        assert node.process is None
        with (node.directory / "log").open("ab") as log:
            node.process = subprocess.Popen(
                release.command("serve", "--config", "node.toml"),
                cwd=node.directory,
                env=release.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        node.release = release

    def stop(self, name: str) -> None:
        """Stop a node cleanly: SIGTERM, and exit code 0."""
        node = self.nodes[name]
        assert node.process is not None
        node.process.send_signal(signal.SIGTERM)
        code = node.process.wait(STOP_S)
        node.process = None
        assert code == 0, f"{name} ended with {code}:\n{node.log[-2000:]}"

    def kill(self, name: str) -> int:
        """End a node's process, which may have ended by itself; its exit code."""
        node = self.nodes[name]
        assert node.process is not None
        node.process.kill()
        code = node.process.wait()
        node.process = None
        return code

    def close(self) -> None:
        """End all processes, whatever state they are in."""
        for name, node in self.nodes.items():
            if node.process is not None:
                self.kill(name)

    def wait_ready(self, names: Iterable[str]) -> None:
        for name in names:
            self.wait_for(self.nodes[name].is_ready, f"{name} is ready")

    def wait_for(
        self, condition: Callable[[], bool], what: str, timeout_s: float = READY_S
    ) -> None:
        """Poll until `condition` holds. Fails with the nodes' logs, and if a node has ended."""
        until = time.monotonic() + timeout_s
        while not condition():
            ended = [
                node.name
                for node in self.nodes.values()
                if node.process is not None and node.process.poll() is not None
            ]
            if ended or time.monotonic() > until:
                logs = "\n".join(f"-- {n.name}\n{n.log[-1500:]}" for n in self.nodes.values())
                raise AssertionError(f"not in time: {what}; ended: {ended}\n{logs}")
            time.sleep(POLL_S)

    def restart(self, name: str, release: Release) -> None:
        """Stop a node and start it with `release`; returns when it is ready and caught up."""
        self.stop(name)
        self.start(name, release)
        self.wait_ready([name])
        target = max(self.status(other)["commit_index"] for other in self.cores)
        self.wait_for(
            lambda: bool(self.status(name)["applied_index"] >= target), f"{name} has caught up"
        )

    def status(self, name: str) -> Body:
        answer: Body = self.nodes[name].ask("GET", "/v1/status")
        return answer

    def leader(self) -> str | None:
        return next(
            (n for n in self.cores if self.nodes[n].is_ready() and self.status(n)["leader"] == n),
            None,
        )
