"""Watching a plugin's pure half from outside: what it asks the world, and how much it does.

While `apply` or a hook runs, Python reports every call to a function set by `sys.setprofile`, also
those deep inside a library. A call of a builtin that asks the world something (the clock, chance,
files, sockets, the event loop) is a finding, wherever it stands: reading the imports of a module
would neither see what its helpers do nor let a module hold both halves of a plugin.

What this does not see: data that differs without a call, such as the order of a set (for that a log
is applied once more by processes with other hashes, elsewhere.py); what C code calls by itself, as
`map(time.time, ...)` does.

The calls are also counted. They measure the work of one command on every machine alike, which a
clock would not.
"""

from __future__ import annotations

import datetime
import gc
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any, Final

__all__ = ["CALLS_MAX", "Watch"]

#: Of one command: at up to a microsecond each, what a node's loop may stand still for.
CALLS_MAX: Final = 50_000

# Where builtins live that ask the world something, and what in them does not. Locks are not here:
# nobody else is there, and `functools.cached_property` takes one. Nor can be seen with what `time`
# is asked, so nothing of it is exempt: `gmtime()` reads the clock, `localtime` the time zone.
_WORLD: Final = {
    "_asyncio": (),
    "_ctypes": (),
    "_io": (),
    "io": ("text_encoding",),  # what the module _io calls itself
    "_locale": (),
    "_multiprocessing": (),
    "_posixsubprocess": (),
    "_random": (),
    "_signal": (),
    "_socket": (),
    "_sqlite3": (),
    "_ssl": (),
    "_thread": ("RLock", "allocate_lock"),
    "_uuid": (),
    "fcntl": (),
    "mmap": (),
    "posix": ("fspath",),
    "pwd": (),
    "resource": (),
    "select": (),
    "sqlite3": (),
    "time": (),
}
# What is written in Python begins with a class there, and making one is not seen as a call.
_PACKAGES: Final = (
    "asyncio",
    "concurrent",
    "multiprocessing",
    "selectors",
    "socket",
    "subprocess",
    "tempfile",
)
_BUILTINS: Final = ("breakpoint", "id", "input", "open", "print")
# Classes that live beside such functions and ask nothing.
_HARMLESS: Final = ("BytesIO", "RLock", "StringIO", "lock")
_NOW: Final = ("now", "today", "utcnow")
# A module that is imported by the first call is read from a file. That decides nothing.
_IMPORTING: Final = ("importlib._bootstrap", "importlib._bootstrap_external")
# The methods of `os.environ`, which is written in Python.
_ENVIRONMENT: Final = ("__getitem__", "__iter__", "__setitem__", "__delitem__")


class Watch:
    """`watched` wraps pure functions; `found` and `calls` are of those that have run since `clear`.

    `calls` is the most that one of them took.
    """

    def __init__(self) -> None:
        #: What was asked, and by whom outside of Python's own library:
        #: "time.time, by raftkv_x.rows.expire".
        self.found: list[str] = []
        self.calls = 0
        self._running = False

    def clear(self) -> None:
        self.found.clear()
        self.calls = 0

    def watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, watched whenever it runs."""

        def call(*args: Any) -> Any:
            with self._watching():
                return function(*args)

        return call

    @contextmanager
    def _watching(self) -> Iterator[None]:
        if self._running:  # a plugin that is called by the plugin under test
            yield
            return
        calls = 0

        def profile(frame: FrameType, event: str, argument: Any) -> None:
            nonlocal calls
            if event == "call":
                calls += 1
                asked = _asks_in_python(frame)
                if asked:
                    self._note(asked, frame)
            elif event == "c_call":
                calls += 1
                asked = _asks(argument)
                if asked:
                    self._note(asked, frame)

        before, collects = sys.getprofile(), gc.isenabled()
        # What the collector calls, at any moment, is none of the plugin's.
        gc.disable()
        self._running = True
        sys.setprofile(profile)
        try:
            yield
        finally:
            sys.setprofile(before if callable(before) else None)
            self._running = False
            if collects:
                gc.enable()
            self.calls = max(self.calls, calls)

    def _note(self, asked: str, frame: FrameType) -> None:
        """It was asked in this frame: find out on whose behalf, and whether that matters.

        `id` in Python's own library does not: `copy` and `reprlib` keep count by it.
        """
        at: FrameType | None = frame
        own = ""
        while at is not None and at.f_globals.get("__name__") != __name__:
            module = str(at.f_globals.get("__name__"))
            if module in _IMPORTING:
                return
            if not own and module.partition(".")[0] not in sys.stdlib_module_names:
                own = f"{module}.{at.f_code.co_qualname}"
                if asked == "id" and at is not frame:
                    return
            at = at.f_back
        self.found.append(f"{asked}, by {own or frame.f_code.co_qualname}")


def _asks_in_python(frame: FrameType) -> str:
    """What this function of Python's own library asks of the world; "" for nothing."""
    name = frame.f_globals.get("__name__", "")
    if name == "os":
        return "os.environ" if frame.f_code.co_name in _ENVIRONMENT else ""
    return name if name.partition(".")[0] in _PACKAGES else ""


def _asks(function: Any) -> str:
    """What this builtin asks of the world; "" for nothing."""
    # A method that is called through its class has no owner, and is asked of its argument.
    owner, name = getattr(function, "__self__", None), function.__name__
    if isinstance(owner, ModuleType):
        home = owner.__name__
        if home == "builtins":
            return name if name in _BUILTINS else ""
        if home not in _WORLD or name in _WORLD[home] or name.startswith("_path_"):
            return ""  # posix._path_normpath and its like work on strings
        return f"{home}.{name}"
    kind = owner if isinstance(owner, type) else type(owner)
    if issubclass(kind, datetime.date):
        return f"{kind.__name__}.{name}" if name in _NOW else ""
    if isinstance(owner, random.Random):
        return f"random.{name}"
    if kind.__module__ in _WORLD and kind.__name__ not in _HARMLESS:
        return f"{kind.__name__}.{name}"
    return ""
