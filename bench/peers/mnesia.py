"""Mnesia as it comes with Debian's Erlang: three nodes on loopback, tables in memory on each.

Nothing of it reaches a disk: the schema is in memory, too, and a transaction is over once all
nodes have been told. The callers are Erlang processes inside the nodes (`mnesia_bench.erl`); the
first node is asked over a connection that it makes itself once everything is ready, so there is
nothing to poll. The port mapper that Erlang nodes find each other by is ours, on a free port, and
ends with them: left to itself it would stay, and it might be somebody else's.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Literal

import msgspec

from bench.peers import debian
from bench.peers.children import Children
from bench.peers.erlang import HOST, emulator_environment, start_port_mapper
from bench.peers.peer import PeerFailed
from raftkv.cli.ports import free_ports

__all__ = ["Answer", "Asked", "Keys", "Mnesia", "MnesiaFailed", "Way"]

SOURCE: Final = Path(__file__).with_name("mnesia_bench.erl")
START_TIMEOUT_S: Final = 30.0
# Beyond the time of the load. A process that waits for a lock of `global` sleeps up to 8 s at a
# time between two attempts.
GRACE_S: Final = 60.0
_POLL_S: Final = 0.05

#: How a call is kept apart from the others: see mnesia_bench.erl.
Way = Literal["transaction", "bag", "lock"]
Keys = Literal["own", "many", "hot"]

_COMPILE: Final = (
    'case compile:file("{source}", [report, {{outdir, "{out}"}}]) of {{ok, _}} -> ok end, '
    'ok = application:load(mnesia), {{ok, Version}} = application:get_key(mnesia, vsn), '
    'io:format("~s~n~s, OTP ~s", [os:find_executable("epmd"), Version, '
    "erlang:system_info(otp_release)]), halt(0)."
)  # fmt: skip


class MnesiaFailed(PeerFailed):
    """Erlang or Mnesia did not do what it should; the message has its last words."""


class Asked(msgspec.Struct, frozen=True):
    """A measurement: so many processes, on so many of the nodes."""

    way: Way
    keys: Keys
    nodes: int
    callers: int
    seconds: float


class Answer(msgspec.Struct, frozen=True):
    """What was measured: the calls that were carried out, and those that were given up.

    `late`: how many ended after the time was up. `counted`: by how much the number in the hot row
    grew, on the node that shows the highest; None where there is no hot row.
    """

    took_us: list[int]
    late: int
    failed: int
    counted: int | None

    @property
    def lost(self) -> int:
        """Updates of the hot row that were answered and are not in it."""
        return 0 if self.counted is None else max(0, len(self.took_us) - self.counted)


class Mnesia:
    """One cluster, started by entering the context and ended by leaving it.

    `directory` must exist and is the caller's to remove. Raises `debian.Missing` when there is no
    Erlang, `MnesiaFailed` when it does not get ready.
    """

    version: str

    def __init__(self, directory: Path, *, members: int = 3) -> None:
        self._directory = directory.resolve()
        self._children = Children(directory)
        self._program = debian.find("erl")
        self._epmd_port = free_ports(1)[0]
        # Other Erlang nodes may run on this machine; their names are with their own port mapper.
        self._names = [f"m{number}@{HOST}" for number in range(members)]
        self._control: socket.socket | None = None
        self._received = b""

    def __enter__(self) -> Mnesia:
        try:
            epmd = self._compile()
            start_port_mapper(self._children, epmd, self._environment(), MnesiaFailed)
            with socket.create_server((HOST, 0)) as listener:
                for number in reversed(range(len(self._names))):
                    self._launch(number, listener.getsockname()[1])
                self._control = self._accept(listener)
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

    def ask(self, asked: Asked) -> Answer:
        """Run this measurement. Raises `MnesiaFailed`."""
        assert self._control is not None, "only within the context"
        terms = (asked.way, asked.keys, asked.nodes, asked.callers, round(asked.seconds * 1000))
        self._control.settimeout(asked.seconds + GRACE_S)
        try:
            self._control.sendall(b"{%s}.\n" % ", ".join(map(str, terms)).encode())
            line = self._line()
        except TimeoutError:
            raise MnesiaFailed(
                f"{asked.way} on {asked.keys} keys did not end {GRACE_S:.0f} s after its time"
            ) from None
        except OSError as error:
            raise self._failed(str(error)) from None
        if not line.endswith(b"\n"):
            raise self._failed("its connection has ended")
        return msgspec.json.decode(line, type=Answer)

    def _line(self) -> bytes:
        """The next line, or what there is of it when the node has gone."""
        assert self._control is not None
        pieces = []
        while True:
            piece = self._control.recv(1 << 16)
            pieces.append(piece)
            if not piece or piece.endswith(b"\n"):
                return b"".join(pieces)

    def _failed(self, reason: str) -> MnesiaFailed:
        return MnesiaFailed(f"mnesia: {reason}. It wrote: {self._children.last_words('m0')}")

    def _compile(self) -> str:
        """Make the module; returns where Erlang's port mapper is, and learns the version."""
        task = _COMPILE.format(source=SOURCE, out=self._directory)
        done = subprocess.run(
            [self._program.path, "-noinput", "-eval", task],
            capture_output=True, text=True, env=self._children.environment(self._environment()),
            timeout=START_TIMEOUT_S, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            said = (done.stdout + done.stderr).strip()
            raise MnesiaFailed(f"{SOURCE.name} could not be compiled: {said}")
        epmd, self.version = done.stdout.splitlines()[-2:]
        return epmd

    def _environment(self) -> dict[str, str]:
        return emulator_environment(self._program.env, self._directory, self._epmd_port)

    def _launch(self, number: int, port: int) -> None:
        command = [
            self._program.path, "-noinput", "-start_epmd", "false", "-name", self._names[number],
            "-kernel", "inet_dist_use_interface", "{127,0,0,1}", "-pa", str(self._directory),
            "-mnesia", "schema_location", "ram",
        ]  # fmt: skip
        if number == 0:
            command += ["-s", "mnesia_bench", "main", "-extra", str(port), *self._names]
        self._children.start(f"m{number}", command, self._environment())

    def _accept(self, listener: socket.socket) -> socket.socket:
        listener.settimeout(_POLL_S)
        until = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                return listener.accept()[0]
            except TimeoutError:
                gone = self._children.ended()
                if gone is not None:
                    words = self._children.last_words(gone)
                    raise MnesiaFailed(f"{gone} has ended. It wrote: {words}") from None
                if time.monotonic() > until:
                    raise self._failed(f"not ready after {START_TIMEOUT_S:.0f} s") from None

    def _stop(self) -> None:
        if self._control is not None:
            # A thread may be waiting for an answer: this wakes it, closing would not.
            with contextlib.suppress(OSError):
                self._control.shutdown(socket.SHUT_RDWR)
        self._children.stop()
        if self._control is not None:
            self._control.close()
            self._control = None
