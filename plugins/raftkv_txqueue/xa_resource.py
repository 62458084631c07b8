"""What a coordinator asks of each resource manager: XA's verbs, and which answers are certain.

`NodeResource` is a node of this process; `DoorResource` (`door_resource.py`) a cluster behind its
door. Others may be written: whatever can promise to commit can take part.

An answer to a verb is one of three: a status; an error with an XA code (`xa`), which is certain
too; or any other error, after which nothing is known. Prepare, commit and rollback may then be
asked again, for each of them is answered alike the second time, except that what is completed is
not known any more (`XaError.NOT_FOUND`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from .xa import XaError, XaStatus, Xid

if TYPE_CHECKING:
    from .api import TxQueueApi
    from .dtx import Branch

__all__ = ["InDoubt", "NodeResource", "XaResource", "XaSession", "xa_error"]


class InDoubt(Protocol):
    """A branch that a resource's `recover` tells of."""

    @property
    def xid(self) -> Xid: ...

    @property
    def state(self) -> str:
        """ "prepared", "heuristically committed" or "heuristically rolled back"."""


class XaResource(Protocol):
    """A resource manager."""

    async def prepare(self, xid: Xid) -> XaStatus: ...

    async def commit(self, xid: Xid, one_phase: bool = False) -> XaStatus: ...

    async def rollback(self, xid: Xid) -> XaStatus: ...

    async def forget(self, xid: Xid) -> XaStatus: ...

    async def recover(self) -> Sequence[InDoubt]:
        """All branches that wait for a decision, of every coordinator; not an old copy of them."""


class XaSession(Protocol):
    """Where work is done under a branch: a session of kind "dtx"."""

    async def start(
        self, xid: Xid, *, join: bool = False, timeout_s: float | None = None
    ) -> XaStatus: ...

    async def end(self, xid: Xid, *, fail: bool = False) -> XaStatus: ...


class NodeResource:
    """A cluster, by one of its nodes in this process: `NodeResource(node.plugin(TxQueue))`."""

    def __init__(self, api: TxQueueApi) -> None:
        self._dtx = api.dtx

    async def prepare(self, xid: Xid) -> XaStatus:
        return await self._dtx.prepare(xid)

    async def commit(self, xid: Xid, one_phase: bool = False) -> XaStatus:
        return await self._dtx.commit(xid, one_phase)

    async def rollback(self, xid: Xid) -> XaStatus:
        return await self._dtx.rollback(xid)

    async def forget(self, xid: Xid) -> XaStatus:
        return await self._dtx.forget(xid)

    async def recover(self) -> Sequence[Branch]:
        return await self._dtx.recover()


def xa_error(error: BaseException) -> XaError | None:
    """The XA code of an error that is certain; None: nothing is known."""
    code: Any = getattr(error, "xa", None)
    return code if isinstance(code, XaError) else None
