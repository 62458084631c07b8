"""Injected bugs of authority that does not come from the log; see planted.py.

A node that believes any newer epoch stands in injected_hostile.py, calls that the table of
permissions denies in injected_identity.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from raftkv import bootstrap, member_changes, permissions, relaying
from raftkv.dialback import DialBack
from raftkv.namesakes import Namesakes
from raftkv.parts import CorePart
from raftkv.permissions import End, Verdict
from raftkv.promotion import Promotion
from raftkv.raft import wire
from raftkv.raft.leading import Leading
from raftkv.raft.membership import Configuration
from raftkv.testing.patching import around
from raftkv.testing.planting import BUGS, Bug, wrapping

__all__: list[str] = []


# The table of permissions -------------------------------------------------------------------------


def _messages_as_well(*kinds: type) -> contextlib.AbstractContextManager[None]:
    """These may arrive from a replicant, too."""

    def wrap(messages_at: Callable[..., frozenset[type]]) -> Callable[..., frozenset[type]]:
        def broken(purpose: str, *, dialled: bool) -> frozenset[type]:
            found = messages_at(purpose, dialled=dialled)
            upstream = permissions._ENDS[purpose, dialled] is End.UPSTREAM
            return found.union(kinds) if upstream else found

        return broken

    return around(permissions, "messages_at", wrap)


@contextlib.contextmanager
def _read_reply_from_a_replicant() -> Iterator[None]:
    def wrap(on_read_reply: Callable[..., None]) -> Callable[..., None]:
        def broken(part: CorePart, link: Any, message: wire.ReadReply) -> None:
            if link.purpose == "follow":
                part._reader.answered(message.number, message.index)
            else:
                on_read_reply(part, link, message)

        return broken

    with _messages_as_well(wire.ReadReply), around(CorePart, "_on_read_reply", wrap):
        yield


BUGS["read-reply-from-a-replicant"] = Bug(
    "a core takes an answer to its read from whichever node sends it",
    _read_reply_from_a_replicant,
    seeds_max=200,
)


@contextlib.contextmanager
def _consensus_from_a_replicant() -> Iterator[None]:
    def wrap(consensus: Callable[..., None]) -> Callable[..., None]:
        def broken(part: CorePart, link: Any, message: Any) -> None:
            part.engine.receive(link, message)

        return broken

    with _messages_as_well(wire.Append), around(CorePart, "_consensus", wrap):
        yield


BUGS["consensus-from-a-replicant"] = Bug(
    "the table of permissions is not asked for messages of consensus",
    _consensus_from_a_replicant,
    seeds_max=200,
)


@wrapping(
    "commands-not-judged",
    "the table of permissions is not asked for the commands of replicants",
    relaying,
    "judge_proposal",
    seeds_max=200,
)
def _commands_not_judged(_: Callable[..., Verdict]) -> Callable[..., Verdict]:
    def broken(*_: Any) -> Verdict:
        return Verdict.GRANTED

    return broken


# Names --------------------------------------------------------------------------------------------


@wrapping(
    "bootstrap-compares-nothing",
    "nodes whose files name different cores bootstrap a cluster together",
    bootstrap,
    "judge",
    seeds_max=200,
)
def _compares_nothing(_: Callable[..., Any]) -> Callable[..., Any]:
    def broken(*_: Any) -> None:
        return None

    return broken


@wrapping(
    "bootstrap-counts-accepted-links",
    "a cluster is bootstrapped with whatever claims to be its cores",
    DialBack,
    "counted",
    seeds_max=200,
)
def _counts_accepted_links(_: Callable[..., Any]) -> Callable[..., Any]:
    def broken(dial_back: DialBack, name: str) -> wire.Hello | None:
        return next((link.peer for link in dial_back._links(name)), None)

    return broken


@wrapping(
    "two-nodes-under-one-name",
    "a second replicant under a name is taken while the first one answers",
    Namesakes,
    "judge",
    seeds_max=200,
)
def _two_under_one_name(_: Callable[..., Any]) -> Callable[..., Any]:
    def broken(*_: Any) -> None:
        return None

    return broken


# Changes of the members ---------------------------------------------------------------------------


@contextlib.contextmanager
def _base_from_the_request() -> Iterator[None]:
    """What the leader holds committed when it asks first, at whatever index."""
    sent: dict[str, Configuration] = {}

    def wrap_ask(ask: Callable[..., Any]) -> Callable[..., Any]:
        async def broken(promotion: Any, name: str, raft_id: str, *rest: Any) -> None:
            engine = promotion._node._part.engine
            sent.setdefault(raft_id, engine.configurations.at(engine.commit))
            await ask(promotion, name, raft_id, *rest)

        return broken

    def wrap_check(check: Callable[..., Any]) -> Callable[..., Any]:
        def broken(promotion: Any, part: Any, since: int) -> Configuration:
            return sent[promotion._node.raft_id]

        return broken

    with around(Promotion, "ask", wrap_ask), around(Promotion, "_check", wrap_check):
        yield


BUGS["promotion-base-from-request"] = Bug(
    "a promoted replicant begins its log with the members that the leader named first",
    _base_from_the_request,
    seeds_max=200,
    members=True,
)


@wrapping(
    "done-before-committed",
    "a change of the members that is repeated is done once it is in the log",
    member_changes.MemberChange,
    "_committed",
    seeds_max=200,
    members=True,
)
def _done_before_committed(_: Callable[..., Any]) -> Callable[..., Any]:
    async def broken(change: member_changes.MemberChange) -> bool:
        return change._engine.leading is not None

    return broken


@wrapping(
    "heard-is-able",
    "a removal is judged by the voters that are heard, whether or not they hold the log",
    Leading,
    "able",
    seeds_max=200,
    members=True,
)
def _heard_is_able(able: Callable[..., list[str]]) -> Callable[..., list[str]]:
    def broken(leading: Leading, now: float) -> list[str]:
        voters = leading._engine.configuration.voters
        heard = [member for member in leading.alive(now) if member in voters]
        return sorted({*able(leading, now), *heard})

    return broken
