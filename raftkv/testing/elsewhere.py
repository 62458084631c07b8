"""Other processes that apply logs of a plugin, with other hashes of strings and bytes.

What depends on the order of a set shows in no process by itself: there the order is always the
same. So there are three other processes, for a small set may have one order twice, and another time
zone in each. They make the plugins anew by their names, apply what they are sent, and answer with
what came out. Each serves many logs, because starting it takes longer than a log, and applies each
in a copy of itself (`os.fork`): whatever a plugin remembers in a module or a class is not there.

All speak MessagePack, each message behind its length. Nothing passes but names, entries, snapshots
and fingerprints.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import IO, Any, Final

import msgspec

from raftkv.errors import Refused
from raftkv.plugin import Plugin
from raftkv.state import StateMachine
from raftkv.state.machine import Outcomes

__all__ = ["Applied", "Elsewhere", "Made", "apply_all", "fingerprints", "serve"]

#: What makes a plugin: a class will do.
Made = Callable[[], Plugin[Any]]

_LENGTH_BYTES: Final = 8
_HASH_SEEDS: Final = ("1", "2", "3")
# Far from each other and from whatever the user has.
_TIME_ZONES: Final = ("EAST-14", "WEST+11", "ODD-05:45")


class Place(msgspec.Struct, frozen=True):
    """Where the other process finds what makes a plugin."""

    module: str
    name: str
    file: str


class Applied(msgspec.Struct, frozen=True):
    """What came of a log: of each entry what it answered, and the state in the end."""

    outcomes: list[list[bytes]]
    digest: str
    #: Why it ended early, if it did.
    error: str = ""


def fingerprint(outcome: Any) -> bytes:
    """Equal for outcomes that callers cannot tell apart."""
    if isinstance(outcome, Refused):
        return msgspec.msgpack.encode((type(outcome).__name__, outcome.code, outcome.args))
    return msgspec.msgpack.encode((type(outcome).__name__, outcome))


def fingerprints(outcomes: Outcomes) -> list[bytes]:
    return [fingerprint(outcome) for _, _, outcome in outcomes]


def apply_all(machine: StateMachine, bodies: Sequence[bytes | None]) -> Applied:
    """Apply these entries, behind what the machine has applied. None: one without commands."""
    outcomes: list[list[bytes]] = []
    try:
        for body in bodies:
            if body is None:
                machine.skip(machine.index + 1)
                outcomes.append([])
            else:
                outcomes.append(fingerprints(machine.apply(machine.index + 1, body)))
    except Exception as error:
        return Applied(outcomes, "", f"{type(error).__name__}: {error}")
    return Applied(outcomes, machine.digest())


class Asked(msgspec.Struct, frozen=True):
    """A log, from its beginning or behind a snapshot of entry `index`."""

    bodies: Sequence[bytes | None]
    index: int = 0
    chunks: Sequence[bytes] = ()


class Elsewhere:
    """The other processes, which end with the context. Raises TypeError for what has no name."""

    def __init__(self, plugins: Sequence[Made]) -> None:
        self._places = [_place(each) for each in plugins]
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Elsewhere:
        paths = os.pathsep.join(str(path) for path in sys.path if path)
        command = [sys.executable, "-c", f"from {__name__} import serve; serve()"]
        for seed, zone in zip(_HASH_SEEDS, _TIME_ZONES, strict=True):
            env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": paths, "TZ": zone}
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env
            )
            self._processes.append(process)
            _send(process, self._places)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._processes:
            if kind is not None:
                process.kill()  # it may be at work for long
            process.communicate()

    def apply(
        self, bodies: Sequence[bytes | None], index: int = 0, chunks: Sequence[bytes] = ()
    ) -> list[Applied]:
        """What comes of these entries there, behind that snapshot if there is one."""
        for process in self._processes:
            _send(process, Asked(bodies, index, chunks))
        return [msgspec.msgpack.decode(_answer(each), type=Applied) for each in self._processes]


def _send(process: subprocess.Popen[bytes], message: Any) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # `_answer` will tell
        _write(process.stdin, message)


def _answer(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    found = _read(process.stdout)
    if found is None:
        raise RuntimeError(
            f"a process that applies logs with other hashes has ended with exit code "
            f"{process.wait()}; what it wrote stands on standard error"
        )
    return found


def _place(made: Made) -> Place:
    module, name = getattr(made, "__module__", ""), getattr(made, "__qualname__", "")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not made or module == "__main__":
        raise TypeError(
            f"{made!r} cannot be made in another process: define the class, or a function that "
            f"makes the plugin, at the top of a module that can be imported"
        )
    file = getattr(sys.modules[module], "__file__", None)
    return Place(module, name, file or "")


def _find(place: Place) -> Made:
    try:
        module = importlib.import_module(place.module)
    except ImportError:
        # A test that pytest has imported by its path.
        spec = importlib.util.spec_from_file_location(place.module, place.file)
        if spec is None or spec.loader is None:
            raise
        module = sys.modules[place.module] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    found: Any = module
    for part in place.name.split("."):
        found = getattr(found, part)
    made: Made = found
    return made


def _write(stream: IO[bytes], message: Any) -> None:
    body = msgspec.msgpack.encode(message)
    stream.write(len(body).to_bytes(_LENGTH_BYTES, "big") + body)
    stream.flush()


def _read(stream: IO[bytes]) -> bytes | None:
    """The next message; None at the end."""
    head = stream.read(_LENGTH_BYTES)
    return stream.read(int.from_bytes(head, "big")) if len(head) == _LENGTH_BYTES else None


def serve() -> None:
    """What the other process does, until its standard input ends."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    # What a plugin prints must not come between the answers.
    os.dup2(2, 1)
    first = _read(requests)
    if first is None:
        return
    plugins = [_find(place) for place in msgspec.msgpack.decode(first, type=list[Place])]
    while (request := _read(requests)) is not None:
        copy = os.fork()
        if copy == 0:
            status = 1
            try:
                _write(answers, _apply(msgspec.msgpack.decode(request, type=Asked), plugins))
                status = 0
            except Exception:
                traceback.print_exc()
            finally:
                os._exit(status)
        if os.waitpid(copy, 0)[1] != 0:
            sys.exit(1)


def _apply(asked: Asked, plugins: Sequence[Made]) -> Applied:
    machine = StateMachine([made() for made in plugins])
    if asked.chunks:
        try:
            machine.restore(asked.chunks, asked.index)
        except Exception as error:
            return Applied([], "", f"{type(error).__name__}: {error}")
    return apply_all(machine, asked.bodies)
