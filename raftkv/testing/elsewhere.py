"""Another process that applies logs of a plugin, with other hashes of strings and bytes.

What depends on the order of a set shows in no process by itself: there the order is always the
same. The other process makes the plugins anew by their names, applies what it is sent, and answers
with what came out. One serves many logs, because starting it takes longer than a log.

Both speak MessagePack, each message behind its length. Nothing else than entries and fingerprints
passes, so the other process can do no more than any node can with its log.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import os
import subprocess
import sys
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
# Python's own is drawn for each process, unless it was set to one of these.
_HASH_SEEDS: Final = ("1", "2")


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


class Elsewhere:
    """The other process, which ends with the context. Raises TypeError for what has no name."""

    def __init__(self, plugins: Sequence[Made]) -> None:
        self._places = [_place(each) for each in plugins]

    def __enter__(self) -> Elsewhere:
        seed = next(each for each in _HASH_SEEDS if each != os.environ.get("PYTHONHASHSEED"))
        paths = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": paths},
        )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `apply` will tell
            _write(self._process.stdin, self._places)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.communicate()

    def apply(self, bodies: Sequence[bytes | None]) -> Applied:
        """What comes of this log there."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        found = None
        with contextlib.suppress(BrokenPipeError):
            _write(process.stdin, bodies)
            found = _read(process.stdout)
        if found is None:
            raise RuntimeError(
                f"the process that applies logs with other hashes has ended with exit code "
                f"{process.wait()}; what it wrote stands on standard error"
            )
        return msgspec.msgpack.decode(found, type=Applied)


def _place(made: Made) -> Place:
    module, name = getattr(made, "__module__", ""), getattr(made, "__qualname__", "")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not made:
        raise TypeError(
            f"{made!r} cannot be made in another process: define the class, or a function that "
            f"makes the plugin, at the top of a module"
        )
    return Place(module, name, inspect.getsourcefile(made) or "")


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
        bodies = msgspec.msgpack.decode(request, type=list[bytes | None])
        _write(answers, apply_all(StateMachine([made() for made in plugins]), bodies))
