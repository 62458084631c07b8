"""PySyncObj as it comes from the index: three members on loopback, callers inside them.

It is what raftkv's consensus stands on, in the version that raftkv pins, without anything of
raftkv's. `stock_node.py` is the process of a member.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

from bench.asked import AskedProcess
from bench.peers.peer import PeerFailed
from bench.peers.stock_node import Answer, Setup, Where
from raftkv.cli.ports import free_ports

__all__ = ["Stock", "StockMember", "version"]

START_TIMEOUT_S: Final = 30.0
_POLL_S: Final = 0.1
_HOST: Final = "127.0.0.1"


class StockMember(AskedProcess[Answer]):
    """One process of `bench.peers.stock_node`."""


def version() -> str:
    """Of the installed library."""
    return importlib.metadata.version("pysyncobj")


class Stock:
    """Three members, in one of the WAYS, that run within the context.

    `directory` must exist and is the caller's to remove. Raises `PeerFailed` when nobody leads.
    """

    def __init__(self, directory: Path, way: str, *, members: int = 3) -> None:
        addresses = [f"{_HOST}:{port}" for port in free_ports(members)]
        self._members = {
            me: StockMember(
                f"stock{number}",
                "bench.peers.stock_node",
                Setup(me, [each for each in addresses if each != me], way, str(directory / me)),
                Answer,
                directory,
            )
            for number, me in enumerate(addresses)
        }

    async def __aenter__(self) -> Stock:
        try:
            for member in self._members.values():
                await member.spawn()
            await asyncio.gather(*(member.answer() for member in self._members.values()))
            await self.leader()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._end()

    async def _end(self) -> None:
        await asyncio.gather(*(member.end() for member in self._members.values()))

    @property
    def members(self) -> Sequence[StockMember]:
        return list(self._members.values())

    @property
    def pids(self) -> Sequence[int]:
        return [member.pid for member in self._members.values() if member.pid is not None]

    async def leader(self) -> StockMember:
        """Whom all members take for the leader, once they do."""
        until_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < until_s:
            told = await asyncio.gather(*(each.ask(Where()) for each in self._members.values()))
            leaders = {each.leader for each in told}
            if len(leaders) == 1 and all(each.ready for each in told):
                return self._members[leaders.pop()]
            await asyncio.sleep(_POLL_S)
        raise PeerFailed(f"pysyncobj: no leader after {START_TIMEOUT_S:.0f} s")
