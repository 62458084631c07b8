"""Coordination recipes: locks, elections, barriers, counters, queues, and what they are made of.

They work on anything with `.kv` and `.leases` (ports.py): an embedded `Node`, or a `Client`.
docs/recipes.md shows how to use each, and what a fencing token is for.
"""

from .barrier import Barrier, DoubleBarrier
from .counter import Count, Counter, NotANumber
from .election import Election, Leader, leader_of, observe
from .lock import Lock, ReadLock, WriteLock
from .locking_queue import Entry, LockingQueue
from .party import Member, Party, members_of, observe_members
from .ports import KvPort, Settling, Store, WatchPort
from .queue import PRIORITY_MAX, Item, PriorityQueue, Queue
from .semaphore import Semaphore
from .session import Session
from .stm import Committed, Transaction, atomically

__all__ = [
    "PRIORITY_MAX",
    "Barrier",
    "Committed",
    "Count",
    "Counter",
    "DoubleBarrier",
    "Election",
    "Entry",
    "Item",
    "KvPort",
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
    "Settling",
    "Store",
    "Transaction",
    "WatchPort",
    "WriteLock",
    "atomically",
    "leader_of",
    "members_of",
    "observe",
    "observe_members",
]
