"""Distributed transactions at the door: XA's verbs below `/v1/txqueue/dtx/` (door.py has the list).

A xid stands in the path as `format:global:branch`, the last two in hexadecimal. What a session does
in a branch (start, stage, end) is asked of the session's node; every node answers for the rest, for
a branch that has been ended belongs to nobody. Prepare and rollback may be repeated until they are
heard. So may a commit, but a branch that is committed is gone: the second one is told "unknown
xid", and `GET dtx/{xid}` tells that it was committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeVar

from raftkv.plugin import (
    BadRequest,
    Handler,
    Host,
    Request,
    Response,
    body_of,
    fresh,
    only_query,
    query_number,
)

from .api import TxQueueApi
from .bodies import (
    LIST_MAX,
    NUMBER_MAX,
    WantedCommitBranch,
    WantedEnd,
    WantedHeuristic,
    WantedStageBranch,
    WantedStart,
    WantedTimeout,
    WantedVerb,
    operation_of,
)
from .contents import SEQS_DEFAULT, content_of
from .door_sessions import DoorSessions
from .dtx import branch_of
from .refusals import NotInBranch
from .reports import branch_outcome_report, branches_report
from .xa import XaStatus, Xid, xid_from_text

__all__ = ["BranchDoor"]

BodyT = TypeVar("BodyT")
Method = Literal["GET", "PUT", "POST", "DELETE"]


class BranchDoor:
    """The handlers of one node."""

    def __init__(self, host: Host, api: TxQueueApi, sessions: DoorSessions) -> None:
        self._host = host
        self._api = api
        self._sessions = sessions

    def routes(self) -> Sequence[tuple[Method, str, Handler, str]]:
        """Method, path, handler and doc of each."""
        return (
            ("GET", "dtx", self.branches, "All branches."),
            ("GET", "dtx/recover", self.recover, "Prepared branches, and those decided by hand."),
            ("GET", "dtx/{xid}", self.branch, "A branch, or what became of it."),
            ("POST", "dtx/{xid}/start", self.start, "Let a session work in a branch."),
            ("POST", "dtx/{xid}/stage", self.stage, "Do operations in a branch."),
            ("POST", "dtx/{xid}/end", self.end, "Let the session leave the branch."),
            ("POST", "dtx/{xid}/prepare", self.prepare, "Promise that it can be committed."),
            ("POST", "dtx/{xid}/commit", self.commit, "Commit a branch."),
            ("POST", "dtx/{xid}/rollback", self.rollback, "Roll a branch back."),
            ("POST", "dtx/{xid}/forget", self.forget, "Forget one that was decided by hand."),
            ("POST", "dtx/{xid}/timeout", self.set_timeout, "Give a branch another time-out."),
            ("POST", "dtx/{xid}/heuristic", self.heuristic, "Decide a prepared branch by hand."),
        )

    # --- looking ---

    async def branches(self, request: Request) -> Response:
        only_query(request, "consistency")
        await fresh(self._host, request)
        found = branches_report(self._api.dtx.branches())
        return Response({"branches": found, "now_ms": self._host.now_ms()})

    async def recover(self, request: Request) -> Response:
        only_query(request)
        found = branches_report(await self._api.dtx.recover())
        return Response({"branches": found, "now_ms": self._host.now_ms()})

    async def branch(self, request: Request) -> Response:
        only_query(request, "queue", "from", "limit")
        queue = request.query.get("queue", "")
        first = query_number(request, "from", 1, 1, NUMBER_MAX)
        limit = query_number(request, "limit", SEQS_DEFAULT, 1, LIST_MAX)
        xid = _xid(request)
        outcome = await self._api.dtx.outcome(xid)
        # Of the copy that was fresh a moment ago: no await in between.
        view = self._host.view()
        number = view.table("branches").get(xid.key)
        if number is None:
            return Response(branch_outcome_report(outcome))
        row = view.table("transactions")[number]
        content = content_of(view, number, row, queue, first, limit)
        return Response(branch_outcome_report(outcome, branch_of(view, xid, row), content))

    # --- sessions in branches ---

    async def start(self, request: Request) -> Response:
        xid, asked = _asked(request, WantedStart)
        async with self._sessions.using(asked.session) as used:
            status = await used.session.start(
                xid, join=asked.join, resume=asked.resume, timeout_s=asked.timeout_s
            )
        return _told(xid, status)

    async def stage(self, request: Request) -> Response:
        xid, asked = _asked(request, WantedStageBranch)
        operations = [operation_of(each) for each in asked.operations]
        async with self._sessions.using(asked.session) as used:
            if used.session.branch != xid:
                raise NotInBranch(used.session.id)
            sent = await used.take(str(xid), operations, asked.at)
        return Response({"xid": str(xid), "operations": sent})

    async def end(self, request: Request) -> Response:
        xid, asked = _asked(request, WantedEnd)
        async with self._sessions.using(asked.session) as used:
            status = await used.session.end(xid, suspend=asked.suspend, fail=asked.fail)
        return _told(xid, status)

    # --- deciding ---

    async def prepare(self, request: Request) -> Response:
        xid, asked = _asked(request, WantedVerb)
        return _told(xid, await self._api.dtx.prepare(xid, timeout_s=asked.timeout_s))

    async def commit(self, request: Request) -> Response:
        xid, asked = _asked(request, WantedCommitBranch)
        done = await self._api.dtx.commit(xid, asked.one_phase, timeout_s=asked.timeout_s)
        return _told(xid, done)

    async def rollback(self, request: Request) -> Response:
        xid, asked = _asked(request, WantedVerb)
        return _told(xid, await self._api.dtx.rollback(xid, timeout_s=asked.timeout_s))

    async def forget(self, request: Request) -> Response:
        xid, asked = _asked(request, WantedVerb)
        return _told(xid, await self._api.dtx.forget(xid, timeout_s=asked.timeout_s))

    async def set_timeout(self, request: Request) -> Response:
        xid, asked = _asked(request, WantedTimeout)
        return _told(xid, await self._api.dtx.set_timeout(xid, asked.seconds))

    async def heuristic(self, request: Request) -> Response:
        xid, asked = _asked(request, WantedHeuristic)
        act = (
            self._api.dtx.heuristic_commit
            if asked.decide == "commit"
            else self._api.dtx.heuristic_rollback
        )
        return _told(xid, await act(xid, asked.reason))


def _asked(request: Request, kind: type[BodyT]) -> tuple[Xid, BodyT]:
    only_query(request)
    return _xid(request), body_of(request, kind)


def _xid(request: Request) -> Xid:
    try:
        return xid_from_text(request.params["xid"])
    except ValueError as error:
        raise BadRequest(str(error)) from None


def _told(xid: Xid, status: XaStatus) -> Response:
    return Response({"xid": str(xid), "status": int(status), "name": status.name})
