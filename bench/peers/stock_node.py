"""A member of a stock PySyncObj cluster, and callers inside it: the process of `stock.py`.

    python -m bench.peers.stock_node SETUP.json

One JSON object a line on the standard input and output, one answer for each request; the first
answer comes unasked. It ends with its standard input. The library is used as its own examples use
it: a `ReplDict`, a thread that ticks, callers that are called back.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from pysyncobj import FAIL_REASON, SyncObj, SyncObjConf
from pysyncobj.batteries import ReplDict
from pysyncobj.journal import FileJournal

__all__ = ["WAYS", "Answer", "Sets", "Setup", "Way", "Where", "main"]

KEY: Final = "key-%010d"
# Its commands must not be refused for their number: raftkv's are not.
_QUEUE: Final = 1_000_000


class Way(msgspec.Struct, frozen=True):
    """Options of `SyncObjConf`, and where a write is once it is confirmed."""

    options: dict[str, Any]
    kept_in: Literal["memory", "page cache", "disk"]


#: How it can be run. By itself it sends what has come together with each tick of `appendEntries`.
WAYS: Final[dict[str, Way]] = {
    "as it comes": Way({}, "memory"),
    "ticks of 1 ms, sending every 10": Way(
        {"autoTickPeriod": 0.001, "appendEntriesPeriod": 0.01}, "memory"
    ),
    "each at once": Way({"appendEntriesUseBatch": False}, "memory"),
    "each at once, journal": Way({"appendEntriesUseBatch": False}, "page cache"),
    "each at once, journal flushed": Way({"appendEntriesUseBatch": False}, "disk"),
}


class Setup(msgspec.Struct, frozen=True):
    """The process's file. `way` is one of WAYS; `base` begins the names of its files."""

    me: str
    others: list[str]
    way: str
    base: str


class Sets(msgspec.Struct, frozen=True, tag="sets"):
    """Set keys of the first `keys`, so many at once, for so long.

    `grace_s`: so long after that an answer is waited for; a command that is lost never has one.
    """

    keys: int
    value_bytes: int
    seconds: float
    in_flight: int
    grace_s: float = 10.0


class Where(msgspec.Struct, frozen=True, tag="where"):
    """Ask who leads only."""


Ask = Sets | Where


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What every request is answered with. `failed`: refused, or never answered."""

    error: str = ""
    ready: bool = False
    leader: str = ""
    done: int = 0
    failed: int = 0
    seconds: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0


class StockNode:
    """The member and what is asked of it."""

    def __init__(self, setup: Setup) -> None:
        way = WAYS[setup.way]
        options = {**way.options, "commandsQueueSize": _QUEUE}
        if way.kept_in != "memory":
            options["journalFile"] = f"{setup.base}.journal"
            options["fullDumpFile"] = f"{setup.base}.dump"
        if way.kept_in == "disk":
            _flush_each_record()
        self._dict = ReplDict()
        self._object = SyncObj(
            setup.me, setup.others, consumers=[self._dict], conf=SyncObjConf(**options)
        )

    def handle(self, ask: Ask) -> Answer:
        if isinstance(ask, Sets):
            return self._sets(ask)
        leader = self._object._getLeader()
        return Answer(ready=self._object.isReady(), leader=leader.id if leader else "")

    def _sets(self, ask: Sets) -> Answer:
        """Callers in a closed loop. One that is refused stops: it could be refused for ever."""
        value, clock = os.urandom(ask.value_bytes), time.perf_counter
        took_s: list[float] = []
        callers = ask.in_flight
        ended = threading.Event()
        began_s = clock()
        until_s = began_s + ask.seconds

        def call(chance: random.Random) -> None:
            sent_s = clock()

            def answered(_result: Any, error: int) -> None:
                nonlocal callers
                now_s = clock()
                if error == FAIL_REASON.SUCCESS:
                    took_s.append(now_s - sent_s)
                    if now_s < until_s:
                        call(chance)
                        return
                    callers -= 1
                    if not callers:
                        ended.set()

            self._dict.set(KEY % chance.randrange(ask.keys), value, callback=answered)

        for number in range(ask.in_flight):
            call(random.Random(number))
        ended.wait(ask.seconds + ask.grace_s)
        took = sorted(took_s)
        return Answer(
            done=len(took),
            failed=callers,
            # Those that are answered after the time are in both.
            seconds=(clock() - began_s) if ended.is_set() else ask.seconds,
            p50_ms=statistics.median(took) * 1000 if took else 0.0,
            p99_ms=took[int(len(took) * 0.99)] * 1000 if took else 0.0,
        )


def _flush_each_record() -> None:
    """Have the journal on disk before anybody hears of it. The library has no option for that."""
    add = FileJournal.add

    def add_and_flush(self: Any, *arguments: Any) -> None:
        add(self, *arguments)
        self.flush()

    FileJournal.add = add_and_flush


def _say(answer: Answer) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


def main() -> int:
    """Run one member to the end of its standard input."""
    node = StockNode(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Setup))
    _say(Answer())
    decode = msgspec.json.Decoder(Ask).decode
    for line in sys.stdin.buffer:
        _say(node.handle(decode(line)))
    # Its thread would go on.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
