"""The recipes of `raftkv.recipes` without asyncio, for a blocking client or node.

    with Session(client, ttl_s=10) as session:
        with Lock(session, b"locks/report") as token: ...

Names, results and errors are the same. Every call waits for its answer, `timeout_s` at most where
it is given: it then raises TimeoutError. docs/recipes.md tells what each recipe does.
"""

from raftkv.recipes import (
    PRIORITY_MAX,
    Committed,
    Count,
    Item,
    Leader,
    Member,
    NotANumber,
)

from .barriers import Barrier, DoubleBarrier
from .bridge import Store
from .changes import Changes
from .counter import Counter
from .election import Election, leader_of, observe
from .held import Lock, ReadLock, Semaphore, WriteLock
from .party import Party, members_of, observe_members
from .queues import Entry, LockingQueue, PriorityQueue, Queue
from .session import Session
from .stm import Transaction, atomically

__all__ = [
    "PRIORITY_MAX",
    "Barrier",
    "Changes",
    "Committed",
    "Count",
    "Counter",
    "DoubleBarrier",
    "Election",
    "Entry",
    "Item",
    "Leader",
    "Lock",
    "LockingQueue",
    "Member",
    "NotANumber",
    "Party",
    "PriorityQueue",
    "Queue",
    "ReadLock",
    "Semaphore",
    "Session",
    "Store",
    "Transaction",
    "WriteLock",
    "atomically",
    "leader_of",
    "members_of",
    "observe",
    "observe_members",
]
