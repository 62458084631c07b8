"""What is known of every id of a storm of calls, for ever: kept from the steps of its log.

The log itself forgets: records are trimmed, arguments of aborted calls are dropped. The `Ledger`
does not, so that a run, an answer or a state can be compared with what was decided long ago. It
also knows what must be excused in the end: what an operator made some node pass over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from raftkv.plugin import MemberChange
from raftkv_cluster_call.commands import (
    Advance,
    Commit,
    Cursor,
    Force,
    Join,
    Record,
    Reset,
    Skip,
    Sync,
)

from .storm_check import Step, follows

__all__ = ["Entry", "Ledger", "check_effect"]


@dataclass(slots=True)
class Entry:
    """One id, for ever."""

    id: int
    function: str
    version: int
    args: bytes
    initiator: str
    incarnation: int
    kind: str
    state: str
    cause: str = ""
    # Who took part when it was committed.
    nodes: tuple[str, ...] = ()


class Ledger:
    """What the steps did, in order."""

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.cursors: Mapping[str, Cursor] = {}
        # (id, node) of commands that moved a cursor over an id together with an effect: how often.
        self.effects: Counter[tuple[int, str]] = Counter()
        # Ids that some node may never have executed, although its cursor has passed them.
        self.excused: set[int] = set()
        # Nodes whose cursor was taken away once: they have a second one, and may be as of less.
        self.parted: set[str] = set()
        # Those of them that were removed from the cluster: they are other nodes of the same name.
        self.replaced: set[str] = set()
        # (node, id) of aborted ids that this node may have run.
        self.lost: set[tuple[str, int]] = set()
        # (node, as_of) of copies that nodes have loaded: told by their states.
        self.loaded: set[tuple[str, int]] = set()
        # The last id at the last reset: of the states up to it nothing is known.
        self.reset_at = 0

    @property
    def last(self) -> int:
        """The highest id that was ever taken."""
        return len(self.entries)

    def note(self, step: Step) -> None:
        """Keep what the step did."""
        if step.refusal:
            return
        before, after, command = step.before, step.after, step.command
        self.cursors = after.cursors
        self.lost |= after.lost.keys()
        for id_, record in after.records.items():
            if before.records.get(id_) != record:
                self._note_record(step, id_, record)
        if isinstance(command, Skip):
            self.excused.add(command.id)
        node = "" if step.origin is None else step.origin[0]
        alone = isinstance(command, Join) and follows(after.cursors.get(node))
        if isinstance(command, Reset) or (
            alone and before.cursors.get(node) != after.cursors[node]
        ):
            # Or nobody was left to copy from.
            self.reset_at = max(self.reset_at, after.last)
        self.parted |= before.cursors.keys() - after.cursors.keys()
        if isinstance(command, MemberChange) and command.new is None and command.old is not None:
            self.replaced.add(command.old.name)
            # What it may have run ends with it: the log keeps no lost effect of a removed member.
            self.lost |= {
                (record.initiator, id_)
                for id_, record in after.records.items()
                if record.initiator == command.old.name
                and record.state == "aborted"
                and before.records.get(id_) != record
            }
        if isinstance(command, Sync) and step.origin is not None:
            self._note_sync(step, command.as_of, step.origin[0])
        if isinstance(command, Force):
            for _, cursor in command.forward:
                self.excused.update(range(cursor + 1, after.last))
        if isinstance(command, Commit | Advance) and command.effect is not None and step.origin:
            self.effects[(command.id, step.origin[0])] += 1

    def _note_sync(self, step: Step, as_of: int, node: str) -> None:
        """Without a copy it is an operator's word for the data that is there, whatever that is."""
        old = step.before.cursors.get(node)
        if old is not None and not follows(old) and (node, as_of) not in self.loaded:
            self.reset_at = max(self.reset_at, as_of)

    def _note_record(self, step: Step, id_: int, record: Record) -> None:
        entry = self.entries.get(id_)
        if entry is None:
            entry = self.entries[id_] = Entry(
                id=id_,
                function=record.function,
                version=record.version,
                args=record.args,
                initiator=record.initiator,
                incarnation=record.incarnation,
                kind=record.kind,
                state=record.state,
            )
        entry.state, entry.cause = record.state, record.cause
        if record.state == "committed":
            following = [node for node, each in step.after.cursors.items() if follows(each)]
            entry.nodes = tuple(sorted(following))

    def passes(self, first: int, end: int) -> bool:
        """Whether all ids from `first` to `end` - 1 are aborted."""
        return all(
            id_ in self.entries and self.entries[id_].state == "aborted"
            for id_ in range(first, end)
        )


def check_effect(step: Step, effectful: Mapping[str, bool], ledger: Ledger) -> list[str]:
    """A function whose effect is on the keyspace has it in the very command that moves the cursor.

    `effectful` says of each function whether it is one.
    """
    command = step.command
    if step.refusal or not isinstance(command, Commit | Advance):
        return []
    entry = ledger.entries.get(command.id)
    if entry is None:
        return [f"index {step.index}: {command} names an id that was never given"]
    if effectful.get(entry.function, False) != (command.effect is not None):
        what = "without its effect" if command.effect is None else f"with {command.effect}"
        return [f"index {step.index}: {step.name} of {entry.function} {command.id} {what}"]
    node = "" if step.origin is None else step.origin[0]
    again = command.effect is not None and ledger.effects[(command.id, node)] > 0
    if again and node not in ledger.replaced:
        return [f"index {step.index}: the effect of {command.id} on {node} is made twice"]
    return []
