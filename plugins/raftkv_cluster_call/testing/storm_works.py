"""What the calls of a storm do on a node: the functions, their troubles, and what is left of them.

The functions write down each run in the step in which it begins, and judge it there and then
(`check_run`). What they do is little: note in the node's state which id last wrote a key, or put a
key of their own into the keyspace. Troubles are set from outside: for a while a function raises on
a node, or does not return there.

A node's state is a `NodeState`. `Kept` lies in a file, written where the contract says that it must
be durable (`passed`, `load`), so that a crash leaves what a good provider would leave. `Volatile`
is gone with its process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from raftkv.kv import Put
from raftkv.plugin import Host
from raftkv_cluster_call import Call
from raftkv_cluster_call.kept import KeptFile

from .storm_plan import FUNCTIONS, Memory
from .storm_runs import Run

if TYPE_CHECKING:
    from .storm import Seat, Storm

__all__ = [
    "EFFECTFUL",
    "EFFECTS",
    "Asked",
    "Volatile",
    "Works",
    "key_of",
    "make_state",
]

# Functions whose effect is on the keyspace only, and where it is found there.
EFFECTFUL: Mapping[str, bool] = {"count": True}
# The workload's own keys are written once each; below this prefix some are written more often.
EFFECTS = b"shared/effects/"
# How long "slow" takes, and how long "hang" does: longer than any caller waits.
SLOW_S = 0.3
HANG_S = 120.0
# One runs at a time; if several do, the one before is among these.
RECENT = 5


class Asked(msgspec.Struct, frozen=True):
    """The arguments of every call here: its number, and the key that it writes."""

    number: int
    key: str


class Refusing(Exception):
    """What a function in trouble raises."""


def key_of(function: str, args: bytes) -> str | None:
    """The key that a call writes into the states of nodes; None if it writes none."""
    if EFFECTFUL.get(function, False) or not args:
        return None
    return msgspec.msgpack.decode(args, type=Asked).key


# --- states ---------------------------------------------------------------------------------------


class Volatile:
    """In memory: a process that starts has nothing."""

    name = "shelf"

    def __init__(self, loaded: Callable[[int], None]) -> None:
        self.items: dict[str, int] = {}
        self._as_of = 0
        # Told of each copy.
        self._loaded = loaded

    async def as_of(self) -> int | None:
        return self._as_of

    async def dump(self) -> Mapping[str, bytes]:
        return {key: str(id_).encode() for key, id_ in self.items.items()}

    async def load(self, items: Mapping[str, bytes], as_of: int) -> None:
        self.items = {key: int(value) for key, value in items.items()}
        self._as_of = as_of
        self._loaded(as_of)

    async def passed(self, id: int) -> None:
        self._as_of = max(self._as_of, id)


class Kept(Volatile):
    """In a file, with the id that it is as of."""

    def __init__(self, host: Host, loaded: Callable[[int], None]) -> None:
        super().__init__(loaded)
        self._host = host
        self._file = KeptFile(host, "shelf")
        self._was_read = False

    async def as_of(self) -> int | None:
        content = await self._host.runtime.offload(self._file.read)
        if content is None:
            return 0
        as_of, items = msgspec.msgpack.decode(content, type=tuple[int, dict[str, int]])
        if not self._was_read:
            # What ran meanwhile is newer than the file.
            self.items, self._as_of, self._was_read = {**items, **self.items}, as_of, True
        return self._as_of

    async def load(self, items: Mapping[str, bytes], as_of: int) -> None:
        await super().load(items, as_of)
        self._was_read = True
        await self._write()

    async def passed(self, id: int) -> None:
        await super().passed(id)
        await self._write()

    async def _write(self) -> None:
        content = msgspec.msgpack.encode((self._as_of, self.items))
        await self._host.runtime.offload(self._file.write, content)


def make_state(memory: Memory, host: Host, loaded: Callable[[int], None]) -> Volatile | None:
    """The state of one life of a node; None: no provider. `loaded` is told as of what."""
    match memory:
        case "kept":
            return Kept(host, loaded)
        case "lost":
            return Volatile(loaded)
    return None


# --- functions ------------------------------------------------------------------------------------


class Works:
    """The functions of all nodes, what troubles them, and all runs that ever began."""

    def __init__(self, storm: Storm) -> None:
        self._storm = storm
        self.runs: list[Run] = []
        self.by_number: dict[int, list[Run]] = {}
        self._by_process: dict[tuple[str, int], list[Run]] = {}
        # (node, function) -> "raise" or the event for which it waits.
        self.troubles: dict[tuple[str, str], str | asyncio.Event] = {}
        # Numbers of calls whose initiator is to raise.
        self.refused: set[int] = set()

    def register(self, seat: Seat, *, new: bool) -> None:
        """All functions on a node that starts. `new`: also what only some nodes know yet."""
        api = seat.api

        @api.function("note")
        def note(args: Asked, call: Call) -> str:
            run = self._begin(seat, "note", 1, args, call)
            self._fail_in_trouble(run)
            return self._write(seat, run, args)

        # Plain functions that return what is to be awaited: so each run is written down in the step
        # that begins it. A coroutine would start a step later, when the cursor may have moved.

        @api.function("slow")
        def slow(args: Asked, call: Call) -> Awaitable[str]:
            return self._work(seat, self._begin(seat, "slow", 1, args, call), args, SLOW_S)

        @api.function("hang")
        def hang(args: Asked, call: Call) -> Awaitable[str]:
            wait_s = HANG_S if call.kind == "initiate" and args.number % 2 else SLOW_S
            return self._work(seat, self._begin(seat, "hang", 1, args, call), args, wait_s)

        @api.function("picky")
        def picky(args: Asked, call: Call) -> Awaitable[str]:
            return self._work(seat, self._begin(seat, "picky", 1, args, call), args, 0.0)

        @api.function("count", effect=True)
        def count(args: Asked, call: Call) -> Awaitable[Put]:
            return self._put(self._begin(seat, "count", 1, args, call), args)

        @api.function("new", version=1)
        def new_1(args: Asked, call: Call) -> Awaitable[str]:
            return self._work(seat, self._begin(seat, "new", 1, args, call), args, 0.0)

        if new:
            self.register_new(seat)

    def register_new(self, seat: Seat) -> None:
        """What is brought by an upgrade."""

        @seat.api.function("new", version=2)
        def new_2(args: Asked, call: Call) -> Awaitable[str]:
            return self._work(seat, self._begin(seat, "new", 2, args, call), args, 0.0)

    async def _work(self, seat: Seat, run: Run, args: Asked, wait_s: float) -> str:
        await self._through_trouble(run, wait_s)
        return self._write(seat, run, args)

    async def _put(self, run: Run, args: Asked) -> Put:
        await self._through_trouble(run, 0.0)
        run.end = "ok"
        return Put(EFFECTS + run.token.encode(), str(args.number).encode())

    def _begin(self, seat: Seat, function: str, version: int, args: Asked, call: Call) -> Run:
        """Write the run down, and judge it."""
        view, host = seat.host.view(), seat.host
        run = Run(
            node=host.name,
            boots=seat.boots,
            incarnation=host.incarnation,
            id=call.id,
            kind=call.kind,
            function=function,
            version=version,
            number=args.number,
            attempt=call.attempt,
            token=call.token,
            cursor=view.table("cursors").get(host.name),
            record=view.table("records").get(call.id),
        )
        mine = self.by_number.setdefault(args.number, [])
        marks = self._storm.marks
        if any(each.node == run.node and each.end == "ok" for each in mine):
            marks["run again after a success"] += 1
        self._storm.began(run, seat)
        self.runs.append(run)
        mine.append(run)
        self._by_process.setdefault((run.node, run.boots), []).append(run)
        return run

    def _write(self, seat: Seat, run: Run, args: Asked) -> str:
        if seat.state is not None:
            seat.state.items[args.key] = run.id
        run.end = "ok"
        return f"{run.id}/{run.number}"

    def _fail_in_trouble(self, run: Run) -> None:
        trouble = self.troubles.get((run.node, run.function))
        refused = run.kind == "initiate" and run.number in self.refused
        if refused or (run.kind == "replicate" and trouble == "raise"):
            run.end = "raised"
            self._storm.marks["run raised"] += 1
            raise Refusing(run.function)

    async def _through_trouble(self, run: Run, wait_s: float) -> None:
        try:
            trouble = self.troubles.get((run.node, run.function))
            if isinstance(trouble, asyncio.Event) and run.kind == "replicate":
                self._storm.marks["run hung"] += 1
                await trouble.wait()
            if wait_s:
                await asyncio.sleep(wait_s)
        except asyncio.CancelledError:
            run.end = "cut off"
            self._storm.marks["run cut off"] += 1
            raise
        self._fail_in_trouble(run)

    def of_process(self, name: str, boots: int) -> list[Run]:
        """The newest runs of one life of a node."""
        return self._by_process.get((name, boots), [])[-RECENT:]

    def fail_on(self, name: str) -> None:
        """All functions raise on this node, until `end_troubles`."""
        self.troubles.update({(name, function): "raise" for function in FUNCTIONS})

    def end_troubles(self) -> None:
        """All functions do what they should."""
        for trouble in self.troubles.values():
            if isinstance(trouble, asyncio.Event):
                trouble.set()
        self.troubles.clear()
        self.refused.clear()

    def node_died(self, name: str, boots: int) -> None:
        """Its runs have ended with it, in the middle."""
        for run in reversed(self.runs):
            if run.node == name and run.boots < boots and not run.end:
                run.end = "died"
