"""Huge pages under the heap of a process that holds a large state.

The processor finds an address of memory through a table of pages, and remembers a few thousand of
its entries. With pages of 4 KiB these stand for some megabytes. A state of a million keys has a
hundred times as many, so nearly every step of a look-up (the dict's index, its entry, the key, the
row) begins with a walk through that table; in a virtual machine, through two. One huge page of
2 MiB stands for 512 of the small ones.

Python's allocator takes memory in pieces of 1 MiB, so the kernel never has the chance to give it a
huge page at once. `use_huge_pages` starts a thread that has the small pages exchanged afterwards
(MADV_COLLAPSE, Linux 6.1): addresses and contents stay as they are.

Rules of this file
1. Only ranges that are nearly full are exchanged (DENSE_PAGES). So the process grows by a seventh
   at the very worst, and stacks and buffers, which are mapped large and used little, stay as they
   are.
2. One range at a time, with a pause behind it. It takes some milliseconds (12 in a virtual machine
   that gets its memory page by page), in which other threads run, but wait as soon as they need
   memory that is new. So a process that grows fast is left alone until it does not any more, a
   minute at most. A hundred megabytes take a second, a gigabyte ten.
3. The operator has the last word: where the system says `never`, nothing is done.
4. As with the collector (collector.py), nothing happens by importing raftkv or by starting a
   `Node`: a program that embeds one decides itself, and calls `raftkv.use_huge_pages()`, once.
   `raftkv serve` does. Without it everything works; a large state is some percent slower.

What is ugly: Python has no call for it, so the kernel is asked through `ctypes`, about addresses
that /proc/self/maps names. A range may be gone by then, or be another one. The kernel then answers
with an error, or exchanges that one: whatever stands in the pages is not touched by it.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from typing import Final, Protocol

__all__ = ["DENSE_PAGES", "RANGE_BYTES", "Exchange", "Memory", "ThisProcess", "use_huge_pages"]

log = logging.getLogger("raftkv.hugepages")

#: A huge page, and how many small ones it replaces.
RANGE_BYTES: Final = 2 << 20
PAGE_BYTES: Final = 4096
RANGE_PAGES: Final = RANGE_BYTES // PAGE_BYTES
#: Pages of a range that must be in use before it is exchanged: 7 of 8.
DENSE_PAGES: Final = RANGE_PAGES * 7 // 8
#: Seconds between two looks at the size of the process.
PERIOD_S: Final = 10.0
#: A process that has grown by more in a period is being filled: new memory all the time.
GROWTH_BYTES: Final = 64 << 20
#: So many periods in a row at most.
GROWTH_PERIODS: Final = 6
# Behind each range that was exchanged, and behind so many that were only looked at.
PAUSE_S: Final = 0.01
LOOKED_AT_ONCE: Final = 32

_MADV_COLLAPSE: Final = 25
_SYSTEM: Final = "/sys/kernel/mm/transparent_hugepage/enabled"
# The lower half of all bytes. What is left after deleting them has its highest bit set.
_LOW: Final = bytes(range(0x80))


class Memory(Protocol):
    """The memory of one process, as the kernel shows it."""

    def size(self) -> int:
        """Bytes that are in memory now."""

    def regions(self) -> list[tuple[int, int]]:
        """Where memory of this process alone is mapped: first address, and the one behind."""

    def pages_in_use(self, start: int) -> int:
        """How many small pages of the range at `start` are in memory."""

    def collapse(self, start: int) -> int:
        """Exchange the range at `start`; 0, or the kernel's error number."""


class ThisProcess:
    """`Memory` of the process that runs this. Raises OSError where it cannot be exchanged."""

    def __init__(self) -> None:
        with open(_SYSTEM, encoding="ascii") as file:
            if "[never]" in file.read():
                raise OSError(errno.EPERM, f"{_SYSTEM} says never")
        libc = ctypes.CDLL(None, use_errno=True)
        self._madvise = libc.madvise
        self._madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self._try()
        self._pages = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)

    def _try(self) -> None:
        """Ask for a page of our own: an older kernel does not know the question."""
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        with mmap.mmap(-1, 2 * RANGE_BYTES, flags=private) as area:
            area.write(bytes(2 * RANGE_BYTES))
            first = ctypes.c_char.from_buffer(area)
            start = -(-ctypes.addressof(first) // RANGE_BYTES) * RANGE_BYTES
            error = self.collapse(start)
            del first  # or the area could not be closed
        if error == errno.EINVAL:
            raise OSError(error, "the kernel has no MADV_COLLAPSE: Linux 6.1 is the first")

    def __del__(self) -> None:
        if hasattr(self, "_pages"):
            os.close(self._pages)

    def size(self) -> int:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * PAGE_BYTES

    def regions(self) -> list[tuple[int, int]]:
        found = []
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            for line in file:
                where, rights, _, _, inode, *name = line.split(maxsplit=5)
                if rights == "rw-p" and inode == "0" and (not name or name[0].strip() == "[heap]"):
                    low, high = where.split("-")
                    found.append((int(low, 16), int(high, 16)))
        return found

    def pages_in_use(self, start: int) -> int:
        # Eight bytes for each page, the lowest first; the highest bit: it is in memory.
        flags = os.pread(self._pages, 8 * RANGE_PAGES, start // PAGE_BYTES * 8)[7::8]
        return len(flags.translate(None, _LOW))

    def collapse(self, start: int) -> int:
        # Others run meanwhile: ctypes lets go of Python's lock.
        return 0 if self._madvise(start, RANGE_BYTES, _MADV_COLLAPSE) == 0 else ctypes.get_errno()


class Exchange:
    """Goes over the memory of a process, and again when its size has changed.

    `pause` waits so many seconds and tells whether it is time to end.
    """

    def __init__(self, memory: Memory, pause: Callable[[float], bool]) -> None:
        self._memory = memory
        self._pause = pause
        self._size_at_last = 0
        self._size_before = 0
        self._growing = 0

    def run(self) -> None:
        """Until `pause` says so. An error, a lack of file descriptors say, costs one round."""
        ended = failed = False
        while not ended:
            try:
                self._round()
                failed = False
            except (OSError, ValueError) as error:
                if not failed:
                    log.warning("the heap is not moved to huge pages for now: %s", error)
                failed = True
            ended = self._pause(PERIOD_S)

    def _round(self) -> None:
        size = self._memory.size()
        if abs(size - self._size_at_last) >= RANGE_BYTES and not self._is_filled(size):
            self._size_at_last = size
            self.once()

    def _is_filled(self, size: int) -> bool:
        """Whether the process has grown so fast that it will go on (rule 2)."""
        before, self._size_before = self._size_before, size
        grows = 0 < before < size - GROWTH_BYTES and self._growing < GROWTH_PERIODS
        self._growing = self._growing + 1 if grows else 0
        return grows

    def once(self) -> None:
        """One round over all ranges that are nearly full, also those that are huge already."""
        memory, exchanged = self._memory, 0
        for looked, start in enumerate(self._ranges(), 1):
            error = memory.collapse(start) if memory.pages_in_use(start) >= DENSE_PAGES else None
            if error == errno.ENOMEM:
                log.info("the system has no huge page left; another try follows")
                break
            exchanged += error == 0
            if (error == 0 or looked % LOOKED_AT_ONCE == 0) and self._pause(PAUSE_S):
                break
        log.debug("%d MiB are in huge pages", exchanged * (RANGE_BYTES >> 20))

    def _ranges(self) -> Iterator[int]:
        for low, high in self._memory.regions():
            first = -(-low // RANGE_BYTES) * RANGE_BYTES
            yield from range(first, high - RANGE_BYTES + 1, RANGE_BYTES)


_starting = threading.Lock()
_running = False


def use_huge_pages() -> Callable[[], None]:
    """Have the heap of this process moved to huge pages, now and as it grows.

    Process-wide; see the module's text. Where the system has none, or is no Linux from 6.1 on,
    nothing happens but a line in the log. Returns a function that ends it (pages stay as they are
    by then); a second call changes nothing and returns one that does nothing.
    """
    global _running
    with _starting:
        if _running:
            return _nothing
        try:
            memory = ThisProcess()
        except OSError as error:
            log.info("no huge pages: %s", error.strerror)
            return _nothing
        _running = True
    ended = threading.Event()
    thread = threading.Thread(
        target=Exchange(memory, ended.wait).run, name="raftkv huge pages", daemon=True
    )
    thread.start()

    def end() -> None:
        global _running
        ended.set()
        thread.join()
        with _starting:
            _running = False

    return end


def _nothing() -> None:
    """There is nothing to undo."""
