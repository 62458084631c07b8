"""Cores as processes of their own with a door each, and callers inside them, for benchmarks.

The coordinator's side of `bench.embedded_node`. Nothing outlives it: leaving the context ends all
processes, and a process whose standard input closes ends itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from bench.asked import AskedProcess
from bench.embedded_node import Answer, Setup, Where
from bench.layouts import ROOT, Layout, WorkerFailed, node_configs

__all__ = ["Cores", "Member"]

LEADER_TIMEOUT_S = 30.0
SETTLE_TIMEOUT_S = 60.0
_POLL_S = 0.1


class Member(AskedProcess[Answer]):
    """One process of `bench.embedded_node`."""

    def __init__(self, name: str, setup: Setup, directory: Path, code: Path = ROOT) -> None:
        super().__init__(name, "bench.embedded_node", setup, Answer, directory, code)


class Cores:
    """Three cores (or one, or five) that run within the context, with fsync on.

    `directory` must exist and is the caller's to remove. With `registry` they run the Linear
    Channel Registry, too, with `limbo` the limbo, and with `txqueue` the queues. `code`: the
    directory whose packages they run.
    """

    def __init__(
        self,
        directory: Path,
        *,
        layout: str = "3",
        registry: bool = False,
        limbo: bool = False,
        txqueue: bool = False,
        code: Path = ROOT,
    ) -> None:
        configs = node_configs(Layout.parse(layout), directory, "on")
        self.members = [
            Member(name, Setup(config, registry, limbo, txqueue), directory, code)
            for name, config in configs.items()
        ]

    async def __aenter__(self) -> Cores:
        try:
            for member in self.members:
                await member.spawn()
            await asyncio.gather(*(member.answer() for member in self.members))
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
        await asyncio.gather(*(member.end() for member in self.members))

    @property
    def pids(self) -> Sequence[int]:
        return [member.pid for member in self.members if member.pid is not None]

    async def snapshotting(self) -> bool:
        """Whether a member writes a snapshot now."""
        running = [each for each in self.members if each.pid is not None]
        return any([(await each.ask(Where())).snapshotting for each in running])

    async def settled(self) -> None:
        """Wait until no member writes a snapshot: that is the work of the load that came before."""
        until_s = time.monotonic() + SETTLE_TIMEOUT_S
        while await self.snapshotting():
            if time.monotonic() > until_s:
                raise WorkerFailed(f"a core writes a snapshot for over {SETTLE_TIMEOUT_S:.0f} s")
            await asyncio.sleep(_POLL_S)

    async def caught_up(self) -> None:
        """Wait until every member that runs has applied what the leader had applied just now."""
        _, answer = await self.leader()
        until_s = time.monotonic() + SETTLE_TIMEOUT_S
        running = [each for each in self.members if each.pid is not None]
        while any([(await each.ask(Where())).applied < answer.applied for each in running]):
            if time.monotonic() > until_s:
                raise WorkerFailed(f"a core is behind for over {SETTLE_TIMEOUT_S:.0f} s")
            await asyncio.sleep(_POLL_S)

    async def cpu_s(self) -> float:
        """Processor time of all members so far."""
        running = [each for each in self.members if each.pid is not None]
        return sum([(await each.ask(Where())).cpu_s for each in running])

    async def leader(self) -> tuple[Member, Answer]:
        """The leader and what it says of itself. Raises `WorkerFailed` when there is none."""
        until_s = time.monotonic() + LEADER_TIMEOUT_S
        while time.monotonic() < until_s:
            answers = await asyncio.gather(
                *(each.ask(Where()) for each in self.members if each.pid is not None)
            )
            running = [each for each in self.members if each.pid is not None]
            for member, answer in zip(running, answers, strict=True):
                if answer.role == "leader":
                    return member, answer
            await asyncio.sleep(_POLL_S)
        raise WorkerFailed("no core leads")
