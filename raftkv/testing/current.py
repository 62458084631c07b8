"""Which host is running: for libraries that read the clock and chance from module globals.

PySyncObj reads `monotonicTime` and `random` from its module's globals, one global for all nodes of
the process. In a simulated world each host has its own clock and its own chance, so these globals
become the functions below, which look at the context variables of the running callback:

    with current.installed(pysyncobj.syncobj):
        world.run(30)

Outside a host's code there is no clock to read and these functions raise; a test that calls into a
node from outside does it with `host.inside(function, ...)`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from types import ModuleType
from typing import Any, Protocol

__all__ = [
    "CURRENT",
    "CurrentRandom",
    "current_monotonic",
    "current_random",
    "installed",
    "running_host",
]


class HasClockAndChance(Protocol):
    """What is needed of a runtime here."""

    host: str
    rng: Any

    def monotonic(self) -> float: ...


CURRENT: ContextVar[HasClockAndChance | None] = ContextVar("raftkv_testing_host", default=None)


def _runtime() -> HasClockAndChance:
    runtime = CURRENT.get()
    if runtime is None:
        raise RuntimeError(
            "no simulated host is running: this code was called from outside the world. "
            "Call it through Host.inside, or from a task made with World.call."
        )
    return runtime


def current_monotonic() -> float:
    """`monotonic()` of the host whose code is running. Raises RuntimeError outside any host."""
    return _runtime().monotonic()


def running_host() -> str:
    """The name of the host whose code is running. Raises RuntimeError outside any host."""
    return _runtime().host


class CurrentRandom:
    """Looks like the module `random`; every call goes to the running host's generator."""

    def random(self) -> float:
        return float(_runtime().rng.random())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_runtime().rng, name)


current_random = CurrentRandom()


@contextlib.contextmanager
def installed(module: ModuleType) -> Iterator[None]:
    """Replace the globals `monotonicTime` and `random` of `module`, and put them back."""
    names = {"monotonicTime": current_monotonic, "random": current_random}
    before = {name: getattr(module, name) for name in names}
    for name, replacement in names.items():
        setattr(module, name, replacement)
    try:
        yield
    finally:
        for name, original in before.items():
            setattr(module, name, original)
