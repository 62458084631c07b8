"""What the logs of a storm of regions did, judged command by command.

Each command is judged when it is applied first anywhere in its region, with what the tables say
after it. The rules, and the name under which each is found broken:

- *each message once, in order*: a topic has of each origin the seqs 1, 2, 3, ..., each once, with
  what was published there, but for holes that it was told of;
- *holes are told*: a hole is what the source itself does not keep;
- *retention waits*: what is removed is below all marks, and every active region has it;
- *only what was acknowledged*: whatever a set gains was acknowledged by this command, or is in the
  set of the region that said so; an acknowledgement was asked for by a program;
- *acknowledged is acknowledged*: what the command acknowledges is in the set afterwards, and no set
  loses anything but by a seek;
- *beginnings are right*: a base is that of the position where the subscription begins, or, made by
  another region's word, one that it has had there;
- *marks are true*: nothing at or below a mark is wanted, and no mark goes back but by a seek;
- *snapshots are consistent*: a snapshot is made of what each region answered to it, in each round;
  one that arrives again is not counted; whatever is in the other region up to its position is here
  up to ours; an update names the position of a completed snapshot, and all up to it is
  acknowledged there;
- *one pair of hands*: what a shared subscription hands out is in no live consumer's hands, and is
  wanted; an exclusive one has one live consumer;
- *limits change when asked*: what is declared of a topic stays, but for what a command names that
  is to change it;
- *full is what is waited for*: a publication is refused for `backlog_bytes_max` if what a
  subscription has still to read or a region still to fetch leaves it no room, and only then;
- *claims count up to what was sent*: what a region is taken to have of another one's own messages
  was sent to it by a link.
"""

from __future__ import annotations

from raftkv_subscriptions.commands import (
    Detach,
    Release,
    Sweep,
    Take,
    Unsubscribe,
)

from .storm_hands import consumed
from .storm_ledger import Ledger, Step
from .storm_messages import appended, claimed, full, limited, topic_book, trimmed
from .storm_rules import Found
from .storm_sets import subscriptions
from .storm_snapshots import snapshots

__all__ = ["check_step"]


def check_step(step: Step, ledger: Ledger) -> list[Found]:
    """Write into the ledger what the step has done; all that is wrong with it."""
    found: list[Found] = list(full(step, ledger))
    if step.refusal is not None:
        return _told(step, found)
    command = step.command
    found += claimed(step, ledger)
    if isinstance(command, Sweep):
        names = [key for key, _ in step.tables.table("topics").scan()]
    else:
        topic = getattr(command, "topic", None)
        names = [] if topic is None else [topic]
        if isinstance(command, Take | Release | Detach):
            names = _topic_of_consumer(step, ledger)
    for name in names:
        row = step.tables.table("topics").get(name)
        if row is not None:
            book = topic_book(step, ledger, name, row)
            found += limited(step, book, row)
            found += appended(step, ledger, book, row)
            found += subscriptions(step, ledger, book)
            found += trimmed(step, ledger, book, row)
    if isinstance(command, Unsubscribe):
        ledger.living.pop((step.region, command.topic, command.sub), None)
    found += snapshots(step, ledger)
    found += consumed(step, ledger)
    return _told(step, found)


def _told(step: Step, found: list[Found]) -> list[Found]:
    return [(check, f"{step}: {text}") for check, text in found]


def _topic_of_consumer(step: Step, ledger: Ledger) -> list[str]:
    known = ledger.consumers.get((step.region, step.command.consumer))
    if known is None:
        return []
    book = ledger.subs.get((step.region, known[0]))
    return [] if book is None else [book.topic]
