"""A TCP proxy that puts a distance between two real processes: delay, a cut, silence.

    far = Distance("127.0.0.1", port, delay_s=0.05)
    await far.start()                    # far.port stands for the port of the target
    far.cut()                            # connections are reset, new ones too
    far.mute()                           # half-open: connections stay, nothing passes
    far.heal()
    await far.close()

Each byte arrives `delay_s` after it was sent, in each direction, and in order: what was sent in one
second also arrives in one second, so a delay costs no throughput by itself. A direction holds at
most `BUFFER_BYTES` that are on their way; then it stops reading, as a full network path does. A
change of `delay_s` counts from the next bytes on, which never overtake the earlier ones.

Connections of the proxy are TCP's own: they are accepted at once, so making a connection seems to
take no time. Whoever wants the first exchange to be as slow as in truth counts on its answer, which
has both delays in it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

__all__ = ["Distance"]

#: On their way in one direction of one connection: 100 MB/s at 150 ms, more than a test sends.
BUFFER_BYTES = 16 * 1024 * 1024
CHUNK_BYTES = 64 * 1024


class Distance:
    """One way to one target. `delay_s` may be changed at any time.

    `connections`: those that were accepted, ever. `passed`: bytes, in both directions.
    """

    def __init__(self, host: str, port: int, *, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        self.connections = 0
        self.passed = 0
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None], tuple[asyncio.StreamWriter, ...]] = {}
        self._is_cut = False
        self._flows = asyncio.Event()
        self._flows.set()

    @property
    def port(self) -> int:
        """Where the target seems to be, at 127.0.0.1. Known after `start`."""
        assert self._server is not None, "start the proxy first"
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def open_connections(self) -> int:
        return len(self._open)

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", port)

    def retarget(self, port: int) -> None:
        """New connections go to this port."""
        self._target = (self._target[0], port)

    def cut(self) -> None:
        """Reset every connection, and new ones as soon as they are made."""
        self._is_cut = True
        self._flows.set()
        for writers in list(self._open.values()):
            for writer in writers:
                writer.transport.abort()

    def mute(self) -> None:
        """Let nothing pass any more, and end nothing: neither side is told."""
        self._flows.clear()

    def heal(self) -> None:
        self._is_cut = False
        self._flows.set()

    async def close(self) -> None:
        self.cut()
        if self._server is not None:
            self._server.close()
        tasks = list(self._open)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.connections += 1
        self._open[task] = (writer,)
        far_writer: asyncio.StreamWriter | None = None
        try:
            if self._is_cut:
                return
            far_reader, far_writer = await asyncio.open_connection(*self._target)
            self._open[task] = (writer, far_writer)
            if not self._is_cut:
                await self._join((reader, writer), (far_reader, far_writer))
        except OSError:
            pass  # the target is not there: so is the proxy not, for whoever connected
        except asyncio.CancelledError:
            # `close` ends us, and waits for it; asyncio's own callback for this task, which asks it
            # for its exception, would report a cancelled one as an error.
            pass
        finally:
            del self._open[task]
            for each in (writer, far_writer):
                if each is not None:
                    each.transport.abort()

    async def _join(
        self,
        near: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        far: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        there = asyncio.ensure_future(_Direction(self, near[0], far[1]).run())
        back = asyncio.ensure_future(_Direction(self, far[0], near[1]).run())
        try:
            # A side that has said all it wants to say may still be answered.
            await asyncio.gather(there, back)
        except OSError:
            pass  # one side is gone, and so is the other, below
        finally:
            there.cancel()
            back.cancel()
            await asyncio.gather(there, back, return_exceptions=True)

    async def flowing(self) -> None:
        await self._flows.wait()


class _Direction:
    """Reads as fast as it may, writes each chunk when its time has come."""

    def __init__(
        self, distance: Distance, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._distance = distance
        self._reader = reader
        self._writer = writer
        self._way: deque[tuple[float, bytes]] = deque()
        self._bytes = 0
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    async def run(self) -> None:
        reading = asyncio.ensure_future(self._read())
        try:
            await self._write()
            await reading
        finally:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await reading

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._room.wait()
            try:
                chunk = await self._reader.read(CHUNK_BYTES)
            except OSError:
                chunk = b""
            self._way.append((loop.time() + self._distance.delay_s, chunk))
            self._bytes += len(chunk)
            if self._bytes >= BUFFER_BYTES:
                self._room.clear()
            self._news.set()
            if not chunk:
                return

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while not self._way:
                self._news.clear()
                await self._news.wait()
            due, chunk = self._way[0]
            if due > loop.time():
                await asyncio.sleep(due - loop.time())
            await self._distance.flowing()
            self._way.popleft()
            if not chunk:
                if self._writer.can_write_eof():
                    self._writer.write_eof()
                return
            self._writer.write(chunk)
            await self._writer.drain()
            self._distance.passed += len(chunk)
            self._bytes -= len(chunk)
            if self._bytes < BUFFER_BYTES:
                self._room.set()
