"""Which changes of the configuration are allowed (rule 3; Raft thesis, chapter 4).

Rules of this file: pure. One node at a time, so that a majority before and a majority after always
share a node; never while another change is not committed, nor before the leader has committed an
entry of its own term (else two leaders could count by configurations that share no majority). A
new core first copies the log as a learner and votes only once it has caught up. A change is refused
unless it is forced, or unless a majority of the voters after it can commit at once: they were heard
lately, and they hold the log but for CAUGHT_UP_ENTRIES. A voter that answers heartbeats and copies
a snapshot is heard, and no entry is committed with its help for as long as that takes.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from raftkv.errors import MembershipRefused

from .membership import REMOVED_KEPT, Configuration, name_of

__all__ = [
    "CAUGHT_UP_ENTRIES",
    "add_learner",
    "check_change",
    "check_majority",
    "distrust",
    "promote",
    "remove",
]

# A member holds the log when it lacks no more than this many entries: a fraction of a second. Asked
# of a learner before it votes, and of the voters that a change relies on.
CAUGHT_UP_ENTRIES = 256


def add_learner(current: Configuration, raft_id: str) -> Configuration:
    """The configuration with a new copy. Raises MembershipRefused."""
    name = name_of(raft_id)
    known = current.raft_id_of(name)
    if known == raft_id:
        raise MembershipRefused(f"{name} is a member already; `promote` makes a copy a voter")
    if known is not None:
        raise MembershipRefused(
            f"{name} is a member under another data directory ({known}): remove it first, then "
            f"add this node"
        )
    if raft_id in current.removed:
        raise MembershipRefused(
            f"{name} was removed with this data directory: start it with an empty one"
        )
    learners = tuple(sorted((*current.learners, raft_id)))
    return msgspec.structs.replace(current, learners=learners)


def promote(current: Configuration, raft_id: str) -> Configuration:
    """The configuration in which a copy votes. Raises MembershipRefused."""
    if raft_id not in current.learners:
        raise MembershipRefused(f"{name_of(raft_id)} is no copy that could be promoted")
    return msgspec.structs.replace(
        current,
        voters=tuple(sorted((*current.voters, raft_id))),
        learners=tuple(learner for learner in current.learners if learner != raft_id),
    )


def distrust(current: Configuration, raft_id: str) -> Configuration:
    """The configuration in which a voter counts for nothing but the size of a majority."""
    assert current.trusts(raft_id)
    return msgspec.structs.replace(
        current, distrusted=tuple(sorted((*current.distrusted, raft_id)))
    )


def remove(current: Configuration, raft_id: str) -> Configuration:
    """The configuration without a member. Raises MembershipRefused."""
    if raft_id not in current.members:
        raise MembershipRefused(f"{name_of(raft_id)} is no core of this cluster")
    if current.voters == (raft_id,):
        raise MembershipRefused(f"{name_of(raft_id)} is the last voter: it cannot be removed")
    return Configuration(
        tuple(voter for voter in current.voters if voter != raft_id),
        tuple(learner for learner in current.learners if learner != raft_id),
        (*current.removed, raft_id)[-REMOVED_KEPT:],
        tuple(voter for voter in current.distrusted if voter != raft_id),
    )


def check_change(
    proposed: Configuration,
    *,
    latest_index: int,
    commit: int,
    first_index: int,
    alive: Collection[str],
    able: Collection[str],
    force: bool,
) -> None:
    """Raise MembershipRefused unless a leader may append `proposed` now.

    `latest_index`: of the configuration in force; `first_index`: of the leader's first entry;
    `alive`: the members that were heard within an election time-out, this leader included; `able`:
    those of them that hold the log but for CAUGHT_UP_ENTRIES.
    """
    if commit < first_index:
        raise MembershipRefused("the leader has only just been elected; try again")
    if latest_index > commit:
        raise MembershipRefused("another change of the members is not committed yet; try again")
    if not force:
        check_majority(proposed, alive, able)


def check_majority(proposed: Configuration, alive: Collection[str], able: Collection[str]) -> None:
    """Raise MembershipRefused if the cluster would stand still under that configuration."""
    if not proposed.majority(alive):
        counted = [voter for voter in alive if voter not in proposed.distrusted]
        apart = ""
        if proposed.distrusted:
            apart = f"; distrusted, so it does not count: {_names(proposed.distrusted)}"
        raise MembershipRefused(
            f"of the {len(proposed.voters)} voters after the change too few can be heard (alive: "
            f"{_names(counted)}{apart}): the cluster would stand still. Start more of them, remove "
            f"one that is distrusted first, or force it"
        )
    if not proposed.majority(able):
        behind = [voter for voter in proposed.voters if voter in alive and voter not in able]
        raise MembershipRefused(
            f"of the {len(proposed.voters)} voters after the change too few hold the log (up to "
            f"date: {_names(able)}; heard, but behind: {_names(behind)}): nothing could be "
            f"committed until they have caught up. Wait for them, remove one that cannot catch "
            f"up first, or force it"
        )


def _names(members: Collection[str]) -> str:
    return ", ".join(sorted(name_of(member) for member in members)) or "none"
