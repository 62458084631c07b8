"""A plugin that keeps the contract, and one for each way not to.

They stand in a module of their own because another process makes them, too.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import json
import logging
import os
import random
import re
import socket
import time
import uuid
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from raftkv.errors import Refused
from raftkv.plugin import (
    Context,
    MemberChange,
    Plugin,
    Setting,
    SettingChange,
    TableSpec,
    View,
)


class NotHeld(Refused):
    code = "not_held"


class Undeclared(Refused):
    code = "undeclared"


class Held(msgspec.Struct, frozen=True, array_like=True, tag="held"):
    name: str
    ticket: int


class Taken(msgspec.Struct, frozen=True, array_like=True, tag="taken"):
    name: str
    owner: str


class Acquire(msgspec.Struct, frozen=True, array_like=True, tag="acquire"):
    Result: ClassVar[Any] = Held | Taken
    name: str


class Release(msgspec.Struct, frozen=True, array_like=True, tag="release"):
    Result: ClassVar[Any] = bool
    name: str
    ticket: int


class Lock(msgspec.Struct, frozen=True, array_like=True):
    ticket: int
    owner: str
    since_ms: int


class Locks(Plugin[None]):
    """Locks by name. A dead node's are free at once."""

    name: ClassVar[str] = "locks"
    version: ClassVar[int] = 2
    commands: ClassVar[tuple[type[msgspec.Struct], ...]] = (Acquire, Release)
    tables: ClassVar[tuple[TableSpec, ...]] = (TableSpec("locks", str, Lock),)
    refusals: ClassVar[tuple[type[Refused], ...]] = (NotHeld,)
    settings: ClassVar[tuple[Setting, ...]] = (
        Setting("lease_ms", int, 10_000, None, "How long a lock is held, in ms."),
    )

    def apply(self, command: Any, ctx: Context) -> Any:
        locks = ctx.table("locks")
        if isinstance(command, Acquire):
            return self.acquire(command, ctx)
        lock = locks.get(command.name)
        if lock is None or lock.ticket != command.ticket:
            raise NotHeld(command.name)
        return locks.delete(command.name)

    def acquire(self, command: Acquire, ctx: Context) -> Held | Taken:
        locks = ctx.table("locks")
        lock = locks.get(command.name)
        if lock is not None and ctx.now - lock.since_ms < ctx.settings["lease_ms"]:
            return Taken(command.name, lock.owner)
        owner = "" if ctx.origin is None else ctx.origin.name
        locks.put(command.name, Lock(ctx.serial, owner, ctx.now))
        return Held(command.name, ctx.serial)

    def on_members(self, change: MemberChange, ctx: Context) -> None:
        if change.ended is not None and change.old is not None:
            locks = ctx.table("locks")
            for name in [n for n, lock in locks.scan() if lock.owner == change.old.name]:
                locks.delete(name)

    def invariants(self, view: View) -> Sequence[str]:
        return [name for name, lock in view.table("locks").scan() if lock.ticket <= 0]


class Clocked(Locks):
    def acquire(self, command: Acquire, ctx: Context) -> Held | Taken:
        time.time()
        return super().acquire(command, ctx)


class Chancy(Locks):
    def acquire(self, command: Acquire, ctx: Context) -> Held | Taken:
        random.randint(1, 6)
        return super().acquire(command, ctx)


class Configured(Locks):
    def acquire(self, command: Acquire, ctx: Context) -> Held | Taken:
        os.environ.get("LOCKS")
        return super().acquire(command, ctx)


class Cached(Locks):
    """Keeps what never changes where `functools` keeps it: nothing is wrong with that."""

    @functools.cached_property
    def letters(self) -> frozenset[str]:
        return frozenset("abc")

    def acquire(self, command: Acquire, ctx: Context) -> Held | Taken:
        assert "a" in type(self)().letters
        assert _upper(command.name)
        hashlib.sha256(command.name.encode()).digest()
        datetime.datetime.fromtimestamp(ctx.now / 1000, datetime.UTC).isoformat()
        return super().acquire(command, ctx)


@functools.lru_cache
def _upper(name: str) -> str:
    return re.sub("a", "A", name) + str(uuid.UUID(int=7)) + json.dumps([name])


class Today(datetime.date):
    pass


class Dated(Locks):
    def acquire(self, command: Acquire, ctx: Context) -> Held | Taken:
        Today.today()
        return super().acquire(command, ctx)


class Connecting(Locks):
    """Does nothing with it."""

    def acquire(self, command: Acquire, ctx: Context) -> Held | Taken:
        socket.socket().close()
        return super().acquire(command, ctx)


class Logging(Locks):
    def acquire(self, command: Acquire, ctx: Context) -> Held | Taken:
        logging.getLogger("toys").error("acquired")
        return super().acquire(command, ctx)


class Reading(Locks):
    def on_members(self, change: MemberChange, ctx: Context) -> None:
        with open(__file__) as file:
            file.read(1)


class Unordered(Locks):
    """Which lock is taken depends on the order of a set."""

    def acquire(self, command: Acquire, ctx: Context) -> Held | Taken:
        first = next(iter({command.name + letter for letter in "abcdefgh"}))
        return super().acquire(Acquire(first), ctx)


class Remembering(Locks):
    def __init__(self) -> None:
        self.count = 0

    def acquire(self, command: Acquire, ctx: Context) -> Held | Taken:
        self.count += 1
        return super().acquire(command, ctx)


class RememberingInside(Locks):
    """In a list that the object has had from the beginning."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def acquire(self, command: Acquire, ctx: Context) -> Held | Taken:
        self.names.append(command.name)
        return super().acquire(Acquire(f"{command.name}{len(self.names)}"), ctx)


class RememberingTheLog(Locks):
    """What it remembers begins with the log, so that only a snapshot's reader lacks it."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def on_members(self, change: MemberChange, ctx: Context) -> None:
        if ctx.serial == 1:
            self.names.clear()

    def acquire(self, command: Acquire, ctx: Context) -> Held | Taken:
        self.names.append(command.name)
        return super().acquire(Acquire(f"{command.name}{len(self.names)}"), ctx)


class Raising(Locks):
    def apply(self, command: Any, ctx: Context) -> Any:
        if isinstance(command, Acquire) and command.name == "b":
            raise KeyError("b")
        return super().apply(command, ctx)


class RaisingHook(Locks):
    def on_setting(self, change: SettingChange, ctx: Context) -> None:
        raise ValueError("a bug")


class Stopping(Locks):
    def acquire(self, command: Acquire, ctx: Context) -> Held | Taken:
        raise OSError("no space left")


class RefusingUndeclared(Locks):
    def acquire(self, command: Acquire, ctx: Context) -> Held | Taken:
        raise Undeclared


class WronglyTyped(Locks):
    """A row that no snapshot can be read from: nobody checks the fields of a Struct."""

    def acquire(self, command: Acquire, ctx: Context) -> Held | Taken:
        ctx.table("locks").put(command.name, Lock("one", "", 0))  # type: ignore[arg-type]
        return Held(command.name, 1)

    def invariants(self, view: View) -> Sequence[str]:
        return []


class Healing(WronglyTyped):
    """The row goes again."""

    def apply(self, command: Any, ctx: Context) -> Any:
        if isinstance(command, Release):
            return ctx.table("locks").delete(command.name)
        return super().apply(command, ctx)


class WrongResult(Locks):
    def acquire(self, command: Acquire, ctx: Context) -> Held | Taken:
        return Held(command.name, "one")  # type: ignore[arg-type]


class Busy(Locks):
    def acquire(self, command: Acquire, ctx: Context) -> Held | Taken:
        for _ in range(60_000):
            len(command.name)
        return super().acquire(command, ctx)


class Writing(Locks):
    def acquire(self, command: Acquire, ctx: Context) -> Held | Taken:
        for number in range(1_001):
            ctx.table("locks").put(f"{command.name}{number}", Lock(ctx.serial, "", 0))
        return Held(command.name, ctx.serial)


class Inconsistent(Locks):
    def acquire(self, command: Acquire, ctx: Context) -> Held | Taken:
        ctx.table("locks").put(command.name, Lock(-1, "", 0))
        return Held(command.name, 1)

    def invariants(self, view: View) -> Sequence[str]:
        return [f"{name} is odd" for name, row in view.table("locks").scan() if row.ticket < 0]


class Deaf(Locks):
    """Nothing can ever be released."""

    def apply(self, command: Any, ctx: Context) -> Any:
        if isinstance(command, Release):
            raise NotHeld(command.name)
        return super().apply(command, ctx)


class Careful(Locks):
    """Format 2 brought a command that must not be applied before."""

    def acquire(self, command: Acquire, ctx: Context) -> Held | Taken:
        if ctx.version < 2:
            raise RuntimeError("format 1 has no Acquire")
        return super().acquire(command, ctx)


class ClockedSetting(Locks):
    def on_setting(self, change: SettingChange, ctx: Context) -> None:
        time.time()


class ClockedVoters(Locks):
    def on_voters(self, old: tuple[str, ...], ctx: Context) -> None:
        time.time()


_FIRST: dict[str, int] = {}


class FirstWins(Locks):
    """What a module remembers of the first log is still there in the second one."""

    def acquire(self, command: Acquire, ctx: Context) -> Held | Taken:
        return Held(command.name, _FIRST.setdefault(command.name, ctx.serial))


class Local(Locks):
    def acquire(self, command: Acquire, ctx: Context) -> Held | Taken:
        here = datetime.datetime.fromtimestamp(ctx.now / 1000)  # noqa: DTZ006
        return Held(str(here), ctx.serial)


class InPlace(Locks):
    """Changes a row that is shared with everybody, and refuses."""

    def acquire(self, command: Acquire, ctx: Context) -> Held | Taken:
        lock = ctx.table("locks").get(command.name)
        if lock is not None:
            msgspec.structs.force_setattr(lock, "ticket", lock.ticket + 1)
            raise NotHeld(command.name)
        return super().acquire(command, ctx)


class Loose(Locks):
    def acquire(self, command: Acquire, ctx: Context) -> Held | Taken:
        return Held(command.name, 3.0)  # type: ignore[arg-type]


class Unwritable(Locks):
    def acquire(self, command: Acquire, ctx: Context) -> Held | Taken:
        ctx.table("locks").put(command.name, Lock(2**70, "", 0))
        return Held(command.name, 1)


class Hungry(Locks):
    def acquire(self, command: Acquire, ctx: Context) -> Held | Taken:
        raise MemoryError


class NoVoters(Locks):
    def acquire(self, command: Acquire, ctx: Context) -> Held | Taken:
        assert ctx.voters[0]
        return super().acquire(command, ctx)


class BadInvariants(Locks):
    def invariants(self, view: View) -> Sequence[str]:
        return [str(1 // len(list(view.table("locks").scan())))]


class Lives(Plugin[None]):
    """Has no commands: it hears of members only."""

    name: ClassVar[str] = "lives"
    tables: ClassVar[tuple[TableSpec, ...]] = (TableSpec("lives", str, int),)

    def on_members(self, change: MemberChange, ctx: Context) -> None:
        if change.new is not None:
            ctx.table("lives").put(change.new.name, change.new.incarnation)


class ClockedLives(Lives):
    def on_members(self, change: MemberChange, ctx: Context) -> None:
        time.monotonic()


class Borrow(msgspec.Struct, frozen=True, array_like=True, tag="borrow"):
    Result: ClassVar[Any] = bool
    name: str


class Library(Plugin[None]):
    """Uses the locks."""

    name: ClassVar[str] = "library"
    commands: ClassVar[tuple[type[msgspec.Struct], ...]] = (Borrow,)
    tables: ClassVar[tuple[TableSpec, ...]] = (TableSpec("lent", str, int),)
    uses: ClassVar[tuple[str, ...]] = ("locks",)

    def apply(self, command: Any, ctx: Context) -> Any:
        ctx.table("lent").put(command.name, ctx.serial)
        return isinstance(ctx.call("locks", Acquire(command.name)), Held)


class HashedLibrary(Library):
    """What it uses is asked in the order of a set."""

    def apply(self, command: Any, ctx: Context) -> Any:
        first = next(iter({f"{command.name}{letter}" for letter in "abcdef"}))
        return isinstance(ctx.call("locks", Acquire(first)), Held)
