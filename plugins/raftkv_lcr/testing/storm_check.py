"""What a connect storm must show, as pure functions of a record of what happened.

Rules of this file. It does no work of its own in a run: `storm.py` writes the record down, and this
judges it, so that each check can be shown to fail (`tests/plugins/raftkv_lcr/test_storm_check.py`).
It asks the code under test for nothing: who is newer, and what may be written over what, is said
here once more, in other words than in `registry.py`. Every function returns the violations in
words, and nothing when all is well.

Four records:

- a `Decision` is one command as it was applied for the first time anywhere, with the rows before
  and after it. Of these the `Registry` keeps which rows were ever owners, and how they ended.
- a `Story` is one channel: how it was opened, what its connect was answered, which messages it
  accepted as a live channel, what it inherited, how it ended.
- an `Ending` is everything that is left when the world has healed and nothing moves any more.

**Nothing is lost silently.** A channel that was told `handover="complete"` has inherited exactly
what its predecessor had inherited and accepted, in that order, with nothing of it missing, doubled
or invented; "lost" may miss some, and a clean start has nothing. Followed from predecessor to
predecessor this is the promise for whole chains of takeovers, and it holds for every link of them
whether or not its session is the one that is left in the end. A chain is broken in the open only:
by an answer that says so, by the death of the process, by a kick, or because the channel was no
owner any more (its node was declared dead, and the log had nobody to name).

What is ugly: under the mode "disabled" nothing of this is promised, and a channel opened then is an
*anomaly* where it breaks a rule. Those are counted (`anomalies`), so that the old registry is
measured by the same yardstick.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raftkv_lcr.commands import (
    Adopt,
    Ahead,
    Channel,
    Cleanup,
    Entry,
    InProgress,
    ModeChanged,
    Open,
    OutdatedLate,
    Register,
    Registered,
    Restart,
    Unregister,
)

from .storm_order import newer, placed

__all__ = [
    "Decision",
    "Ending",
    "Granted",
    "Registry",
    "Story",
    "anomalies",
    "check_announcement",
    "check_answer",
    "check_decision",
    "check_deletion",
    "check_ending",
    "check_handovers",
    "check_older",
    "named_clients",
]

Rows = Mapping[str, Entry | None]


# --- what the log decides -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Decision:
    """One command as applied. `result` is None where it was refused with the code `refusal`."""

    index: int
    serial: int
    command: Any
    # (node, incarnation) of the session that sent it.
    origin: tuple[str, int] | None
    # Of the nodes that are up, the incarnation.
    lives: Mapping[str, int]
    # Of the mode that is in force.
    epoch: int
    # The rows of the clients that the command names.
    before: Rows
    after: Rows
    result: Any
    refusal: str = ""
    # The mode that is in force.
    mode: str = "enabled"
    # The log's clock, and the setting `connect_age_max_ms`.
    now: int = 0
    age_max_ms: int = 0
    # The first ticket of format 3, None before it.
    first: int | None = None


def named_clients(command: Any) -> tuple[str, ...]:
    """The clients whose rows a command may touch."""
    match command:
        case Open() | Register():
            return (command.client_id,)
        case Unregister() | Adopt():
            return (command.channel.client_id,)
        case Cleanup():
            return command.client_ids
    return ()


def _lives(row: Channel, decision: Decision) -> bool:
    return decision.lives.get(row.node) == row.incarnation


def _owner(entry: Entry | None) -> Channel | None:
    return None if entry is None else entry.owner


def _claimant(entry: Entry | None) -> Channel | None:
    return None if entry is None or entry.claim is None else entry.claim.channel


def check_decision(decision: Decision) -> list[str]:
    """Whether the log decided as it must, and wrote what it answered."""
    found = []
    for client in decision.before:
        found += _change_of_owner(decision, client)
    match decision.command:
        case Open() | Register() | Adopt():
            found += _answer(decision)
    return [f"index {decision.index}: {each}" for each in found]


def _change_of_owner(decision: Decision, client: str) -> list[str]:
    """Only three things end an owner's row: a newer one, its own deletion, the end of its life."""
    before, after = _owner(decision.before[client]), _owner(decision.after[client])
    if before == after:
        return []
    command, result = decision.command, decision.result
    name = type(command).__name__
    if after is None:
        assert before is not None
        if isinstance(command, Unregister) and command.channel == before:
            return []
        ended = (before.node, before.incarnation)
        if isinstance(command, Cleanup) and ended == (command.node, command.incarnation):
            if not _lives(before, decision):
                return []
            return [f"Cleanup deleted {before}, whose life goes on"]
        return [f"{name} deleted {before}"]
    found = []
    if not isinstance(result, Registered) or result.channel != after or result.repeated:
        found.append(f"{name} wrote {after} and answered {result or decision.refusal}")
    if not _lives(after, decision):
        found.append(f"{name} wrote {after}, whose life is over")
    if before is not None and _lives(before, decision):
        if isinstance(command, Adopt):
            found.append(f"Adopt of {after} displaced {before}")
        elif not newer(after, before, decision.first):
            found.append(f"the older {after} won over {before}")
    return found


def _answer(decision: Decision) -> list[str]:
    command, result = decision.command, decision.result
    (client,) = named_clients(command)
    before, after = decision.before[client], decision.after[client]
    owner = _owner(before)
    if owner is not None and not _lives(owner, decision):
        owner = None
    if isinstance(result, Registered):
        return _registered(decision, result, owner, after)
    found = []
    if before != after and not (isinstance(result, Restart) and _claimant(after) == result.claim):
        found.append(f"{before} became {after} with the answer {result or decision.refusal}")
    if isinstance(result, Open.Result) and getattr(result, "index", decision.index) != (
        decision.index
    ):
        found.append(f"answered as if at index {result.index}")
    match result:
        case OutdatedLate() if result.newer not in (owner, _claimant(before)):
            found.append(f"outdated by {result.newer}, which is neither owner nor claimant")
        case Restart() if result.predecessor != owner:
            found.append(f"to restart with {result.predecessor}; the owner is {owner}")
        case Restart() if command.predecessor == owner:
            found.append(f"to restart, although it had named the owner {owner}")
        case Restart() if misplaced := placed(decision, result.claim):
            found += misplaced
        case Restart() if _claimant(after) != result.claim:
            found.append(f"to restart, and its claim {result.claim} is not kept")
        case Ahead() if result.predecessor != owner:
            found.append(f"ahead of {result.predecessor}; the owner is {owner}")
        case InProgress() if result.claimant != _claimant(before):
            found.append(f"{result.claimant} is said to claim, and does not")
        case ModeChanged() if result.epoch != decision.epoch:
            found.append(f"epoch {result.epoch} was answered; the present one is {decision.epoch}")
    return found


def _registered(
    decision: Decision, result: Registered, owner: Channel | None, after: Entry | None
) -> list[str]:
    """An "ok" is what the table holds at this index."""
    command, found = decision.command, []
    if after is None or after.owner != result.channel:
        return [f"registered {result.channel}; the table holds {_owner(after)}"]
    if result.index != decision.index:
        found.append(f"registered as if at index {result.index}")
    if result.session_present != after.session_present:
        found.append(f"session present {result.session_present}, kept as {after.session_present}")
    if isinstance(command, Open) and command.epoch != decision.epoch:
        found.append(f"registered for epoch {command.epoch} in epoch {decision.epoch}")
    held = (result.channel.node, result.channel.incarnation)
    if isinstance(command, Open | Register) and held != decision.origin:
        found.append(f"registered {result.channel} for {decision.origin}")
    if result.repeated:
        if owner != result.channel:
            found.append(f"repeated {result.channel}; the owner was {owner}")
        return found
    if result.took_over != owner:
        found.append(f"took over {result.took_over}; the owner was {owner}")
    if isinstance(command, Open | Register):
        found += placed(decision, result.channel)
    if isinstance(command, Open | Register):
        clean = isinstance(command, Open) and command.clean
        # A clean start wants nobody's session, and so need not know whose place it takes.
        if command.predecessor != owner and not clean:
            found.append(f"registered over {owner}, having named {command.predecessor}")
        resumes = not isinstance(command, Open) or (command.resume and not clean)
        if result.session_present != (owner is not None and resumes):
            found.append(f"session present {result.session_present} over {owner}")
    return found


@dataclass(frozen=True, slots=True)
class Granted:
    """A row that became an owner's."""

    index: int
    took_over: Channel | None
    session_present: bool


class Registry:
    """Which rows the log ever made owners, and which of them it deleted by name, at which index."""

    def __init__(self) -> None:
        self.granted: dict[Channel, Granted] = {}
        self.deleted: dict[Channel, int] = {}
        # (client, channel) of those whose place another one took.
        self.displaced: set[tuple[str, str]] = set()
        # Those with (node, incarnation) that were to be entered, and whose place was taken.
        self.not_entered: set[tuple[str, str, str, int]] = set()

    def note(self, decision: Decision) -> Channel | None:
        """Keep a decision. Returns the owner's row that it deleted by its name, if it did."""
        result, command = decision.result, decision.command
        if isinstance(result, Registered) and not result.repeated:
            self.granted[result.channel] = Granted(
                decision.index, result.took_over, result.session_present
            )
            if result.took_over is not None:
                self.displaced.add((result.took_over.client_id, result.took_over.channel))
        if isinstance(command, Adopt) and isinstance(result, OutdatedLate):
            row = command.channel
            self.not_entered.add((row.client_id, row.channel, row.node, row.incarnation))
        if isinstance(command, Unregister):
            row = command.channel
            if _owner(decision.before[row.client_id]) == row:
                self.deleted[row] = decision.index
                return row
        return None


# --- channels -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Story:
    """One channel, from its connect on. Channel ids are unique in a run."""

    client: str
    channel: str
    node: str
    clean: bool = False
    # The mode in which it began and was answered; "" where that was not one.
    mode: str = "enabled"
    # The log had ended the incarnation of its node when it began.
    outdated: bool = False
    # Under way, "ok", another outcome of a connect, or what was raised or done instead.
    outcome: str = ""
    present: bool = False
    # Whether the answer brought content of a predecessor.
    content: bool = False
    row: Channel | None = None
    predecessor: Channel | None = None
    handover: str = "none"
    failure: str = ""
    # Message ids, in order. `inherited` stood in the session before everything it accepted.
    inherited: tuple[str, ...] = ()
    accepted: list[str] = field(default_factory=list)
    # Why it lives no longer: "disconnected", "kicked", "died"; "" while nothing of that happened.
    ended: str = ""
    # Its client is connected, and no operator has asked for its end. One that has gone away
    # never comes back to this channel.
    connected: bool = True
    # It was told that its client has no session, while another one of the client lived.
    beside: bool = False

    @property
    def whole(self) -> tuple[str, ...]:
        """Everything that its session has ever had."""
        return (*self.inherited, *self.accepted)

    def __str__(self) -> str:
        return f"channel {self.channel} of {self.client} on {self.node}"


def check_answer(
    story: Story, registry: Registry, stories: Mapping[str, Story] | None = None
) -> list[str]:
    """Whether what a connect was answered is true, and fits what the log decided."""
    found = []
    if story.outcome != "ok":
        if story.present or story.content:
            found.append("was refused, and given a session")
        return _of(story, found)
    if story.present != story.content:
        found.append(f"session present {story.present}, content given: {story.content}")
    if story.present and story.clean:
        found.append("started clean, and has a session")
    if story.handover == "complete" and story.predecessor is None:
        found.append("was handed over a session of nobody")
    if story.handover == "complete" and not story.present and not story.clean:
        found.append("was handed over a session that is said not to be present")
    owned = story.predecessor is not None and not story.clean
    if owned and not story.present and story.handover != "lost":
        found.append(f"has no session, but {story.predecessor} had one, and nothing was lost")
    if story.mode != "disabled":
        found += _against_the_log(story, registry, stories or {})
    return _of(story, found)


def check_older(story: Story, stories: Mapping[str, Story]) -> list[str]:
    """Where older connections are kept: the predecessor had lost its client."""
    former = None if story.predecessor is None else stories.get(story.predecessor.channel)
    if story.outcome != "ok" or former is None or "disabled" in (story.mode, former.mode):
        return []
    if former.outcome != "ok" or former.ended or not former.connected:
        return []
    return _of(story, [f"displaced {former}, whose client is connected"])


def _against_the_log(story: Story, registry: Registry, stories: Mapping[str, Story]) -> list[str]:
    granted = None if story.row is None else registry.granted.get(story.row)
    if granted is None:
        return [f"was answered ok with {story.row}, which the log never registered"]
    found = []
    if granted.took_over is not None and granted.took_over != story.predecessor:
        # Where both registries are read, the session may be that of a channel which the log does
        # not know. Then the log's is given up: a loss, unless one of the two has no promise.
        both = [each for each in (granted.took_over, story.predecessor) if each is not None]
        known = [stories[each.channel] for each in both if each.channel in stories]
        excused = story.handover == "lost" or any(each.mode == "disabled" for each in known)
        if story.mode == "enabled" or not excused:
            found.append(f"took over {granted.took_over}, and was told {story.predecessor}")
    if granted.took_over is None and story.predecessor is not None and story.mode == "enabled":
        found.append(f"was told {story.predecessor}, and took over nobody")
    if story.present and granted.took_over is not None and not granted.session_present:
        found.append("has a session, which the log says is not continued")
    if story.row in registry.deleted and not story.ended:
        found.append(f"lives, and its row was deleted at index {registry.deleted[story.row]}")
    return found


def check_deletion(row: Channel, story: Story | None, lives: bool) -> list[str]:
    """An owner's row was deleted by name: its channel must not be one that still `lives`."""
    if story is None or not lives or story.outcome != "ok" or story.ended:
        return []
    return _of(story, [f"lives, and its row {row} was deleted"])


def check_announcement(
    decision: Decision, living: Iterable[Story], registry: Registry
) -> list[str]:
    """A node that announces itself has entered what lives on it from its former incarnations.

    Except where another connection has taken the client. `living` are the channels of that node.
    """
    if decision.origin is None or decision.refusal or decision.mode == "disabled":
        return []
    if decision.command.epoch != decision.epoch:
        return []
    node, incarnation = decision.origin
    found = []
    for story in living:
        key = (story.client, story.channel)
        if story.outcome != "ok" or story.ended or story.row is None:
            continue
        left_out = story.row.incarnation < incarnation and key not in registry.displaced
        if left_out and (*key, node, incarnation) not in registry.not_entered:
            found += _of(story, [f"is not registered by incarnation {incarnation}"])
    return found


def check_handovers(stories: Mapping[str, Story]) -> list[str]:
    """Whether every session that was taken over went on whole; see the module's text."""
    found: list[str] = []
    heirs: dict[str, Story] = {}
    for story in stories.values():
        if story.outcome != "ok" or story.mode == "disabled" or story.predecessor is None:
            continue
        former = stories.get(story.predecessor.channel)
        if former is None:
            found += _of(story, [f"took over {story.predecessor}, which nobody opened"])
            continue
        found += _of(story, _inheritance(story, former))
        if story.handover == "complete" and story.present:
            other = heirs.setdefault(former.channel, story)
            if other is not story:
                found += _of(story, [f"and {other.channel} were both given {former.channel}"])
    return found


def _inheritance(story: Story, former: Story) -> list[str]:
    if story.clean or not story.present:
        return [] if not story.inherited else [f"starts with {story.inherited}, out of nowhere"]
    if former.outcome != "ok":
        # Its client had gone before the answer, and the session was kept for the next one. What
        # it had is not known, but whatever it was, it was handed on once.
        doubled = len(set(story.inherited)) < len(story.inherited)
        return [_difference(story.inherited, story.inherited, former.channel)] if doubled else []
    if story.handover == "complete":
        if story.inherited == former.whole:
            return []
        return [_difference(former.whole, story.inherited, former.channel)]
    if _is_part(story.inherited, former.whole):
        return []
    return [_difference(former.whole, story.inherited, former.channel)]


def _difference(had: Sequence[str], has: Sequence[str], former: str) -> str:
    lost = [each for each in had if each not in has]
    doubled = [each for each, count in Counter(has).items() if count > 1]
    invented = [each for each in has if each not in had]
    what = [
        f"{name} {', '.join(which)}"
        for name, which in (("lost", lost), ("doubled", doubled), ("invented", invented))
        if which
    ]
    return f"inherited from {former}: {'; '.join(what) or 'in another order'}"


def _is_part(part: Sequence[str], whole: Sequence[str]) -> bool:
    """Whether all of `part` is in `whole`, in that order and once."""
    rest = iter(whole)
    return all(each in rest for each in part)


def anomalies(stories: Mapping[str, Story]) -> Counter[str]:
    """What went wrong for channels that were opened under "disabled", where that is no violation.

    Among it the sessions that began anew although another one of the client was live by then.
    """
    counts: Counter[str] = Counter()
    unpromised = [each for each in stories.values() if each.mode == "disabled"]
    for story in unpromised:
        if story.outcome != "ok":
            continue
        counts["opened"] += 1
        former = None
        if story.predecessor is not None:
            former = stories.get(story.predecessor.channel)
        if check_answer(story, Registry()):
            counts["wrong answer"] += 1
        elif former is not None and _inheritance(story, former):
            counts["content lost or doubled"] += 1
        if story.beside:
            counts["second session"] += 1
    return counts


# --- the end --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Ending:
    """What is left when the world has healed and everybody has had time."""

    # By node: client -> owner, as its tables show it; and how many lives are marked for cleaning.
    rows: dict[str, dict[str, Channel]] = field(default_factory=dict)
    marks: dict[str, int] = field(default_factory=dict)
    # Of the nodes that are up, the incarnation.
    lives: dict[str, int] = field(default_factory=dict)
    # The channels that live in the brokers: (node, client, channel) -> message ids of the session.
    sessions: dict[tuple[str, str, str], tuple[str, ...]] = field(default_factory=dict)
    # Those of them that are still frozen for a successor.
    frozen: list[tuple[str, str, str]] = field(default_factory=list)
    # By node: what it holds by its own account; what it has not settled; handovers it remembers.
    held: dict[str, list[Channel]] = field(default_factory=dict)
    in_doubt: dict[str, int] = field(default_factory=dict)
    handovers: dict[str, int] = field(default_factory=dict)


def check_ending(ending: Ending, stories: Mapping[str, Story]) -> list[str]:
    """One owner per client, the same on all nodes, and nothing besides."""
    found = [
        *_owners_agree(ending),
        *_owners_live(ending),
        *_contents(ending, stories),
        *(f"{key} is still frozen" for key in ending.frozen),
    ]
    for node, rows in ending.held.items():
        wrong = [row for row in rows if ending.rows[node].get(row.client_id) != row]
        found += [f"{node} holds {row}, which is not registered" for row in wrong]
    for name, sizes in (
        ("lives to clean up after", ending.marks),
        ("registrations in doubt", ending.in_doubt),
        ("handovers that it remembers", ending.handovers),
    ):
        found += [f"{node} has {size} {name}" for node, size in sizes.items() if size]
    return found


def _owners_agree(ending: Ending) -> Iterable[str]:
    first, *others = ending.rows
    for node in others:
        if ending.rows[node] != ending.rows[first]:
            yield f"{node} and {first} show other owners"


def _owners_live(ending: Ending) -> Iterable[str]:
    rows = next(iter(ending.rows.values()))
    owned = set()
    for client, row in rows.items():
        if ending.lives.get(row.node) != row.incarnation:
            yield f"{row} has outlived the incarnation of its node"
        owned.add((row.node, client, row.channel))
        if (row.node, client, row.channel) not in ending.sessions:
            yield f"{row} is registered, and its broker has no such channel"
    for node, client, channel in ending.sessions:
        if (node, client, channel) not in owned:
            yield f"channel {channel} of {client} lives on {node}; registered: {rows.get(client)}"


def _contents(ending: Ending, stories: Mapping[str, Story]) -> Iterable[str]:
    for (_, _, channel), content in ending.sessions.items():
        story = stories[channel]
        if story.outcome == "ok" and content != story.whole:
            yield from _of(story, [f"has {content}, and should have {story.whole}"])


def _of(story: Story, found: Iterable[str]) -> list[str]:
    return [f"{story} {each}" for each in found]
