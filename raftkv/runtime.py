"""The only door to time, chance, files, streams and threads.

Everything below `raftkv/` that must wait, draw a random number, touch a disk or speak to another
process does it through a `Runtime`. The real one is asyncio (on uvloop where it is installed) and
the operating system; the simulated world (`raftkv.testing`) brings another with a virtual clock,
an in-memory network and a disk that forgets what was not synced. A test of imports keeps `time`,
`random`, `socket`, `threading` and file access out of every other module of the engine.

Rules of this file: no policy. A method does one thing and reports errors as `OSError`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import random
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from queue import SimpleQueue
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from .fork import not_for_children
from .streams import OsStreams

__all__ = [
    "File",
    "Files",
    "Listener",
    "Lock",
    "OsFiles",
    "OsRuntime",
    "OsWorker",
    "Runtime",
    "Space",
    "Timer",
]


class File(Protocol):
    """An open file without any buffering of ours."""

    def write(self, data: bytes) -> None:
        """Append all of `data` (mode a, w), or raise OSError."""

    def pread(self, offset: int, count: int) -> bytes:
        """Up to `count` bytes from `offset`; fewer only at the end of the file."""

    def truncate(self, size: int) -> None: ...

    def datasync(self) -> None:
        """Return once the content is on stable storage, or raise OSError."""

    def size(self) -> int: ...

    def close(self) -> None: ...


class Lock(Protocol):
    """An exclusive lock that the operating system releases with the process."""

    def release(self) -> None: ...

    def moved(self) -> bool:
        """Whether the locked file is no longer the one at its path. May block."""


class Space(NamedTuple):
    """The room on a volume, in bytes. What a quota of a user still allows is not seen here."""

    free_bytes: int
    total_bytes: int


class Files(Protocol):
    """A file system. Paths are strings; directories must exist before files are opened in them."""

    def makedirs(self, path: str) -> None:
        """Create the directory and its parents, durably; no error if it exists."""

    def listdir(self, path: str) -> list[str]:
        """Names in the directory, sorted."""

    def exists(self, path: str) -> bool: ...

    def open(self, path: str, mode: Literal["r", "a", "w"]) -> File:
        """r: read; a: create or append; w: create or truncate. a and w may also be read."""

    def rename(self, source: str, target: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def sync_dir(self, path: str) -> None:
        """Make creations, renames and removals inside the directory durable."""

    def space(self, path: str) -> Space:
        """The room on the volume that holds this directory. May block."""

    def lock(self, path: str) -> Lock:
        """Take an exclusive lock on a file (created); raises BlockingIOError when it is held."""


class Timer(Protocol):
    def cancel(self) -> None: ...


class Listener(Protocol):
    @property
    def port(self) -> int: ...

    def close(self) -> None:
        """Stop accepting. Connections that were accepted stay."""


ProtocolFactory = Callable[[], asyncio.Protocol]


class Runtime(Protocol):
    """What a node may ask of the world. All methods are called on the node's event loop."""

    files: Files
    rng: random.Random
    # Whether streams may carry TLS here: OpenSSL reads certificates from the real file system and
    # draws its own random numbers, so a world that must replay a seed has none.
    has_tls: bool

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970; may jump."""

    def token(self, count: int) -> bytes:
        """`count` unpredictable bytes."""

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None: ...

    def call_later(self, delay_s: float, callback: Callable[..., object], *args: Any) -> Timer: ...

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]: ...

    def future(self) -> asyncio.Future[Any]: ...

    def offload(self, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Run blocking work in the node's single worker thread, in the order of the calls."""

    def offload_bulk(self, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """The same in a second thread, for work that may take long and nobody waits for."""

    async def sleep(self, delay_s: float) -> None: ...

    async def listen(self, factory: ProtocolFactory, host: str, port: int) -> Listener: ...

    async def connect(
        self, factory: ProtocolFactory, host: str, port: int
    ) -> asyncio.Transport: ...

    def close(self) -> None:
        """Release the worker thread. The last call."""


class OsFile:
    """A file of the operating system. A forked child would hold the space of a removed one."""

    def __init__(self, path: str, flags: int) -> None:
        self._path = path
        self._fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
        not_for_children(self)

    def descriptors(self) -> list[int]:
        """What a forked child must not keep."""
        return [self._fd] if self._fd >= 0 else []

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]
        if os.fstat(self._fd).st_nlink == 0:
            # What is written there is lost with the last descriptor.
            raise OSError(errno.ENOENT, "the file was removed while the node ran", self._path)

    def pread(self, offset: int, count: int) -> bytes:
        parts = []
        while count > 0:
            part = os.pread(self._fd, count, offset)
            if not part:
                break
            parts.append(part)
            offset += len(part)
            count -= len(part)
        return b"".join(parts)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def datasync(self) -> None:
        os.fdatasync(self._fd)

    def sync(self) -> None:
        """As `datasync`, for a directory."""
        os.fsync(self._fd)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        # Forgotten first: once it is closed, the number may be of another file, of a child's.
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class OsLock:
    """flock(2) on a file that stays."""

    def __init__(self, path: str) -> None:
        self._path = os.path.abspath(path)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        not_for_children(self)  # before it is locked: a fork may come between
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            fd, self._fd = self._fd, -1
            os.close(fd)
            raise

    def descriptors(self) -> list[int]:
        """What a forked child must not keep."""
        return [self._fd] if self._fd >= 0 else []

    def moved(self) -> bool:
        if self._fd < 0:
            return False
        ours = os.fstat(self._fd)
        try:
            there = os.stat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            return True
        return (ours.st_ino, ours.st_dev) != (there.st_ino, there.st_dev)

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            # A process that is being started has the file too, until it runs its own program.
            try:
                fcntl.flock(fd, fcntl.LOCK_UN)
            finally:
                os.close(fd)


class OsFiles:
    """The real file system."""

    _FLAGS: ClassVar[dict[str, int]] = {
        "r": os.O_RDONLY,
        "a": os.O_RDWR | os.O_CREAT | os.O_APPEND,
        "w": os.O_RDWR | os.O_CREAT | os.O_TRUNC,
    }

    def makedirs(self, path: str) -> None:
        missing = []
        path = os.path.abspath(path)
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for directory in reversed(missing):
            os.makedirs(directory, mode=0o700, exist_ok=True)
            self.sync_dir(os.path.dirname(directory))

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def open(self, path: str, mode: Literal["r", "a", "w"]) -> OsFile:
        return OsFile(path, self._FLAGS[mode])

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def remove(self, path: str) -> None:
        os.remove(path)

    def sync_dir(self, path: str) -> None:
        directory = OsFile(path or ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            directory.sync()
        finally:
            directory.close()

    def space(self, path: str) -> Space:
        found = os.statvfs(path)
        return Space(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)

    def lock(self, path: str) -> OsLock:
        return OsLock(path)


# A job: the future of the loop, the function and its arguments. None ends the thread.
_Job = tuple["asyncio.Future[Any]", Callable[..., Any], tuple[Any, ...]]


class OsWorker:
    """A thread that runs blocking work, one call after the other, for one event loop.

    Every entry of the log passes through one, on each core, and with few callers nothing shares
    the way there and back. An executor of the standard library spends two futures, a condition
    and a semaphore on a call; this one a future and a queue, half the processor time.

    The thread starts with the first call. It is a daemon: a process that ends without `close` is
    to the disk as one that was killed, and must not wait for anybody.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._name = name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, function: Callable[..., Any], args: tuple[Any, ...]) -> asyncio.Future[Any]:
        """Run it after all that was submitted before; not at all if it is cancelled by then."""
        if self._closed:
            raise RuntimeError("the runtime is closed: its worker takes no more work")
        if self._thread is None:
            arguments = (self._loop, self._jobs)
            thread = threading.Thread(target=_work, args=arguments, name=self._name, daemon=True)
            thread.start()  # may fail: then the next call tries again
            self._thread = thread
            # A worker that is forgotten takes its thread along.
            weakref.finalize(self, self._jobs.put, None)
        future = self._loop.create_future()
        self._jobs.put((future, function, args))
        return future

    def close(self) -> None:
        """Take no more work. What was submitted before is still done; nobody waits for it here."""
        if not self._closed:
            self._closed = True
            self._jobs.put(None)


def _work(loop: asyncio.AbstractEventLoop, jobs: SimpleQueue[_Job | None]) -> None:
    """The worker's thread."""
    while (job := jobs.get()) is not None:
        future, function, args = job
        if not future.cancelled():
            result, error = None, None
            try:
                result = function(*args)
            except BaseException as caught:
                error = caught
            # A loop that has been closed meanwhile has nobody left who waits.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_deliver, future, result, error)
            del result, error
        # Else what it holds would live on until the next job.
        del job, future, function, args


def _deliver(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if isinstance(error, StopIteration):
        # A future refuses it, and whoever waits would take it for the end of his own work.
        stopped, error = error, RuntimeError("blocking work ended with StopIteration")
        error.__cause__ = stopped
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


class OsRuntime:
    """The real world: the running event loop and the operating system."""

    def __init__(self) -> None:
        self.files: Files = OsFiles()
        self.rng = random.Random(secrets.randbits(64))
        self.has_tls = True
        self._loop = asyncio.get_running_loop()
        # Called for each command: without a call in between.
        self.monotonic: Callable[[], float] = time.monotonic
        self.future: Callable[[], asyncio.Future[Any]] = self._loop.create_future
        self._worker = OsWorker(self._loop, "raftkv-disk")
        self._bulk = OsWorker(self._loop, "raftkv-bulk")
        self._tasks: set[asyncio.Task[Any]] = set()
        self._streams = OsStreams(self._loop)

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def token(self, count: int) -> bytes:
        return secrets.token_bytes(count)

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        self._loop.call_soon(callback, *args)

    def call_later(self, delay_s: float, callback: Callable[..., object], *args: Any) -> Timer:
        return self._loop.call_later(delay_s, callback, *args)

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = self._loop.create_task(coroutine, name=name)
        # The loop keeps only weak references to tasks; ours must outlive their last `await`.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def offload(self, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        return self._worker.submit(function, args)

    def offload_bulk(self, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        return self._bulk.submit(function, args)

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)

    async def listen(self, factory: ProtocolFactory, host: str, port: int) -> Listener:
        return await self._streams.listen(factory, host, port)

    async def connect(self, factory: ProtocolFactory, host: str, port: int) -> asyncio.Transport:
        return await self._streams.connect(factory, host, port)

    def close(self) -> None:
        self._worker.close()
        self._bulk.close()
