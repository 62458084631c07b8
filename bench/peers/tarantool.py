"""Debian's Tarantool 2.6: three instances on loopback, a synchronous space, every write fsynced.

The first instance is the master. A transaction on its synchronous space is confirmed when so many
instances (the *quorum*, the master among them) have written it; after `timeout_s`
(`replication_synchro_timeout`) without that quorum it is rolled back, and everything behind it.

The writers are fibers inside the master (`tarantool_node.lua`), or in a process of their own that
is connected to it (`tarantool_net.lua`). Every instance makes a connection to us when it is up, and
is asked over it; one that loses that connection ends itself.

What is known of this version: with a quorum of 2 of 3 a write soon hangs until the time-out and is
rolled back, although both replicas are well. With 3 of 3 it does not (but over the network a writer
was seen that got no answer at all, for as long as anybody waited). So 3 of 3 stands for what the
design costs, and 2 of 3 for what this version does.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

import msgspec

from bench.peers import debian
from bench.peers.children import Children
from bench.peers.peer import PeerFailed
from raftkv.cli.ports import free_ports

__all__ = ["MASTER", "WITHOUT_ANSWER", "Loaded", "Once", "Tarantool", "TarantoolFailed"]

HOST: Final = "127.0.0.1"
SOURCE: Final = Path(__file__).with_name("tarantool_node.lua")
OVER_NETWORK: Final = Path(__file__).with_name("tarantool_net.lua")
MEMBERS: Final = 3
MASTER: Final = 1
START_TIMEOUT_S: Final = 60.0
SETTLE_TIMEOUT_S: Final = 30.0
# Beyond the time of a load, and the patience with its writers.
GRACE_S: Final = 60.0
# Times the time-out of a quorum: who has no answer by then is given up. Whoever hangs is rolled
# back after that time-out, and all behind it; but there are some who are never answered.
PATIENCE_TIMES: Final = 3
WITHOUT_ANSWER: Final = "without an answer"
"""The problem of a writer that was given up."""

_POLL_S: Final = 0.05

T = TypeVar("T", bound=msgspec.Struct)


class TarantoolFailed(PeerFailed):
    """Tarantool did not do what it should; the message has its last words."""


class Loaded(msgspec.Struct, frozen=True):
    """What writers of a load were told, and how long each waited.

    `took_us` are those that were confirmed, `refused_us` all others; `problems` counts their
    messages. `late`: how many were confirmed after the time was up.
    """

    took_us: list[int]
    refused_us: list[int]
    problems: dict[str, int]
    late: int


class Once(msgspec.Struct, frozen=True):
    """One transaction of each writer: how long each waited and what it was told.

    `answered` and `seen_meanwhile`: how many had an answer, and how many of the written values a
    reader saw, halfway through the time-out; `seen_after` when all had an answer.
    """

    waits_us: list[int]
    problems: dict[str, int]
    confirmed: int
    answered: int
    seen_meanwhile: int
    seen_after: int


class _Hello(msgspec.Struct, frozen=True):
    member: int
    version: str


class _Seen(msgspec.Struct, frozen=True):
    seen: int


class _Followers(msgspec.Struct, frozen=True):
    followers: int


class _Broken(msgspec.Struct, frozen=True):
    error: str


class Tarantool:
    """Three instances, started by entering the context and ended by leaving it.

    `directory` must exist and is the caller's to remove. Raises `debian.Missing` when there is no
    Tarantool, `TarantoolFailed` when it does not get ready.
    """

    version: str

    def __init__(self, directory: Path, *, quorum: int, timeout_s: float) -> None:
        self._directory = directory.resolve()
        self._quorum = quorum
        self._timeout_s = timeout_s
        self._patience_s = PATIENCE_TIMES * timeout_s
        self._children = Children(directory)
        self._program = debian.find("tarantool")
        self._ports = free_ports(MEMBERS)
        self._lines: dict[int, _Line] = {}
        self._listener = socket.create_server((HOST, 0))

    def __enter__(self) -> Tarantool:
        try:
            for member in range(1, MEMBERS + 1):
                self._launch(member)
            for _ in range(MEMBERS):
                self._accept()
            self.settle()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    @property
    def pids(self) -> list[int]:
        return self._children.pids

    def load(self, *, writers: int, seconds: float, keys: int, value_bytes: int) -> Loaded:
        """A closed loop of writers inside the master, each on `keys` keys of its own."""
        asked = {
            "ask": "load", "writers": writers, "seconds": seconds, "keys": keys,
            "bytes": value_bytes, "patience": self._patience_s,
        }  # fmt: skip
        return self._ask(MASTER, asked, Loaded, seconds + self._patience_s + GRACE_S)

    def load_over_network(
        self, *, writers: int, seconds: float, keys: int, value_bytes: int
    ) -> Loaded:
        """The same by writers in another process, over one connection to the master."""
        port, patience_s = self._ports[MASTER - 1], self._patience_s
        numbers = (port, writers, seconds, keys, value_bytes, patience_s)
        command = [self._program.path, str(OVER_NETWORK), *map(str, numbers)]
        try:
            done = subprocess.run(
                command, env=self._program.env, capture_output=True, text=True,
                timeout=seconds + patience_s + GRACE_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise TarantoolFailed(
                f"the writers over the network did not end {GRACE_S:.0f} s after their time"
            ) from None
        if done.returncode != 0:
            raise TarantoolFailed(f"the writers over the network failed: {done.stderr.strip()}")
        return msgspec.json.decode(done.stdout, type=Loaded)

    def once(self, *, writers: int, first: int, value: str) -> Once:
        """One transaction of each writer inside the master, on the keys from `first` on."""
        asked = {
            "ask": "once", "writers": writers, "first": first, "value": value,
            "patience": self._patience_s,
        }  # fmt: skip
        timeout_s = self._timeout_s + self._patience_s + GRACE_S
        return self._ask(MASTER, asked, Once, timeout_s)

    def seen(self, member: int, *, writers: int, first: int, value: str) -> int:
        """How many of these keys have this value on that instance."""
        asked = {"ask": "seen", "writers": writers, "first": first, "value": value}
        return self._ask(member, asked, _Seen, GRACE_S).seen

    def settle(self) -> None:
        """Wait until the replicas have everything that the master wrote. A burst leaves them
        behind, and what is written behind that burst would time out.

        Raises `TarantoolFailed`.
        """
        until = time.monotonic() + SETTLE_TIMEOUT_S
        while True:
            there = self._ask(MASTER, {"ask": "followers"}, _Followers, GRACE_S).followers
            if there == MEMBERS - 1:
                return
            if time.monotonic() > until:
                raise TarantoolFailed(
                    f"{there} of {MEMBERS - 1} replicas had caught up after "
                    f"{SETTLE_TIMEOUT_S:.0f} s"
                )
            time.sleep(_POLL_S)

    def kill(self, member: int) -> None:
        """SIGKILL. What it wrote stays, so that it can come back."""
        self._children.kill(_name(member))
        self._lines.pop(member).close()

    def revive(self, member: int) -> None:
        """Start a killed instance again; it is up when this returns. Raises `TarantoolFailed`."""
        self._launch(member)
        self._accept()

    def _ask(self, member: int, asked: dict[str, Any], kind: type[T], timeout_s: float) -> T:
        line = self._lines[member]
        try:
            answer = line.ask(msgspec.json.encode(asked) + b"\n", timeout_s)
        except TimeoutError:
            raise TarantoolFailed(
                f"{asked['ask']} did not end within {timeout_s:.0f} s on instance {member}"
            ) from None
        except OSError as error:
            raise self._failed(member, str(error)) from None
        if not answer.endswith(b"\n"):
            raise self._failed(member, "its connection has ended")
        found = msgspec.json.decode(answer)
        if "error" in found:
            raise TarantoolFailed(f"tarantool, instance {member}: {found['error']}")
        return msgspec.convert(found, kind)

    def _failed(self, member: int, reason: str) -> TarantoolFailed:
        words = self._children.last_words(_name(member))
        return TarantoolFailed(f"tarantool, instance {member}: {reason}. It wrote: {words}")

    def _launch(self, member: int) -> None:
        place = self._directory / _name(member)
        place.mkdir(exist_ok=True)
        numbers = (self._listener.getsockname()[1], self._quorum, self._timeout_s, *self._ports)
        command = [self._program.path, str(SOURCE), str(member), str(place), *map(str, numbers)]
        self._children.start(_name(member), command, self._program.env)

    def _accept(self) -> None:
        """The next instance that is up says so."""
        self._listener.settimeout(_POLL_S)
        until = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                line = _Line(self._listener.accept()[0])
                break
            except TimeoutError:
                gone = self._children.ended()
                if gone is not None:
                    words = self._children.last_words(gone)
                    raise TarantoolFailed(
                        f"tarantool {gone} has ended. It wrote: {words}"
                    ) from None
                if time.monotonic() > until:
                    raise TarantoolFailed(
                        f"tarantool is not ready after {START_TIMEOUT_S:.0f} s"
                    ) from None
        hello = msgspec.json.decode(line.receive(START_TIMEOUT_S), type=_Hello)
        self.version = hello.version
        self._lines[hello.member] = line

    def _stop(self) -> None:
        # A thread may be waiting for an answer: this wakes it.
        for line in self._lines.values():
            line.hang_up()
        self._children.stop()
        for line in self._lines.values():
            line.close()
        self._lines.clear()
        self._listener.close()


class _Line:
    """A connection on which a line is answered with a line."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def ask(self, line: bytes, timeout_s: float) -> bytes:
        """The answer, or what there is of it. Raises OSError, TimeoutError."""
        self._connection.settimeout(timeout_s)
        self._connection.sendall(line)
        return self.receive(timeout_s)

    def receive(self, timeout_s: float) -> bytes:
        self._connection.settimeout(timeout_s)
        pieces = []
        while True:
            piece = self._connection.recv(1 << 16)
            pieces.append(piece)
            if not piece or piece.endswith(b"\n"):
                return b"".join(pieces)

    def hang_up(self) -> None:
        """Whoever waits for an answer is told that there is none."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._connection.close()


def _name(member: int) -> str:
    return f"m{member}"
