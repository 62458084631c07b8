"""What is in effect on one node: local value, else the cluster's, else the default; and bringing it
about.

Rules of this file
1. A path's `apply` runs when the effective value changes, one path at a time, and never twice at
   once. It must be idempotent: after a crash or a failure it is run again with the same value.
2. A default is not brought about at the start: a program begins with its defaults anyhow. It is,
   when a value that was in effect goes away.
3. What could not be brought about where nobody waits for it (at the start, or when a handler is
   registered late) is tried again until it succeeds, and told by a gauge.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from raftkv.errors import ConfigError
from raftkv.plugin import Host
from raftkv_cluster_call import cause_of, logged_cause

from .errors import InvalidValue
from .handlers import Handler, Handlers, encoded

__all__ = ["Effects", "Entry", "Listener", "Source"]

#: Told of a path and its new effective value.
Listener = Callable[[str, Any], None]
Source = Literal["local", "set", "default"]

RETRY_MIN_S = 0.5
RETRY_MAX_S = 60.0


class Effects:
    """The effective values of one node."""

    def __init__(self, host: Host, handlers: Handlers, local: Mapping[str, Any]) -> None:
        self._host = host
        self._handlers = handlers
        self.local = {path: _local(path, value) for path, value in local.items()}
        self._listeners: list[Listener] = []
        # The effective values that have been brought about; no entry: the default, untouched.
        self._in_effect: dict[str, bytes] = {}
        #: Path -> class and function, of what has not been brought about.
        self.failing: dict[str, str] = {}

    def add_listener(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def source(self, path: str, values: Mapping[str, bytes]) -> Source:
        """Where the effective value of a path comes from."""
        return "local" if path in self.local else "set" if path in values else "default"

    def effective(self, path: str, values: Mapping[str, bytes]) -> bytes | None:
        """The effective value as JSON; None: the default."""
        return self.local.get(path, values.get(path))

    def value(self, handler: Handler, values: Mapping[str, bytes]) -> Any:
        """The effective value as its handler's type. Raises InvalidValue."""
        value = self.effective(handler.path, values)
        return handler.default if value is None else handler.build(value)

    async def bring(self, path: str, values: Mapping[str, bytes]) -> None:
        """Bring the path's effective value about. Raises what its handler raises."""
        wanted = self.effective(path, values)
        if wanted == self._in_effect.get(path):
            self.failing.pop(path, None)
            return
        handler = self._handlers.get(path)
        if handler is None:
            # Kept for a program that registers it later, or that knows it no more.
            return
        built = handler.default if wanted is None else handler.build(wanted)
        # Until it has succeeded nobody knows what is in effect; `...` is no JSON.
        before = self._in_effect.get(path)
        self.doubt(path)
        if handler.apply is not None:
            outcome = handler.apply(built)
            if inspect.isawaitable(outcome):
                await outcome
        if wanted is None:
            del self._in_effect[path]
        else:
            self._in_effect[path] = wanted
        self.failing.pop(path, None)
        if before != wanted:
            self._tell(path, built)

    def doubt(self, path: str) -> None:
        """Nobody knows what is in effect there: bring it about again, a default too."""
        self._in_effect[path] = b"..."

    async def bring_all(self, values: Mapping[str, bytes]) -> None:
        """Every path. Raises the first error, after all others have been tried."""
        paths = {*values, *self.local, *self._in_effect}
        first: Exception | None = None
        for path in sorted(paths):
            try:
                await self.bring(path, values)
            except Exception as error:
                self.failing[path] = cause_of(error)
                first = first or error
        if first is not None:
            raise first

    def _tell(self, path: str, value: Any) -> None:
        for listener in self._listeners:
            try:
                listener(path, value)
            except Exception as error:
                cause = logged_cause(error)
                self._host.log.error("conf: a listener failed for %s: %s", path, cause)


def _local(path: str, value: Any) -> bytes:
    try:
        return encoded(value)
    except InvalidValue as error:
        raise ConfigError(f"options.conf.local: {path}: {error}") from None


class Entry(msgspec.Struct, frozen=True):
    """One path on one node, as people may see it: a secret's value is "***".

    `source`: "local" (this node's options), "set" (the cluster's) or "default". `known` is False
    for a path that no program has registered here; its value is kept and has no effect. `failing`
    is the class and function of what could not be brought about, "" if all is well.
    """

    path: str
    value: Any
    source: Source
    doc: str = ""
    secret: bool = False
    known: bool = True
    failing: str = ""
