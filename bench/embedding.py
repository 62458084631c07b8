"""Cores as processes of their own with a door each, and callers inside them, for benchmarks.

The coordinator's side of `bench.embedded_node`. Nothing outlives it: leaving the context ends all
processes, and a process whose standard input closes ends itself.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import msgspec

from bench.control import LINE_BYTES_MAX
from bench.embedded_node import Answer, Ask, Where
from bench.layouts import ROOT, Layout, WorkerFailed, node_configs
from raftkv.config import NodeConfig

__all__ = ["Cores", "Member"]

PATIENCE_S = 900.0
STOP_TIMEOUT_S = 30.0
LEADER_TIMEOUT_S = 30.0
_POLL_S = 0.1


class Member:
    """One process of `bench.embedded_node`."""

    def __init__(self, name: str, config: NodeConfig, directory: Path) -> None:
        self.name = name
        self._file = directory / f"{name}.json"
        self._log = directory / f"{name}.log"
        self._file.write_bytes(msgspec.json.encode(config))
        self._process: asyncio.subprocess.Process | None = None
        self._decode = msgspec.json.Decoder(Answer).decode

    @property
    def pid(self) -> int | None:
        """The process, if it runs."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if running and self._process is not None else None

    async def spawn(self) -> None:
        """Start it; `answer` then waits until it is ready."""
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'plugins'}"}
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "bench.embedded_node", str(self._file),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                limit=LINE_BYTES_MAX, env=environment, preexec_fn=_ignore_interrupt,
            )  # fmt: skip

    async def ask(self, ask: Ask) -> Answer:
        """Raises `WorkerFailed` when it could not be done."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(ask) + b"\n")
        await self._process.stdin.drain()
        return await self.answer()

    async def answer(self) -> Answer:
        """The next answer. Raises `WorkerFailed`."""
        assert self._process is not None
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            line = await self._process.stdout.readline()
        if not line.endswith(b"\n"):
            words = self._log.read_text(encoding="utf-8", errors="replace").strip()
            raise WorkerFailed(f"{self.name} ended. Its last words:\n{words[-2000:]}")
        answer = self._decode(line)
        if answer.error:
            raise WorkerFailed(f"{self.name}: {answer.error}")
        return answer

    async def end(self) -> None:
        """Ask it to stop cleanly, then make it."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


class Cores:
    """Three cores (or one, or five) that run within the context, with fsync on.

    `directory` must exist and is the caller's to remove.
    """

    def __init__(self, directory: Path, *, layout: str = "3") -> None:
        configs = node_configs(Layout.parse(layout), directory, "on")
        self.members = [Member(name, config, directory) for name, config in configs.items()]

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


def _ignore_interrupt() -> None:
    """Ctrl-C goes to the whole group; what to do about it is the coordinator's to say."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
