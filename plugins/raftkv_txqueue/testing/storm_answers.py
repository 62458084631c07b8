"""What the programs of a storm are told, as pure functions of a record of it.

The other half of `storm_check.py`, by the same rules: it judges, and does nothing else. Everything
is compared with the `Ledger` of what the log decided, which is ahead of every node: whatever a node
tells has happened in the ledger before.

A `Story` is one publication or one transaction, from its program's side. Its messages bear tags
that nobody else uses, so that what became of it is known also where its program was told nothing.

**Time-outs decide nothing.** A story that ended without a verdict may have any fate; it must have
one in the end, and whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from .storm_ledger import CLOSED, Ledger, Work, tag_of

__all__ = [
    "NEVER",
    "Story",
    "check_delivery",
    "check_fate",
    "check_order",
    "check_recovered",
    "check_settled",
    "check_story",
]

#: Outcomes after which nothing of it is anywhere, and never will be.
NEVER = ("aborted", "refused", "not applied", "rolled back")
#: Outcomes after which all of it is there.
DONE = ("published", "committed")


@dataclass(slots=True)
class Story:
    """What a program did. Times are virtual seconds; `ended` 0 while it is under way.

    `producer` and `turn` tell in which order one producer published, in one queue after the other.
    `outcome`: one of `NEVER` or `DONE`, or "unknown", "given up", "died", "" (under way).
    """

    number: int
    kind: str
    node: str
    tags: list[bytes] = field(default_factory=list)
    queue: str = ""
    producer: int = 0
    txid: str = ""
    xid: Any = None
    work: Work | None = None
    began: float = 0.0
    ended: float = 0.0
    timeout_s: float = 0.0
    outcome: str = ""
    spans: tuple[tuple[str, int, int], ...] = ()
    index: int = 0
    error: str = ""

    def __str__(self) -> str:
        name = self.txid or (str(self.xid) if self.xid is not None else self.queue)
        return (
            f"{self.kind} {self.number} ({name}) on {self.node}, begun at {self.began:.3f} s: "
            f"{self.outcome or 'no answer'} {self.error} {self.tags}"
        )


def work_of(story: Story, ledger: Ledger) -> Work | None:
    """The transaction in the log, if anything of it came there."""
    if story.work is not None:
        return story.work
    if story.xid is not None:
        works = ledger.by_xid.get(story.xid, [])
        return works[-1] if works else None
    if not story.txid:
        return None
    session, _, counter = story.txid.partition(".")
    return ledger.tx(int(session), int(counter))


def check_story(story: Story, ledger: Ledger) -> list[str]:
    """Whether what the program was told is true, now and for ever."""
    found = []
    entered = [tag for tag in story.tags if tag in ledger.entered]
    for tag in entered:
        if len(ledger.entered[tag]) > 1:
            found.append(f"{tag!r} entered at {ledger.entered[tag]}")
    work = work_of(story, ledger)
    # A program that was cut off in the middle has not said everything.
    said = story.tags if work is None else work.tags
    if entered and len(entered) != len(story.tags) and set(entered) != set(said):
        found.append(f"only {entered} of it are there: {work}")
    if story.outcome in NEVER:
        if entered:
            found.append(f"nothing was applied, it was told, and {entered} are there: {work}")
        if work is not None and work.state in ("committed", "heuristically committed"):
            found.append(f"it was told {story.outcome}, and it is {work}")
    elif story.outcome in DONE:
        if len(entered) != len(story.tags):
            found.append(f"it was told {story.outcome}, and {entered} are there: {work}")
        found += _check_done(story, work)
    return [f"{story}: {each}" for each in found]


def _check_done(story: Story, work: Work | None) -> Iterable[str]:
    if story.kind == "publish":
        return
    if work is None or work.state not in ("committed", "heuristically committed"):
        yield f"committed, it was told, and it is {work}"
    elif story.kind == "tx":
        if story.spans and list(story.spans) != work.spans:
            yield f"it was told the spans {story.spans}, and has {work.spans}"
        if story.index and story.index != work.decided:
            yield f"it was told the index {story.index}, and was decided at {work.decided}"


def check_fate(txid: str, fate: Any, decided: bool, ledger: Ledger) -> list[str]:
    """What an outcome that was asked for says of a TX, which was `decided` when it was asked."""
    session, _, counter = txid.partition(".")
    work = ledger.tx(int(session), int(counter))
    state = "" if work is None else work.state
    if fate.state == "committed" and state != "committed":
        return [f"{txid} is committed, it is told, and it is {work}"]
    if fate.state == "rolled back":
        if state == "committed" or (work is not None and state in CLOSED):
            return [f"{txid} is rolled back, it is told, and it is {work}"]
        told = (fate.cause, fate.reason)
        if work is not None and not work.is_open and told != (work.cause, work.reason):
            return [f"{txid} is rolled back for {told}, it is told, and it is {work}"]
    if fate.state in ("unknown", "active", "preparing") and decided:
        return [f"{txid} is {fate.state}, it is told, and it was {work}"]
    return []


# --- consumers ------------------------------------------------------------------------------------


def check_delivery(session: int, delivery: Any, ledger: Ledger) -> list[str]:
    """A message that a consumer got: acquired for it by the log, as it is."""
    wrong = []
    # A queue that was deleted and made again has given the same seqs to others.
    for book in ledger.by_id.values():
        times = ledger.acquired.get((session, book.id, delivery.seq))
        if book.name != delivery.queue or times is None:
            continue
        tag = ledger.placed.get((book.id, delivery.seq))
        if tag != tag_of(delivery):
            wrong.append(f"{delivery} of session {session} is {tag!r}")
        elif not 1 <= delivery.deliveries <= times:
            wrong.append(f"{delivery} of session {session} was delivered {times} times")
        elif delivery.redelivered != (delivery.deliveries > 1):
            wrong.append(f"{delivery} is told redelivered {delivery.redelivered}")
        else:
            return []
    return wrong or [f"session {session} got {delivery}, and never acquired it"]


def check_settled(
    session: int, queue: str, settled: Any, seqs: Iterable[int], ledger: Ledger
) -> list[str]:
    """A consumer that was told that its messages are accepted: they are, and by nobody else."""
    found = []
    missing = set(settled.missing)
    ids = [book.id for book in ledger.by_id.values() if book.name == queue]
    for seq in seqs:
        by = [ledger.accepted.get((id_, seq)) for id_ in ids]
        if seq not in missing and session not in by:
            found.append(f"{queue} {seq} is accepted by session {session}, it is told, and {by}")
    return found


# --- coordinators ---------------------------------------------------------------------------------


def check_recovered(
    branches: Iterable[Any], promised: Iterable[Work], began: int, ledger: Ledger
) -> list[str]:
    """In-doubt branches: all that were prepared all the while, and none that never was meanwhile.

    `promised`: those that were prepared when the call began, at the index `began`.
    """
    shown = {each.xid: each.state for each in branches}
    found = []
    for work in promised:
        if work.state == "prepared" and work.xid not in shown:
            found.append(f"{work} is prepared all the while, and recover() does not show it")
    for xid, state in shown.items():
        works = ledger.by_xid.get(xid, [])
        fits = [
            work
            for work in works
            if work.promised
            and (
                work.state == "prepared"
                or work.decided >= began
                or work.state.startswith("heuristically")
            )
        ]
        if not fits:
            text = [str(each) for each in works]
            found.append(f"recover() shows {xid} as {state}, and it is {text}")
    return found


# --- order ----------------------------------------------------------------------------------------


def check_order(stories: Iterable[Story], ledger: Ledger) -> list[str]:
    """What one producer published in one queue, one after the other, is there in that order."""
    found: list[str] = []
    last: dict[tuple[int, str], tuple[int, int, Story]] = {}
    for story in stories:
        if story.kind != "publish" or story.outcome not in DONE:
            continue
        places = [ledger.entered[tag][0] for tag in story.tags if tag in ledger.entered]
        key = (story.producer, story.queue)
        for id_, seq, _ in places:
            before = last.get(key)
            if before is not None and (id_, seq) <= before[:2]:
                found.append(f"{story} is at {seq}, and {before[2]} before it at {before[1]}")
            last[key] = (id_, seq, story)
    return found
