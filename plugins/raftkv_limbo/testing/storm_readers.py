"""The readers of a storm of the limbo: what they see, in each of the three views, on any node.

Confirmed reads of one process never go back. A linearizable read sees at least what was confirmed
when it began, anywhere. A pending read sees what its node has in the queue, and nothing else.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

from raftkv.testing.storm_worlds import EXCUSED
from raftkv_limbo.refusals import UnknownSpace

from .storm_answers import check_version, check_waiting_row
from .storm_ledger import Key, seen_of
from .storm_plan import KEYS, SPACES

if TYPE_CHECKING:
    from .storm import Seat, Storm

__all__ = ["Readers"]

READERS = 2
PAUSE_S = 0.15
READ_S = 2.0


class Readers:
    """All readers of one run."""

    def __init__(self, storm: Storm) -> None:
        self._storm = storm
        self._marks = storm.marks
        self.running = False

    def start(self) -> None:
        self.running = True
        for number in range(READERS):
            rng = random.Random(f"{self._storm.plan.seed}/reader{number}")
            self._storm.world.spawn(self._live(rng), f"reader{number}")

    def stop(self) -> None:
        self.running = False

    async def _live(self, rng: random.Random) -> None:
        storm = self._storm
        while True:
            await asyncio.sleep(rng.expovariate(1 / PAUSE_S))
            if not self.running:
                return
            seat = storm.any_seat(rng)
            if seat is None:
                continue
            space = rng.choice(list({**SPACES, **storm.log.ledger.spaces}))
            view = rng.choice(("confirmed", "pending", "linearizable"))
            key = None if rng.random() < 0.4 else rng.choice(KEYS)
            try:
                await storm.world.call(seat.name, self.read(seat, space, key, view))
            except EXCUSED as error:
                self._marks[f"read raised {type(error).__name__}"] += 1

    async def read(self, seat: Seat, space: str, key: bytes | None, view: Any) -> None:
        """On the node: one key, or all of the space, and what is wrong with what was seen."""
        storm, ledger = self._storm, self._storm.log.ledger
        keys = KEYS if key is None else (key,)
        since = {name: len(ledger.history((space, name))) - 1 for name in keys}
        rows: dict[bytes, Any] = {}
        try:
            if key is None:
                found = await seat.api.range(space, view=view, timeout_s=READ_S)
                rows = dict(found)
            else:
                row = await seat.api.get(space, key, view=view, timeout_s=READ_S)
                rows = {} if row is None else {key: row}
        except UnknownSpace:
            self._marks["read of no space"] += 1
            return
        self._marks[f"read {view}"] += 1
        for name in keys:
            row = rows.get(name)
            read = None if row is None else (row.value, row.position)
            if view == "pending":
                self._judge_pending(seat, (space, name), read)
                continue
            floor = seat.floors.get((space, name), 0)
            least = max(floor, since[name]) if view == "linearizable" else floor
            version, wrong = check_version((space, name), read, least, ledger)
            seat.floors[(space, name)] = version
            check = f"{view} reads" if view == "linearizable" else "confirmed reads"
            storm.violated(check, [f"{seat.name}: {each}" for each in wrong])

    def _judge_pending(self, seat: Seat, key: Key, read: tuple[bytes, int] | None) -> None:
        storm = self._storm
        seen = seen_of(seat.host.view())
        found = check_waiting_row(key, read, seen, storm.log.ledger)
        storm.violated("pending reads", [f"{seat.name}: {each}" for each in found])
        if read is not None and seen.fate(read[1]) == "pending":
            self._marks["read what was pending"] += 1
