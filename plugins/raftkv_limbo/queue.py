"""The queue while one command changes it: what enters, CONFIRM and ROLLBACK.

Rules of this file
1. A verdict is complete in the entry that gives it: no later command finishes it. What the queue
   may hold is limited, so the work is, too.
2. CONFIRM goes from the head towards the last: every sync entry up to the position that has its
   quorum, and every async one that is then at the head. So the head is always a sync entry.
3. ROLLBACK goes from the last down to a position: whatever waits above a lost one was submitted in
   its sight, and is lost, too. Entries in between that did not wait (independent ones) stay.
4. Pending writes stand in `pending` alone; `rows` knows what is confirmed. So a ROLLBACK has
   nothing to put back, and a reader of `rows` cannot see what may vanish.

The positions between `head` and `last` are the *span*. Some in it are settled already (independent
or rolled back), and their entries stay until the head has passed them: `entries` has no holes.

`Draft` holds the row `State` of one command in parts, for it is changed by every transaction and
written once.
"""

from __future__ import annotations

from raftkv.plugin import Context

from .commands import (
    FORMAT_CONFIRMATIONS,
    FRESH,
    NAME_CHARS_MAX,
    REASON_CHARS_MAX,
    ROWS_LIMIT,
    Cause,
    Entry,
    Row,
    Space,
    State,
    Write,
)
from .quorum import reached
from .records import add_confirmations, add_runs, forget
from .refusals import DropPending, UnknownSpace
from .views import pending_from, state_of

__all__ = ["Draft", "confirm_reached", "require_kept", "roll_back_from"]


class Draft:
    """The state during one command. Nothing of it is written before `save`, its rows at once."""

    __slots__ = (
        "_ctx",
        "_grown",
        "_rows",
        "_rows_get",
        "_settled",
        "_spaces",
        "_state",
        "confirm_lag_ms",
        "confirmed",
        "confirmed_index",
        "confirms",
        "forgotten",
        "head",
        "held_bytes",
        "incarnation",
        "last",
        "owner",
        "pending",
        "pending_bytes",
        "pending_writes",
        "rollbacks",
        "spaces",
        "term",
    )

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._rows = ctx.table("rows")
        self._rows_get = self._rows.get
        state: State = ctx.table("meta").get("state", FRESH)
        self._state = state
        self.owner = state.owner
        self.incarnation = state.incarnation
        self.term = state.term
        self.last = state.last
        self.confirmed = state.confirmed
        self.head = state.head
        self.pending = state.pending
        self.pending_bytes = state.pending_bytes
        self.pending_writes = state.pending_writes
        self.held_bytes = state.held_bytes
        self.confirms = state.confirms
        self.rollbacks = state.rollbacks
        self.confirm_lag_ms = state.confirm_lag_ms
        self.confirmed_index = state.confirmed_index
        self.forgotten = state.forgotten
        #: Those that were looked up, as they were before this command.
        self.spaces: dict[str, Space] = {}
        self._grown: dict[str, int] = {}
        # What this command has confirmed so far.
        self._settled: list[int] = []

    def save(self, cause: Cause = "submit", by: str = "", upto: int = 0) -> None:
        """Write the state, how many keys the spaces have now, and what was confirmed and why."""
        if self._settled and self._ctx.version >= FORMAT_CONFIRMATIONS:
            settled = sorted(self._settled)
            add_confirmations(self._ctx, settled, term=self.term, cause=cause, by=by, upto=upto)
        for name, more in self._grown.items():
            if more:
                old = self.spaces[name]
                self._ctx.table("spaces").put(name, Space(old.id, old.sync, old.keys + more))
        state = State(
            self.owner,
            self.incarnation,
            self.term,
            self.last,
            self.confirmed,
            self.head,
            self.pending,
            self.pending_bytes,
            self.pending_writes,
            self.held_bytes,
            self.confirms,
            self.rollbacks,
            self.confirm_lag_ms,
            self.confirmed_index,
            self.forgotten,
            self._state.next_space,
        )
        if state != self._state:
            self._ctx.table("meta").put("state", state)

    def space(self, name: str) -> Space:
        """Raises UnknownSpace."""
        space = self.spaces.get(name)
        if space is None:
            space = self._ctx.table("spaces").get(name)
            if space is None:
                raise UnknownSpace(name[:NAME_CHARS_MAX])
            require_kept(self._ctx, name)
            self.spaces[name] = space
        return space

    def settle(self, position: int, entry: Entry, space: str = "") -> None:
        """A transaction is confirmed; `space` is what it drops."""
        if entry.writes:
            self.fold(position, entry.writes)
        elif space:
            self._drop(space)
        self._settled.append(position)
        self.confirms += 1
        self.confirmed_index = self._ctx.index

    def _drop(self, name: str) -> None:
        """Take the space away. Nothing has written to it since its drop got its position."""
        spaces = self._ctx.table("spaces")
        space: Space = spaces[name]
        spaces.delete(name)
        self.spaces.pop(name, None)
        if space.keys:
            self._ctx.table("dropped").put(space.id, None)

    def fold(self, position: int, writes: tuple[Write, ...]) -> None:
        """Make the writes of a transaction confirmed ones."""
        rows, get = self._rows, self._rows_get
        for write in writes:
            name, value = write.space, write.value
            space = self.spaces.get(name) or self.space(name)
            key = (space.id, write.key)
            old = get(key)
            if value is None:
                if old is not None:
                    rows.delete(key)
                    self._grown[name] = self._grown.get(name, 0) - 1
            elif old is None:
                rows.put(key, Row(value, position))
                self._grown[name] = self._grown.get(name, 0) + 1
            else:
                rows.replace(key, old, Row(value, position))

    def wait(self, position: int, entry: Entry) -> None:
        """A transaction becomes the last one that is pending."""
        pending = self._ctx.table("pending")
        for write in entry.writes:
            pending.put((self.space(write.space).id, write.key, position), write.value)
        if not self.head:
            self.head = position
        self.pending += 1
        self.pending_bytes += entry.bytes
        self.pending_writes += len(entry.writes)

    def confirm(self, upto: int) -> None:
        """CONFIRM: all up to `upto` that is pending, and what waits behind that for order only."""
        ctx = self._ctx
        head, next_head = self.head, 0
        for position, entry in pending_from(ctx, head):
            if entry.sync and position > upto:
                next_head = position
                break
            self.settle(position, entry, self._leave(position, entry))
            self.confirmed = position
            if entry.sync:
                self.confirm_lag_ms = max(0, ctx.now - entry.submitted_ms)
        self._move_head(next_head)

    def roll_back(self, first: int, reason: str, node: str) -> tuple[int, ...]:
        """ROLLBACK: all from `first` on that is pending; the rising positions."""
        ctx = self._ctx
        doomed = list(pending_from(ctx, first))
        if not doomed:
            return ()
        for position, entry in reversed(doomed):
            self._leave(position, entry)
        positions = [position for position, _ in doomed]
        add_runs(ctx, positions, term=self.term, reason=reason[:REASON_CHARS_MAX], node=node)
        self.rollbacks += len(positions)
        if positions[0] == self.head:
            self._move_head(0)
        self.forgotten = forget(ctx, self.forgotten, self.head)
        return tuple(positions)

    def _leave(self, position: int, entry: Entry) -> str:
        """An entry is pending no more. The space that it was to drop, if any."""
        space = ""
        if not entry.writes:
            drops = self._ctx.table("drops")
            space = drops[position]
            drops.delete(position)
        pending = self._ctx.table("pending")
        for write in entry.writes:
            pending.delete((self.space(write.space).id, write.key, position))
        self.pending -= 1
        self.pending_bytes -= entry.bytes
        self.pending_writes -= len(entry.writes)
        return space

    def _move_head(self, head: int) -> None:
        if head:
            entries = self._ctx.table("entries")
            self.held_bytes -= sum(entries[passed].bytes for passed in range(self.head, head))
        else:
            self.held_bytes = 0
        self.head = head

    def trim(self, kept: int) -> None:
        """Delete old entries: the newest `kept` stay, and all from the head on."""
        entries = self._ctx.table("entries")
        count = len(entries)
        floor = self.last + 1 - kept
        if self.head and self.head < floor:
            floor = self.head
        surplus = floor - (self.last + 1 - count)
        if surplus > 0:
            entries.delete_first(min(surplus, ROWS_LIMIT))


def require_kept(ctx: Context, name: str) -> None:
    """Raises DropPending if the space is being dropped."""
    drops = ctx.table("drops")
    if len(drops):
        for position, dropped in drops.scan():
            if dropped == name:
                raise DropPending(name, position)


def confirm_reached(ctx: Context, cause: Cause, by: str, upto: int = 0) -> None:
    """CONFIRM what has its quorum by now, if anything has that had not.

    `cause`, `by` and `upto` are what this entry has changed, see `Confirmation`.
    """
    head = state_of(ctx).head
    if not head:
        return
    position = reached(ctx)
    if position >= head:
        draft = Draft(ctx)
        draft.confirm(position)
        draft.save(cause, by, upto)


def roll_back_from(ctx: Context, first: int, reason: str, node: str) -> tuple[int, ...]:
    """ROLLBACK from a position on; the rising positions that were pending."""
    draft = Draft(ctx)
    positions = draft.roll_back(first, reason, node)
    draft.save()
    return positions
