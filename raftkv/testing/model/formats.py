"""The raised core format: when it may be proposed, and what decides in which format a node works.

Three cores and a replicant, each with software that knows format 1 only or formats 1 and 2. Steps:
a node is upgraded, or put back to the former software; the replicant goes down, and comes back; the
leader reads a handshake; it appends the entry that raises the format; a command is appended; a node
applies the next entry.

Checked: all nodes decide an entry in one format; no node is put out of service by an entry that it
cannot read, unless it was put back to the former software after the leader had read its handshake,
or has come back with it once the entry was in the log.

The rule: what is active is a function of the log, not of the software; the leader appends the entry
only after the last handshake of every core, and of the replicant while it is up, showed format 2.
A node that meets an entry of a newer format stops with an error (it is upgraded again); it never
passes over one. A replicant without the active format is refused when it comes back.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, Final, NamedTuple

__all__ = ["BUGS", "Formats", "FormatsState"]

BUGS: Final = {
    "active-by-software": "a node decides in the newest format that its software knows",
    "raise-by-majority": "the format is raised once a majority of the cores knows it",
    "skip-unknown": "a node passes over an entry that it cannot read",
    "replicant-not-asked": "the format is raised although a replicant that is up does not know it",
}

CORES: Final = 3
NODES: Final = CORES + 1
REPLICANT: Final = CORES
ENTRIES_MAX: Final = 3
DOWNGRADES_MAX: Final = 1

COMMAND, RAISE = "command", "raise"


class FormatsState(NamedTuple):
    """`shown`: what each node's last handshake said; `log`: committed entries.

    `applied`: how many each node has applied; `active`: its format; `decided`: in which format each
    entry was decided, 0 as long as none has applied it; `put_back`: nodes that were downgraded, or
    came back too late; `down`: the replicant does not run.
    """

    software: tuple[int, ...] = (1,) * NODES
    shown: tuple[int, ...] = (1,) * NODES
    log: tuple[str, ...] = ()
    applied: tuple[int, ...] = (0,) * NODES
    active: tuple[int, ...] = (1,) * NODES
    decided: tuple[int, ...] = (0,) * ENTRIES_MAX
    put_back: tuple[bool, ...] = (False,) * NODES
    halted: tuple[bool, ...] = (False,) * NODES
    conflict: bool = False
    down: bool = False


class Formats:
    """See the module's text. `bug` is one of BUGS."""

    def __init__(self, bug: str = "") -> None:
        assert not bug or bug in BUGS, bug
        self.bug = bug

    def first(self) -> FormatsState:
        return FormatsState()

    def steps(self, state: FormatsState) -> Iterator[tuple[str, FormatsState]]:
        for node in range(NODES):
            if state.software[node] == 1:
                after = _at(state, "software", node, 2)
                yield f"{node + 1} is upgraded", _at(after, "halted", node, False)
            elif state.active[node] == 1 and sum(state.put_back) < DOWNGRADES_MAX:
                after = _at(state, "software", node, 1)
                yield f"{node + 1} is put back", _at(after, "put_back", node, True)
            if node == REPLICANT and state.down:
                continue
            if state.shown[node] != state.software[node]:
                yield (
                    f"the leader reads the handshake of {node + 1}",
                    _at(state, "shown", node, state.software[node]),
                )
            if state.applied[node] < len(state.log) and not state.halted[node]:
                yield f"{node + 1} applies {state.applied[node] + 1}", self._apply(state, node)
        yield from self._replicant(state)
        if len(state.log) < ENTRIES_MAX:
            yield "a command is appended", state._replace(log=(*state.log, COMMAND))
            if self._may_raise(state) and RAISE not in state.log:
                yield "the format is raised", state._replace(log=(*state.log, RAISE))

    def _replicant(self, state: FormatsState) -> Iterator[tuple[str, FormatsState]]:
        """It goes down, and comes back with a new handshake and what it had applied."""
        software = state.software[REPLICANT]
        if not state.down:
            if not state.halted[REPLICANT]:
                yield "the replicant goes down", state._replace(down=True)
        elif software == 2 or max(state.active[:CORES]) == 1:
            back = _at(state._replace(down=False), "shown", REPLICANT, software)
            if software == 1 and RAISE in state.log:
                back = _at(back, "put_back", REPLICANT, True)
            yield "the replicant comes back", back

    def broken(self, state: FormatsState) -> str:
        if state.conflict:
            return "one format for each entry: two nodes decided an entry in two formats"
        for node in range(NODES):
            if state.halted[node] and not state.put_back[node]:
                return f"no node is left behind: {node + 1} was not ready for the raised format"
        return ""

    def canonical(self, state: FormatsState) -> Hashable:
        """The cores are alike: sorted by what each of them is."""
        nodes = list(
            zip(
                state.software,
                state.shown,
                state.applied,
                state.active,
                state.put_back,
                state.halted,
                strict=True,
            )
        )
        cores = tuple(sorted(nodes[:CORES]))
        return (cores, nodes[REPLICANT], state.down, state.log, state.decided, state.conflict)

    def _may_raise(self, state: FormatsState) -> bool:
        ready = sum(shown >= 2 for shown in state.shown[:CORES])
        if self.bug == "raise-by-majority":
            return 2 * ready > CORES
        heard = state.down or state.shown[REPLICANT] >= 2 or self.bug == "replicant-not-asked"
        return ready == CORES and heard

    def _apply(self, state: FormatsState, node: int) -> FormatsState:
        index = state.applied[node]
        entry = state.log[index]
        if entry == RAISE and state.software[node] < 2 and self.bug != "skip-unknown":
            return _at(state, "halted", node, True)
        after = _at(state, "applied", node, index + 1)
        if entry == RAISE:
            known = state.software[node] >= 2
            return _at(after, "active", node, 2) if known else after
        used = state.active[node]
        if self.bug == "active-by-software":
            used = state.software[node]
        if state.decided[index] not in (0, used):
            return after._replace(conflict=True)
        return _at(after, "decided", index, used)


def _at(state: FormatsState, field: str, position: int, value: int | bool) -> FormatsState:
    values = list(getattr(state, field))
    values[position] = value
    changed: dict[str, Any] = {field: tuple(values)}
    return state._replace(**changed)
