"""Free space on the disk of one node: looked at, kept in reserve, and what follows when it ends.

A node whose disk is full goes on as long as it safely can, because all nodes of a cluster often
have disks of one size and would stop at the same moment. In the order in which it happens:

1. *low*: less is free than the next snapshot and the reserve are expected to take. The alarm DISK
   is raised. It ends by itself with a quarter more than that, so that it does not flicker. How
   large the next snapshot is shows only when it is written: after deletions it may fit. So it is
   tried, with pauses, as far as the reserve allows; none is begun where no more than that is free.
2. *failed*: a snapshot found no room all the same (a quota of the file system, another program).
   What was written of it is removed. It is tried again, later each time; the same alarm. One of
   another node is received only if it fits beside the reserve; the alarm lasts until it would.
3. *at its end*: half of the reserve is gone, or the log that no snapshot covers has reached its
   limit. A leader hands leadership over; while it leads it takes only commands that free room.
4. *full*: a quarter of the reserve is left, or the log is a quarter over its limit. The node takes
   no more entries. As a follower it goes on answering its leader, so that no election begins.

Each node decides all of it from what it sees itself, and no entry of the log is about it.
Between two looks what the log has grown by counts as gone. Where free space cannot be seen, only a
failed write tells.
"""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING, Any, Final

from .membership import name_of

if TYPE_CHECKING:
    import asyncio

    from raftkv.runtime import Space, Timer

    from .engine import Engine
    from .snapshotting import Snapshotting

__all__ = ["DISK", "FreeSpace", "is_no_room"]

log = logging.getLogger("raftkv.raft")

#: The name of the alarm.
DISK: Final = "DISK"

# Looking is one system call. A disk that takes 100 MB/s fills the default reserve in half of it.
LOOK_S: Final = 2.0
# On a small volume the reserve is no more than such a part of it.
RESERVE_PART: Final = 10
# Between two attempts of one node to hand leadership over: the next leader's disk may be as full,
# and a cluster whose disks are all full must not change its leader all the time. Doubled each time.
HAND_OVER_MIN_S: Final = 30.0
HAND_OVER_MAX_S: Final = 600.0


def is_no_room(error: BaseException) -> bool:
    """Whether this is the error of a full disk or of a used-up quota."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


class FreeSpace:
    """What one node knows of the free space on its disk."""

    def __init__(self, engine: Engine, snapshotting: Snapshotting) -> None:
        self._engine = engine
        self._snapshotting = snapshotting
        self.low = False
        self.failed = False
        #: Bytes free for the log at the last look; None before it, or if they cannot be seen.
        self.free_bytes: int | None = None
        #: Bytes that a snapshot leaves free: `limits.disk_reserve_bytes`, less on a small volume.
        self.reserve_bytes = engine.limits.disk_reserve_bytes
        #: Bytes that a snapshot may take now; None before the first look, or if unseen.
        self.room_bytes: int | None = None
        # Index and size of another node's snapshot that found no room here.
        self._refused = (0, 0)
        self._written_bytes = 0
        self._timer: Timer | None = None
        self._hand_over_from = 0.0
        self._hand_over_s = HAND_OVER_MIN_S

    def start(self) -> None:
        """Look now and then, until `stop`."""
        self._timer = self._engine.runtime.call_later(LOOK_S, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    @property
    def alarm(self) -> bool:
        """Whether the alarm DISK of this node is on."""
        return self.low or self.failed

    @property
    def none_left(self) -> bool:
        """Whether no more than the reserve is free: not even a small snapshot can be written."""
        return self.room_bytes is not None and self.room_bytes <= 0

    def check(self, written_bytes: int) -> None:
        """Raise OSError (ENOSPC) if a snapshot has taken what the reserve leaves for it."""
        if self.low and self.room_bytes is not None and written_bytes > self.room_bytes:
            raise OSError(
                errno.ENOSPC,
                f"the snapshot takes more than the {self.room_bytes} bytes beside the reserve",
            )

    def require_room(self, size_bytes: int) -> None:
        """In the bulk thread: raise OSError (ENOSPC) if these do not fit beside the reserve."""
        try:
            space = self._snapshotting.store.space()
        except OSError:
            return  # it cannot be seen: a failed write tells
        room_bytes = space.free_bytes - self._reserve_on(space)
        if room_bytes < size_bytes:
            raise OSError(
                errno.ENOSPC,
                f"{size_bytes} bytes of a snapshot are to come, and {room_bytes} are free beside "
                f"the reserve",
            )

    def refused(self, index: int, size_bytes: int) -> None:
        """Another node's snapshot found no room: this node still needs it, unless it gets on."""
        self._refused = (index, size_bytes)

    @property
    def expected_bytes(self) -> int:
        """What the next snapshot takes, written here or received."""
        index, size_bytes = self._refused
        received = size_bytes if index > self._engine.commit else 0
        return max(received, self._snapshotting.expected_bytes)

    def _reserve_on(self, space: Space) -> int:
        return min(self._engine.limits.disk_reserve_bytes, space.total_bytes // RESERVE_PART)

    @property
    def at_end(self) -> bool:
        """Whether this node should take nothing but what frees room."""
        return self._used_up(2, 100)

    @property
    def full(self) -> bool:
        """Whether this node must take nothing at all."""
        return self._used_up(4, 125)

    def _used_up(self, part: int, percent: int) -> bool:
        left = self.left_bytes
        if left is not None and left < self.reserve_bytes // part:
            return True
        snapshotting = self._snapshotting
        return (
            self.alarm
            and snapshotting.held_up
            and snapshotting.log_bytes * 100 >= snapshotting.log_kept_bytes_max * percent
        )

    @property
    def left_bytes(self) -> int | None:
        """What is left for the log, as far as this node can know."""
        if self.free_bytes is None:
            return None
        return self.free_bytes - (self._engine.wal.written_bytes - self._written_bytes)

    def no_room(self, error: OSError) -> None:
        """A snapshot could not be written for lack of room."""
        self._change(low=self.low, failed=True, why=str(error))

    def found(self) -> None:
        """A snapshot is in place."""
        self._change(low=self.low, failed=False, why="a snapshot was written")

    # -- looking

    def _look(self) -> None:
        self._timer = None
        if not self._engine.stopped:
            self._engine.runtime.offload_bulk(self._measure).add_done_callback(self._looked)

    def _measure(self) -> tuple[Space, Space, int] | None:
        """In the bulk thread: the room for snapshots, for the log; bytes of log written by then."""
        engine = self._engine
        written_bytes = engine.wal.written_bytes
        try:
            return self._snapshotting.store.space(), engine.wal.space(), written_bytes
        except OSError:
            return None

    def _looked(self, future: asyncio.Future[Any]) -> None:
        engine = self._engine
        if engine.stopped or future.cancelled():
            return
        error = future.exception()
        if error is not None:
            engine.failed(error)
            return
        waiting = self._snapshotting.held_up
        if future.result() is not None:
            self._judge(*future.result())
        if waiting:
            # Else the next one would begin with the next entry, and there may be none for long.
            self._snapshotting.tick()
        if self.at_end:
            self._leave()
        else:
            self._hand_over_s = HAND_OVER_MIN_S
        self._timer = engine.runtime.call_later(LOOK_S, self._look)

    def _judge(self, for_snapshots: Space, for_log: Space, written_bytes: int) -> None:
        snapshotting = self._snapshotting
        self.free_bytes, self._written_bytes = for_log.free_bytes, written_bytes
        self.reserve_bytes = reserve_bytes = self._reserve_on(for_log)
        # One that is being written takes its room already: then the last look counts.
        if not snapshotting.writing:
            self.room_bytes = for_snapshots.free_bytes - reserve_bytes
        # What a quarter more than suffices is to be above what began it: hysteresis.
        needed = [(for_log.free_bytes, reserve_bytes)]
        if not snapshotting.writing:
            needed.append((for_snapshots.free_bytes, self.expected_bytes + reserve_bytes))
        quarters = 5 if self.low else 4
        low = any(free * 4 < least * quarters for free, least in needed)
        failed = self.failed and snapshotting.wants_room
        free = min(free for free, _ in needed)
        self._change(low=low, failed=failed, why=f"{free} bytes are free")

    def _change(self, *, low: bool, failed: bool, why: str) -> None:
        before = self.alarm
        self.low, self.failed = low, failed
        if self.alarm and not before:
            self._raised(why)
        elif before and not self.alarm:
            self._ended(why)

    def _raised(self, why: str) -> None:
        log.error(
            "%s: alarm %s: no room for a snapshot of about %d bytes and a reserve of %d (%s). The "
            "log grows until there is: free disk space, or delete keys and compact",
            name_of(self._engine.me),
            DISK,
            self.expected_bytes,
            self.reserve_bytes,
            why,
        )

    def _ended(self, why: str) -> None:
        log.warning("%s: the alarm %s has ended: %s", name_of(self._engine.me), DISK, why)

    def _leave(self) -> None:
        """A leader at its end: another node may have more room."""
        engine = self._engine
        now = engine.runtime.monotonic()
        if engine.leading is None or now < self._hand_over_from:
            return
        self._hand_over_from = now + self._hand_over_s
        self._hand_over_s = min(HAND_OVER_MAX_S, 2 * self._hand_over_s)
        if engine.hand_over():
            log.warning("%s hands leadership over: its disk is full", name_of(engine.me))
