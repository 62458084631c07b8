"""Digests of what a simulated run does, over an encoding that contains no Python name.

    digest = digest_of_run("lcr", 3)
    digest.parts["network"]                 # hexadecimal; equal for equal runs

Digested is what leaves the code: bytes on the simulated network, entries of the log, digests of the
replicated state, files. So a rename or a move of code keeps a digest, and a change of a decision, a
message, a format or a delay changes it. Five parts, so that a difference has a place:

- `network`: each arrival of bytes: time, receiver, sender, size, checksum;
- `log`: each entry that a node applies: time, node, index, term, size, checksum;
- `state`: each digest of a state that the simulation compares;
- `disk`: of each machine the synced files at the end with size and checksum, and how often its disk
  was changed, written and synced;
- `verdict`: whether a promise was broken, operations, simulated time, faults, and marks as numbers
  without their names.

Some names and words do leave the code: the text of an error that a peer gets to see, the causes of
failed cluster calls, and versions of software. `without_names` replaces them by empty texts for the
time of a run, because their length alone would shift the chance that the network draws. What the
simulation itself draws or sends under a text (salts of `random.Random`, names of its own RPC
methods) is a part of the run: renaming these makes another run.
"""

from __future__ import annotations

import contextlib
import hashlib
import platform
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TextIO

import msgspec
from msgspec.structs import replace

from checkout import require_own_modules
from raftkv import formats
from raftkv.raft import wire
from raftkv.replica import Replica
from raftkv.state.machine import StateMachine
from raftkv.testing.current import CURRENT
from raftkv.testing.patching import around, replaced
from raftkv.testing.scenario import Result, run_seed
from raftkv.testing.storms import Storm
from raftkv.testing.world import World
from raftkv_cluster_call import functions
from raftkv_cluster_call.testing.__main__ import STORM as CALLS
from raftkv_lcr.testing.__main__ import STORM as LCR
from raftkv_limbo.testing.__main__ import STORM as LIMBO
from raftkv_subscriptions.testing.__main__ import STORM as SUBSCRIPTIONS
from raftkv_txqueue.testing.__main__ import STORM as TXQUEUE

CORE: Final = "core"
#: What has runs: the core alone, and each plugin.
SIMULATIONS: Final[Mapping[str, Storm]] = {
    "calls": CALLS,
    "lcr": LCR,
    "limbo": LIMBO,
    "subscriptions": SUBSCRIPTIONS,
    "txqueue": TXQUEUE,
}
SUBJECTS: Final = (CORE, *SIMULATIONS)
PARTS: Final = ("network", "log", "state", "disk", "verdict")

#: Of a sha256: two different runs do not agree in 64 bits by accident.
HEX_DIGITS: Final = 16
#: Texts of failed calls between nodes that a caller compares with, which makes them a part of the
#: protocol (core_format.py, membership.py).
COMPARED_TEXTS: Final = (b"NotPermitted", b"has no method")


class RunDigest(msgspec.Struct, frozen=True):
    """Of one run: the digest of each part, how many lines each has, and the broken promise."""

    parts: dict[str, str]
    lines: dict[str, int]
    simulated_s: float
    violation: str = ""


class Recorder:
    """Digests lines by part. `copy`, if given, gets every line with the name of its part."""

    def __init__(self, copy: TextIO | None = None) -> None:
        self.lines = dict.fromkeys(PARTS, 0)
        self.worlds: list[World] = []
        self._copy = copy
        self._hashes = {part: hashlib.sha256() for part in PARTS}

    def add(self, part: str, *values: object) -> None:
        """Add a line of texts and numbers."""
        line = " ".join(map(str, values))
        self._hashes[part].update(f"{line}\n".encode())
        self.lines[part] += 1
        if self._copy is not None:
            self._copy.write(f"{part} {line}\n")

    def digests(self) -> dict[str, str]:
        """The digest of each part so far."""
        return {part: each.hexdigest()[:HEX_DIGITS] for part, each in self._hashes.items()}

    def prepare(self, prepared: Any) -> None:
        """Observe a world, or that of a cluster, which has not started yet."""
        world = prepared if isinstance(prepared, World) else prepared.world
        world.network.records_deliveries = True
        world.trace.echo = self._noted
        self.worlds.append(world)

    def _noted(self, line: str) -> None:
        """A line of the world's trace. All but arrivals is text of the simulation."""
        time_s, host, event = line.split(" ", 2)
        if event.startswith("< "):
            _, sender, size, _, checksum = event.split(" ")
            self.add("network", time_s, host, sender, size, checksum)

    def applying(self, apply: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap what applies an entry on a node."""

        def recorded(replica: Replica, index: int, body: bytes, term: int) -> Any:
            time_s = self.worlds[-1].loop.now
            self.add("log", f"{time_s:.6f}", _host(), index, term, len(body), zlib.crc32(body))
            return apply(replica, index, body, term)

        return recorded

    def digesting(self, digest: Callable[[StateMachine], str]) -> Callable[[StateMachine], str]:
        """Wrap what takes the digest of a state at once, which only the simulation does."""

        def recorded(machine: StateMachine) -> str:
            value = digest(machine)
            self.add("state", _host(), machine.index, value)
            return value

        return recorded

    def ended(self, result: Result) -> None:
        """Add what is left of a run."""
        for world in self.worlds:
            for name, host in world.hosts.items():
                disk = host.disk
                for path, content in sorted(disk.platters().items()):
                    self.add("disk", name, path, len(content), zlib.crc32(content))
                self.add("disk", name, disk.changes_total, disk.writes_total, disk.syncs_total)
        self.add(
            "verdict",
            bool(result.check),
            result.operations,
            result.acknowledged,
            f"{result.simulated_s:.6f}",
            f"{result.recovery_s:.6f}",
            sorted((+result.faults).values()),
            sorted((+result.marks).values()),
        )


def digest_of_run(subject: str, seed: int, lines: Path | None = None) -> RunDigest:
    """Run a seed of one of `SUBJECTS`. `lines` names a file for every line that is digested."""
    with contextlib.ExitStack() as stack:
        copy = None if lines is None else stack.enter_context(lines.open("w", encoding="utf-8"))
        recorder = Recorder(copy)
        stack.enter_context(without_names())
        stack.enter_context(around(Replica, "apply", recorder.applying))
        stack.enter_context(around(StateMachine, "digest", recorder.digesting))
        result = run(subject, seed, recorder.prepare)
        recorder.ended(result)
    require_own_modules()
    return RunDigest(
        recorder.digests(), recorder.lines, round(result.simulated_s, 6), result.message
    )


def run(subject: str, seed: int, prepare: Callable[[Any], Any] = lambda prepared: None) -> Result:
    """Run a seed of a subject as long as its own command does."""
    if subject == CORE:
        return run_seed(seed, prepare=prepare)
    storm = SIMULATIONS[subject]
    return storm.run(seed, seconds=storm.seconds, prepare=prepare)


def _host() -> str:
    """The name of the node whose code is running; "-" for the simulation itself."""
    runtime = CURRENT.get()
    return "-" if runtime is None else runtime.host


# What would bring names into a run ----------------------------------------------------------------


@contextlib.contextmanager
def without_names() -> Iterator[None]:
    """Replace versions, class and function names, and texts of errors that reach other nodes."""
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        enter(replaced(formats, "SOFTWARE", "0"))
        enter(replaced(msgspec, "__version__", "0"))
        enter(replaced(platform, "python_version", lambda: "0"))
        enter(around(wire, "encode", _without_texts))
        for function, replacement in (
            (functions.cause_of, lambda error: ""),
            (functions.raised_in, lambda error: ""),
            (functions.error_of, lambda error: functions.CallError("Error", "", "")),
        ):
            enter(_everywhere(function, replacement))
        yield


def _without_texts(encode: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    def encode_plain(message: Any) -> bytes:
        if isinstance(message, wire.RpcReply) and message.error:
            if not any(text in message.payload for text in COMPARED_TEXTS):
                message = replace(message, payload=b"")
        elif isinstance(message, wire.Refusal):
            message = replace(message, reason="")
        return encode(message)

    return encode_plain


@contextlib.contextmanager
def _everywhere(function: Callable[..., Any], replacement: Callable[..., Any]) -> Iterator[None]:
    """`replacement` stands for a function in every module that has imported it."""
    places = [
        (module, name)
        for module in list(sys.modules.values())
        for name, value in list(vars(module).items())
        if value is function
    ]
    for module, name in places:
        setattr(module, name, replacement)
    try:
        yield
    finally:
        for module, name in places:
            setattr(module, name, function)
