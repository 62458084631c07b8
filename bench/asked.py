"""A process of ours that is asked over its standard input and answers over its standard output.

Nothing outlives the coordinator: a process whose standard input closes ends itself.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec

from bench.control import LINE_BYTES_MAX
from bench.layouts import ROOT, WorkerFailed
from bench.setups import encoded

__all__ = ["AskedProcess"]

PATIENCE_S = 900.0
STOP_TIMEOUT_S = 30.0


class _Answer(Protocol):
    @property
    def error(self) -> str: ...


AnswerT = TypeVar("AnswerT", bound=_Answer)


class AskedProcess(Generic[AnswerT]):
    """`python -m module FILE`, where FILE holds `setup` as JSON; answers are of `kind`.

    `code`: the directory whose packages it runs, this checkout's unless it is given.
    """

    def __init__(
        self,
        name: str,
        module: str,
        setup: msgspec.Struct,
        kind: type[AnswerT],
        directory: Path,
        code: Path = ROOT,
    ) -> None:
        self.name = name
        self._code = code
        self._module = module
        self._file = directory / f"{name}.json"
        self._log = directory / f"{name}.log"
        self._file.write_bytes(encoded(setup))
        self._process: asyncio.subprocess.Process | None = None
        self.decode = msgspec.json.Decoder(kind).decode

    @property
    def pid(self) -> int | None:
        """The process, if it runs."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if running and self._process is not None else None

    async def spawn(self) -> None:
        """Start it; `answer` then waits until it is ready."""
        paths = f"{self._code}{os.pathsep}{self._code / 'plugins'}"
        environment = {**os.environ, "PYTHONPATH": paths, "PYTHONSAFEPATH": "1"}
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", self._module, str(self._file),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                limit=LINE_BYTES_MAX, env=environment, preexec_fn=_ignore_interrupt,
            )  # fmt: skip

    async def ask(self, ask: msgspec.Struct) -> AnswerT:
        """Raises `WorkerFailed` when it could not be done."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(ask) + b"\n")
        await self._process.stdin.drain()
        return await self.answer()

    async def answer(self) -> AnswerT:
        """The next answer. Raises `WorkerFailed`."""
        assert self._process is not None
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            line = await self._process.stdout.readline()
        if not line.endswith(b"\n"):
            words = self._log.read_text(encoding="utf-8", errors="replace").strip()
            raise WorkerFailed(f"{self.name} ended. Its last words:\n{words[-2000:]}")
        answer = self.decode(line)
        if answer.error:
            raise WorkerFailed(f"{self.name}: {answer.error}")
        return answer

    async def kill(self) -> None:
        """SIGKILL. What it wrote stays: after `spawn` and `answer` it is back as its old self."""
        process = self._process
        assert process is not None
        process.kill()
        await process.wait()

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


def _ignore_interrupt() -> None:
    """Ctrl-C goes to the whole group; what to do about it is the coordinator's to say."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
