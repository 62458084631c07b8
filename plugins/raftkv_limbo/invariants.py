"""What must hold in the tables of the limbo after every entry of the log, as code.

The conformance kit, the simulation and the tests run this on every replica. It walks whole tables,
so it is no work for a production node. What holds between two entries (a verdict never changes, a
position is never used again) is for those who see both: the tests of the limbo's model and the
simulation.
"""

from __future__ import annotations

from raftkv.plugin import View

from .commands import Entry, Rollback, State
from .quorum import is_fast, reached
from .views import oldest_entry, state_of

__all__ = ["violations"]


def violations(view: View) -> list[str]:
    """Every violated invariant, in words; empty when all is well."""
    state = state_of(view)
    entries: dict[int, Entry] = dict(view.table("entries").scan())
    runs: list[tuple[int, Rollback]] = list(view.table("rollbacks").scan())
    dead = {position for first, run in runs for position in range(first, run.last + 1)}
    waiting = {
        position: entry
        for position, entry in entries.items()
        if state.head and position >= state.head
        if position not in dead and not entry.independent
    }
    return [
        *_of_positions(view, state, entries),
        *_of_runs(state, runs, entries),
        *_of_confirmations(view, state, dead, waiting),
        *_of_drops(view, waiting),
        *_of_queue(view, state, entries, waiting),
        *_of_quorum(view, state, waiting),
        *_of_rows(view, state, dead, waiting),
        *_of_nodes(view, state),
    ]


def _of_positions(view: View, state: State, entries: dict[int, Entry]) -> list[str]:
    found = []
    if list(entries) != list(range(oldest_entry(view), state.last + 1)):
        found.append(f"entries {list(entries)[:1]} to {list(entries)[-1:]}, last is {state.last}")
    if not 0 <= state.confirmed <= state.last or not 0 <= state.forgotten <= state.last:
        found.append(f"confirmed {state.confirmed}, forgotten {state.forgotten} of {state.last}")
    if state.head:
        entry = entries.get(state.head)
        if entry is None or not entry.sync:
            found.append(f"the head {state.head} is no sync entry that is kept")
        if state.confirmed >= state.head:
            found.append(f"{state.confirmed} is confirmed in order before the head {state.head}")
        if not state.owner:
            found.append(f"position {state.head} is pending, and nobody owns the queue")
    for position, entry in entries.items():
        if entry.sync and entry.independent:
            found.append(f"position {position} is sync and independent")
    if state.confirms + state.rollbacks + state.pending != state.last:
        found.append(
            f"{state.confirms} confirmed, {state.rollbacks} rolled back and {state.pending} "
            f"pending are not {state.last}"
        )
    return found


def _of_runs(
    state: State, runs: list[tuple[int, Rollback]], entries: dict[int, Entry]
) -> list[str]:
    """Disjoint, in order, known; never over what is confirmed or cannot be rolled back."""
    found = []
    before = state.forgotten
    for first, run in runs:
        if not before < first <= run.last <= state.last or run.head > first:
            found.append(f"a rollback of {first} to {run.last} from {run.head}, behind {before}")
        before = run.last
        if first <= state.confirmed <= run.last or first <= state.head <= run.last:
            found.append(f"{first} to {run.last} are rolled back and confirmed, or the head")
        for position in range(first, run.last + 1):
            if position in entries and entries[position].independent:
                found.append(f"position {position} is independent and rolled back")
    return found


def _of_confirmations(
    view: View, state: State, dead: set[int], waiting: dict[int, Entry]
) -> list[str]:
    """Disjoint, in order, and of confirmed positions only."""
    found, before = [], 0
    for first, run in view.table("confirmations").scan():
        if not before < first <= run.last <= state.last:
            found.append(f"a confirmation of {first} to {run.last}, behind {before}")
        if any(position in dead or position in waiting for position in range(first, run.last + 1)):
            found.append(f"{first} to {run.last} have a confirmation, and some have not")
        if run.index > view.index:
            found.append(f"{first} is confirmed at index {run.index}, which is not applied")
        before = run.last
    return found


def _of_drops(view: View, waiting: dict[int, Entry]) -> list[str]:
    """The pending entries without writes drop one synchronous space each, and it is there."""
    drops = dict(view.table("drops").scan())
    found = []
    if list(drops) != [position for position, entry in waiting.items() if not entry.writes]:
        found.append(f"the drops {drops} are not the entries without writes that are pending")
    spaces = view.table("spaces")
    for position, name in drops.items():
        if name not in spaces or not spaces[name].sync:
            found.append(f"position {position} drops {name}, which is no synchronous space")
    if len(set(drops.values())) != len(drops):
        found.append(f"a space is dropped twice: {drops}")
    return found


def _of_queue(
    view: View, state: State, entries: dict[int, Entry], waiting: dict[int, Entry]
) -> list[str]:
    """The counters and the table `pending` are those of the entries that wait."""
    found = []
    spaces = dict(view.table("spaces").scan())
    expected = {}
    for position, entry in waiting.items():
        for write in entry.writes:
            if write.space in spaces:
                expected[spaces[write.space].id, write.key, position] = write.value
            else:
                found.append(f"position {position} is pending and writes to no known space")
    if dict(view.table("pending").scan()) != expected:
        found.append("the pending writes are not those of the entries that are pending")
    counters = (state.pending, state.pending_bytes, state.pending_writes, state.held_bytes)
    sizes = [entry.bytes for entry in waiting.values()]
    held = [e.bytes for position, e in entries.items() if state.head and position >= state.head]
    counted = (len(waiting), sum(sizes), len(expected), sum(held))
    if counters != counted:
        found.append(f"pending, bytes, writes, held bytes are {counted}, the state has {counters}")
    if waiting and min(waiting) != state.head:
        found.append(f"the head is {state.head}, the oldest pending one {min(waiting)}")
    return found


def _of_quorum(view: View, state: State, waiting: dict[int, Entry]) -> list[str]:
    """What has its quorum is not pending."""
    found = []
    if waiting and is_fast(view):
        found.append(f"{len(waiting)} entries are pending, and Raft's commit is their quorum")
    if state.head and reached(view) >= state.head:
        found.append(f"position {state.head} has its quorum and is pending")
    return found


def _of_rows(view: View, state: State, dead: set[int], waiting: dict[int, Entry]) -> list[str]:
    """Confirmed rows are of confirmed transactions, in spaces that are or were there."""
    found = []
    known = {space.id for _, space in view.table("spaces").scan()}
    dropped = {id for id, _ in view.table("dropped").scan()}
    counted: dict[int, int] = {}
    for (id, _), row in view.table("rows").scan():
        counted[id] = counted.get(id, 0) + 1
        if not 1 <= row.position <= state.last or row.position in dead or row.position in waiting:
            found.append(f"a row is of position {row.position}, which is not confirmed")
    found += [f"rows of space {id}, which never was" for id in counted.keys() - known - dropped]
    found += [f"space {id} is dropped and there" for id in known & dropped]
    found += [f"space {id} is dropped and has no rows" for id in dropped - counted.keys()]
    for name, space in view.table("spaces").scan():
        if space.keys != counted.get(space.id, 0):
            found.append(f"{name} counts {space.keys} keys, and has {counted.get(space.id, 0)}")
        if space.id >= state.next_space:
            found.append(f"{name} has the id {space.id}, the next one is {state.next_space}")
    return found


def _of_nodes(view: View, state: State) -> list[str]:
    found = []
    nodes = dict(view.table("nodes").scan())
    for name, node in nodes.items():
        member = view.members.get(name)
        if member is None or member.incarnation != node.incarnation:
            found.append(f"{name} is heard in a life that has ended")
        if node.acked > state.last:
            found.append(f"{name} acknowledged {node.acked} of {state.last}")
    for (validator, name), upto in view.table("approvals").scan():
        if name not in nodes or validator not in nodes[name].validators or upto > state.last:
            found.append(f"{name} approves by a validator that it has not declared, or too much")
    return found
