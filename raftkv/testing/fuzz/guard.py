"""Whether feeding bytes ran any code, or filled the memory.

Python reports what could run code (an unpickled class, `exec`, a started program, a foreign
function) to audit hooks, whoever asked for it. While armed, such an event is a finding. A hook
cannot be removed again, so there is one per process, armed only while a case runs.
"""

from __future__ import annotations

import resource
import sys
from typing import Any, Final

from raftkv.testing.fuzz.target import Finding

__all__ = ["ADDRESS_SPACE_BYTES_MAX", "Guard", "limit_memory"]

_RUNS_CODE: Final = (
    "pickle.find_class",
    "marshal.loads",
    "marshal.load",
    "exec",
    "compile",
    "os.system",
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.spawn",
    "subprocess.Popen",
    "ctypes.dlopen",
    "ctypes.dlsym",
    "socket.connect",
)

# They evaluate the annotations of our own classes, and load our own modules, when first needed.
_TRUSTED: Final = (
    "typing",
    "msgspec._utils",
    "importlib._bootstrap",
    "importlib._bootstrap_external",
    "_frozen_importlib",
    "_frozen_importlib_external",
)

# A process that has run Spark, too: its bridge tells the Java side of every object that Python's
# collector frees, in whatever thread and moment that happens, by a new connection if need be.
_TRUSTED_PACKAGE: Final = "py4j."

# More than a fuzzing process needs by far, less than one length that is believed unchecked.
ADDRESS_SPACE_BYTES_MAX: Final = 3 << 30


class Guard:
    """A context manager: inside it, code that bytes cause to run is a `Finding`.

    The finding is kept too, in case the code under test catches what is raised.
    """

    _hooked = False
    _armed: Guard | None = None

    def __init__(self) -> None:
        self.events: list[str] = []
        if not Guard._hooked:
            Guard._hooked = True
            sys.addaudithook(Guard._audit)

    def __enter__(self) -> Guard:
        self.events.clear()
        Guard._armed = self
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        Guard._armed = None
        if self.events and not isinstance(error, Finding):
            raise Finding(f"the input ran code: {self.events[0]}")

    @staticmethod
    def _audit(event: str, arguments: tuple[Any, ...]) -> None:
        guard = Guard._armed
        if guard is not None and event.startswith(_RUNS_CODE):
            module = sys._getframe(1).f_globals.get("__name__", "")
            if module in _TRUSTED or module.startswith(_TRUSTED_PACKAGE):
                return
            guard.events.append(f"{event} {arguments!r:.80}")
            raise Finding(f"the input ran code: {guard.events[0]}")


def limit_memory() -> None:
    """From now on this process gets a MemoryError instead of more address space."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = ADDRESS_SPACE_BYTES_MAX
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
