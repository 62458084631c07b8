"""What nodes and callers of a storm must show, as pure functions of a record of what happened.

The other half of `storm_check.py`, by the same rules: it judges, and does nothing else. Four
records, each compared with the `Ledger` of what the log decided:

- a `Run` is one attempt of a function on a node: where, in which life, of which id, as what.
- a `Story` is one call, from its caller's side: what was asked, and what was answered. Each has a
  number, which travels in the arguments, so that runs and ids can be told to belong to it.
- a `Shelf` is what calls have made of one node: of each key, the id that wrote it last.
- an `Ending` is everything that is left when the world has healed and nothing moves any more.

**The order.** A function runs for an id only if the cursor of its node stands right before it, by
the copy of the log that this node has. So nothing is run twice by a node whose cursor has moved, no
id is passed over, and what is aborted or undecided is run by its initiator only.

**At least once, and when more.** A run that succeeded may be repeated if its node did not see its
cursor move: after a crash, a lost answer, a copy of an older state. That is counted, and no
violation; what has its effect on the keyspace has it once all the same.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raftkv_cluster_call.commands import Cursor, Record

from .storm_check import follows
from .storm_ledger import Entry, Ledger

__all__ = [
    "Ending",
    "Run",
    "Shelf",
    "Story",
    "check_ending",
    "check_required",
    "check_run",
    "check_runs",
    "check_story",
    "expected_shelf",
]

# A key of a state -> the id that wrote it last.
Shelf = Mapping[str, int]


@dataclass(slots=True)
class Run:
    """One attempt. `cursor` and `record`: what its node's copy of the log showed at its start."""

    node: str
    boots: int
    incarnation: int
    id: int
    kind: str
    function: str
    version: int
    number: int
    attempt: int
    token: str
    cursor: Cursor | None
    record: Record | None
    # "" while it goes on; "ok", "raised", "cut off" (cancelled, or its node died).
    end: str = ""

    def __str__(self) -> str:
        return (
            f"run of {self.id} ({self.function} {self.version}, {self.kind}, attempt "
            f"{self.attempt}) on {self.node} life {self.incarnation}"
        )


def check_run(run: Run, ledger: Ledger, going_on: Sequence[Run] = ()) -> list[str]:
    """Whether this may start now. `going_on`: runs of the same process that have not ended."""
    found = []
    entry = ledger.entries.get(run.id)
    if entry is None:
        return [f"{run}: no such id was ever given"]
    if run.token != f"{run.id}@{run.node}":
        found.append(f"its token is {run.token!r}")
    if (run.function, run.version) != (entry.function, entry.version):
        found.append(f"the log says {entry.function} {entry.version}")
    if run.attempt < 1:
        found.append("attempts count from 1")
    if going_on:
        found.append(f"meanwhile {going_on[0]} goes on")
    found += _kind(run, entry, ledger)
    found += _turn(run, ledger)
    return [f"{run}: {each}" for each in found]


def _kind(run: Run, entry: Entry, ledger: Ledger) -> Iterable[str]:
    owner = (entry.initiator, entry.incarnation)
    if run.kind == "initiate":
        if (run.node, run.incarnation) != owner:
            yield f"initiated for {entry.initiator} life {entry.incarnation}"
        if run.record is None or run.record.state != "reserved":
            yield f"initiated, and is {run.record and run.record.state} already"
        return
    if run.kind != "replicate":
        yield f"of the kind {run.kind!r}"
    if entry.state != "committed":
        yield f"replicated, and is {entry.state} {entry.cause}"
    if run.node == entry.initiator and run.node not in ledger.parted:
        yield "replicated by its initiator, which has run it"


def _turn(run: Run, ledger: Ledger) -> Iterable[str]:
    cursor = run.cursor
    if cursor is None or not follows(cursor):
        yield f"by a node that does not follow: {cursor}"
    elif cursor.id >= run.id:
        yield f"its node is at {cursor.id} already"
    elif not ledger.passes(cursor.id + 1, run.id):
        yield f"its node is at {cursor.id}, and something comes first"


def check_runs(runs: Iterable[Run], ledger: Ledger) -> list[str]:
    """What only shows in all runs together: who ran what, against what became of it."""
    found: list[str] = []
    initiated: dict[int, list[Run]] = defaultdict(list)
    numbers: dict[int, set[int]] = defaultdict(set)
    for run in runs:
        if run.kind == "initiate":
            initiated[run.id].append(run)
            numbers[run.number].add(run.id)
        elif ledger.entries[run.id].state == "aborted":
            found.append(f"{run}: a replica ran what is aborted")
    for id_, entry in ledger.entries.items():
        if entry.kind == "call":
            lost = (entry.initiator, id_) in ledger.lost
            found += _initiation(entry, initiated.get(id_, []), lost)
    for number, ids in numbers.items():
        if len(ids) > 1:
            found.append(f"call {number} was initiated under the ids {sorted(ids)}")
    return found


def _initiation(entry: Entry, runs: Sequence[Run], lost: bool) -> Iterable[str]:
    """An id is run by its initiator once, and what the log says of it fits how that ended.

    `lost`: the log knows that the initiator may have run it, although it is aborted.
    """
    if len(runs) > 1:
        yield f"{runs[0]}: initiated {len(runs)} times"
    ends = {run.end for run in runs}
    cause = entry.cause.partition(":")[0]
    if entry.state == "committed" and ends != {"ok"}:
        yield f"id {entry.id} is committed, and its initiation ended {sorted(ends) or 'never'}"
    if entry.state == "aborted" and cause != "failed" and runs and not lost:
        yield f"{runs[0]}: initiated, aborted as {entry.cause}, and no lost effect is known"
    # What its node's disk refuses to keep has failed, too, although the function has not.
    if cause == "failed" and "ok" in ends and not entry.cause.startswith("failed: OSError"):
        yield f"{runs[0]}: succeeded, and was aborted as {entry.cause}"


# --- callers --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Story:
    """One call. Times are virtual seconds; `ended` 0 while it is under way."""

    number: int
    node: str
    function: str
    required: Any
    timeout_s: float
    began: float
    ended: float = 0.0
    # The outcome of the answer, the name of what was raised, or "given up", "died".
    outcome: str = ""
    id: int = 0
    result: Any = None
    nodes: tuple[str, ...] = ()
    error: str = ""
    # It was raised in a kind of error after which nothing has run, and nothing will.
    nothing_ran: bool = False

    @property
    def expected_result(self) -> Any:
        """What a function returns; one with an effect on the keyspace returns no more than that."""
        return None if self.function == "count" else f"{self.id}/{self.number}"

    def __str__(self) -> str:
        return (
            f"call {self.number} of {self.function} on {self.node} (required {self.required!r}, "
            f"{self.timeout_s:g} s, begun at {self.began:.3f} s): {self.outcome} id {self.id}"
        )


def check_story(story: Story, runs: Sequence[Run], ledger: Ledger) -> list[str]:
    """Whether what the caller was told is true. `runs` are those of this call's number."""
    found = []
    ids = sorted({run.id for run in runs})
    committed = [id_ for id_ in ids if ledger.entries[id_].state == "committed"]
    entry = ledger.entries.get(story.id)
    if len(committed) > 1:
        found.append(f"committed under the ids {committed}")
    if story.outcome in ("ok", "peers_lagging", "stopped_nodes"):
        if entry is None or entry.state != "committed":
            found.append(f"the log says {entry}")
        elif committed != [story.id]:
            found.append(f"its runs were of {ids}")
        elif story.result != story.expected_result:
            found.append(f"was given the result {story.result!r} of another call")
    if story.outcome in ("peers_lagging", "stopped_nodes") and not story.nodes:
        found.append("misses nobody")
    if story.outcome == "init_failure":
        if committed:
            found.append(f"id {committed[0]} is committed")
        if entry is not None and entry.state != "aborted":
            found.append(f"the log says {entry}")
        if not story.error:
            found.append("no error is told")
    if story.nothing_ran and runs:
        found.append(f"nothing ran, it was told; {runs[0]}")
    return [f"{story}: {each}" for each in found]


def check_required(story: Story, ledger: Ledger) -> list[str]:
    """Whether an "ok" waited for those that were required; told in the moment of the answer."""
    entry = ledger.entries.get(story.id)
    if story.outcome != "ok" or entry is None:
        return []
    # Who left since the commit, or copies from others, is waited for by nobody.
    here = {node: ledger.cursors[node] for node in entry.nodes if node in ledger.cursors}
    late = [node for node, each in here.items() if follows(each) and each.id < story.id]
    required = story.required
    if required == "all":
        missing = late
    elif isinstance(required, int):
        missing = late if len(entry.nodes) - len(late) < required else []
    else:
        missing = [node for node in late if node in required]
    return [f"{story}: {missing} had not executed it"] if missing else []


# --- states ---------------------------------------------------------------------------------------


def expected_shelf(ledger: Ledger, key_of: Mapping[int, str]) -> dict[str, int]:
    """What all nodes must have in the end: of each key, the last committed id that wrote it.

    `key_of` says which key an id writes, for those ids that write any.
    """
    shelf: dict[str, int] = {}
    for id_, entry in sorted(ledger.entries.items()):
        if entry.state == "committed" and id_ in key_of:
            shelf[key_of[id_]] = id_
    return shelf


def check_shelf(
    node: str, shelf: Shelf, ledger: Ledger, key_of: Mapping[int, str]
) -> Iterable[str]:
    """Whether the node has it. What an operator made it pass over, it may lack."""
    for key, id_ in expected_shelf(ledger, key_of).items():
        has = shelf.get(key, 0)
        lacks = [
            each
            for each, entry in ledger.entries.items()
            if has < each <= id_ and key_of.get(each) == key and entry.state == "committed"
        ]
        real = [each for each in lacks if each not in ledger.excused and each > ledger.reset_at]
        if real:
            yield f"{node} has {key} as of {has}, and lacks the ids {real}"
    for key, has in shelf.items():
        entry = ledger.entries.get(has)
        # Its initiator has run it: that was told as a lost effect. Copies carry it to others.
        lost = entry is not None and (entry.initiator, has) in ledger.lost
        if entry is None or (entry.state != "committed" and not lost):
            state = "unknown" if entry is None else f"{entry.state} {entry.cause}"
            yield f"{node} has {key} as of {has}, which is {state}"


# --- the end --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Ending:
    """What is left when the world has healed and everybody has had time."""

    # By node: its cursors, its queue and so on, as its tables show them.
    cursors: dict[str, dict[str, Cursor]] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)
    # Who is to take part: up, of the right role, and has not left.
    expected: tuple[str, ...] = ()
    # By node: its alarms; what the plugin's own gauges show as under way.
    alarms: dict[str, list[str]] = field(default_factory=dict)
    under_way: dict[str, int] = field(default_factory=dict)
    # By node: what calls have made of it. Empty: nothing is kept in this run.
    shelves: dict[str, dict[str, int]] = field(default_factory=dict)
    # Keys in the keyspace of calls whose effect is there -> how often they were written.
    effects: dict[tuple[int, str], int] = field(default_factory=dict)


def check_ending(ending: Ending, ledger: Ledger, key_of: Mapping[int, str]) -> list[str]:
    """Everybody has come to the last id, alike, and nothing is left."""
    found = [*_all_there(ending), *_nothing_left(ending)]
    if Counter(ending.effects) != ledger.effects:
        wrong = {
            key: (ending.effects.get(key, 0), ledger.effects[key])
            for key in {**ending.effects, **ledger.effects}
            if ending.effects.get(key, 0) != ledger.effects[key]
        }
        found.append(f"effects (id, node) -> (is, should be): {wrong}")
    for node, shelf in ending.shelves.items():
        if node in ending.expected:
            found += check_shelf(node, shelf, ledger, key_of)
    return found


def _all_there(ending: Ending) -> Iterable[str]:
    for node, cursors in ending.cursors.items():
        wrong = [
            f"{each} at {cursor}"
            for each, cursor in cursors.items()
            if not follows(cursor) or cursor.id != ending.last[node]
        ]
        if wrong:
            yield f"{node} shows the last id {ending.last[node]}, and {', '.join(wrong)}"
        if sorted(cursors) != sorted(ending.expected):
            yield f"{node} shows the participants {sorted(cursors)}, not {sorted(ending.expected)}"


def _nothing_left(ending: Ending) -> Iterable[str]:
    for name, sizes in (("waiting calls", ending.waiting), ("calls under way", ending.under_way)):
        for node, size in sizes.items():
            if size:
                yield f"{node} has {size} {name}"
    for node, alarms in ending.alarms.items():
        if alarms:
            yield f"{node} shows the alarms {', '.join(alarms)}"
