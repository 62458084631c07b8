"""A TX as a block: `async with session.transaction() as tx`."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self

from raftkv.errors import RaftkvError, again
from raftkv.validation import checked

from .refusals import TransactionOver

if TYPE_CHECKING:
    from .consuming import Delivery
    from .session import Session
    from .transaction import Committed, Outgoing, Transaction

__all__ = ["Scope"]


@checked
class Scope:
    """One TX of a session. Its end commits it; an exception rolls it back and goes on.

    `receipt`: what the commit answered. The block raises what `session.commit` does.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._transaction: Transaction | None = None
        self.receipt: Committed | None = None

    @property
    def txid(self) -> str:
        """Its name, for `outcome`; "" before its first operation."""
        return "" if self._transaction is None else self._transaction.txid

    async def publish(
        self,
        queue: str,
        what: Outgoing,
        *,
        ttl_s: float | None = None,
        delay_s: float | None = None,
    ) -> None:
        """As `session.publish`. Raises `TransactionOver` once it was ended."""
        self._require_running()
        await self._session.publish(queue, what, ttl_s=ttl_s, delay_s=delay_s)

    async def accept(self, *deliveries: Delivery) -> None:
        """As `session.accept`. Raises `TransactionOver` once it was ended."""
        self._require_running()
        await self._session.accept(*deliveries)

    def _require_running(self) -> None:
        transaction = self._transaction
        if transaction is None or not self._session.is_running(transaction):
            raise TransactionOver(self.txid)

    async def __aenter__(self) -> Self:
        self._transaction = self._session.enter()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._transaction is not None
        if not self._session.is_running(self._transaction):
            if error is None and self._transaction.aborted is not None:
                raise again(self._transaction.aborted)
            return  # ended inside the block
        if error is None:
            self.receipt = await self._session.commit()
            return
        # It is decided with the call, and the block's own exception matters more.
        with suppress(RaftkvError):
            await self._session.rollback(type(error).__name__)
