"""hugepages.py: which pages are exchanged, when, and that nothing of them is lost."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import raftkv
from raftkv import hugepages
from raftkv.hugepages import (
    DENSE_PAGES,
    GROWTH_PERIODS,
    PERIOD_S,
    RANGE_BYTES,
    Exchange,
    ThisProcess,
)

MIB = 1 << 20


class FakeMemory:
    """Regions and pages by hand; `error` is what the kernel answers for a range."""

    def __init__(self, *regions: tuple[int, int]) -> None:
        self.mapped = list(regions)
        self.used: dict[int, int] = {}
        self.errors: dict[int, int] = {}
        self.collapsed: list[int] = []
        self.sizes = [100 * MIB]

    def size(self) -> int:
        return self.sizes.pop(0) if len(self.sizes) > 1 else self.sizes[0]

    def regions(self) -> list[tuple[int, int]]:
        return self.mapped

    def pages_in_use(self, start: int) -> int:
        return self.used.get(start, 512)

    def collapse(self, start: int) -> int:
        self.collapsed.append(start)
        return self.errors.get(start, 0)


class Pause:
    """Counts what is waited for, and says that it is time to end after so many pauses."""

    def __init__(self, ends_after: int = 1 << 30) -> None:
        self.waited: list[float] = []
        self._ends_after = ends_after

    def __call__(self, seconds: float) -> bool:
        self.waited.append(seconds)
        return len(self.waited) >= self._ends_after


def test_only_whole_ranges_of_a_region_are_exchanged() -> None:
    memory = FakeMemory((RANGE_BYTES + 4096, 4 * RANGE_BYTES + 4096), (8 * MIB, 9 * MIB))
    Exchange(memory, Pause()).once()
    assert memory.collapsed == [2 * RANGE_BYTES, 3 * RANGE_BYTES]


def test_what_is_not_nearly_full_stays() -> None:
    """A stack, or a buffer that is used at its beginning only, would grow."""
    memory = FakeMemory((0, 3 * RANGE_BYTES))
    memory.used = {0: DENSE_PAGES - 1, RANGE_BYTES: DENSE_PAGES, 2 * RANGE_BYTES: 0}
    Exchange(memory, Pause()).once()
    assert memory.collapsed == [RANGE_BYTES]


def test_a_range_that_is_gone_is_passed() -> None:
    memory = FakeMemory((0, 3 * RANGE_BYTES))
    memory.errors = {0: errno.EINVAL, RANGE_BYTES: errno.EAGAIN}
    Exchange(memory, Pause()).once()
    assert memory.collapsed == [0, RANGE_BYTES, 2 * RANGE_BYTES]


def test_without_free_huge_pages_the_round_ends() -> None:
    memory = FakeMemory((0, 3 * RANGE_BYTES))
    memory.errors = {RANGE_BYTES: errno.ENOMEM}
    Exchange(memory, Pause()).once()
    assert memory.collapsed == [0, RANGE_BYTES]


def test_there_is_a_pause_behind_each_range() -> None:
    memory, pause = FakeMemory((0, 5 * RANGE_BYTES)), Pause()
    Exchange(memory, pause).once()
    assert len(pause.waited) == 5


def test_looking_at_many_ranges_pauses_too() -> None:
    memory, pause = FakeMemory((0, 100 * RANGE_BYTES)), Pause()
    memory.used = dict.fromkeys(range(0, 100 * RANGE_BYTES, RANGE_BYTES), 0)
    Exchange(memory, pause).once()
    assert len(pause.waited) == 100 // hugepages.LOOKED_AT_ONCE
    assert memory.collapsed == []


def test_it_ends_in_the_middle_of_a_round() -> None:
    memory, pause = FakeMemory((0, 100 * RANGE_BYTES)), Pause(ends_after=3)
    Exchange(memory, pause).once()
    assert len(memory.collapsed) == 3


def test_a_process_that_keeps_its_size_is_left_alone() -> None:
    memory = FakeMemory((0, RANGE_BYTES))
    memory.sizes = [10 * MIB, 10 * MIB, 11 * MIB, 30 * MIB]
    # Four looks; in the first and the fourth the size is another one.
    pause = Pause(ends_after=6)
    Exchange(memory, pause).run()
    assert memory.collapsed == [0, 0]
    assert pause.waited.count(PERIOD_S) == 4


def test_a_process_that_is_being_filled_is_waited_for() -> None:
    """Whoever needs new memory while a range is exchanged waits for it."""
    memory = FakeMemory((0, RANGE_BYTES))
    memory.sizes = [mib * MIB for mib in (50, 300, 600, 640)]
    # Each exchange is one more pause.
    Exchange(memory, Pause(ends_after=4)).run()
    assert memory.collapsed == [0], "at the start only"
    memory.sizes = [mib * MIB for mib in (50, 300, 600, 640)]
    Exchange(memory, Pause(ends_after=6)).run()
    assert memory.collapsed == [0, 0, 0], "and once it grows by a little"


def test_a_process_that_always_grows_is_not_waited_for_for_ever() -> None:
    memory = FakeMemory((0, RANGE_BYTES))
    memory.sizes = [mib * MIB for mib in range(100, 3000, 100)]
    Exchange(memory, Pause(ends_after=2 + GROWTH_PERIODS + 1)).run()
    assert memory.collapsed == [0, 0]


@pytest.fixture
def process() -> ThisProcess:
    try:
        return ThisProcess()
    except OSError as error:
        pytest.skip(f"this system exchanges no pages: {error}")


def _huge_bytes() -> int:
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("AnonHugePages:"):
            return int(line.split()[1]) * 1024
    return 0


def test_the_heap_of_this_process_moves_and_keeps_its_contents(process: ThisProcess) -> None:
    rows = [number.to_bytes(200, "little") for number in range(200_000)]
    before = _huge_bytes()
    Exchange(process, Pause()).once()
    assert _huge_bytes() >= before + 16 * MIB
    assert rows == [number.to_bytes(200, "little") for number in range(200_000)]


def test_the_kernel_tells_pages_that_are_in_use(process: ThisProcess) -> None:
    heap = [low for low, high in process.regions() if high - low >= 2 * RANGE_BYTES]
    assert heap, "a process that runs tests has a heap"
    used = [
        process.pages_in_use(start)
        for low in heap
        for start in [-(-low // RANGE_BYTES) * RANGE_BYTES]
    ]
    assert all(0 <= count <= 512 for count in used)
    assert max(used) > 0


@pytest.fixture
def threads() -> Iterator[None]:
    yield
    assert not hugepages._running


def _names() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name == "raftkv huge pages"]


@pytest.mark.usefixtures("process", "threads")
def test_it_runs_once_and_ends() -> None:
    end = raftkv.use_huge_pages()
    raftkv.use_huge_pages()()
    assert len(_names()) == 1, "a second call starts nothing, and its undo ends nothing"
    end()
    assert _names() == []


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("text", ["always madvise [never]", None])
def test_where_the_system_has_none_nothing_happens(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if text is not None:
        (tmp_path / "enabled").write_text(text)
    monkeypatch.setattr(hugepages, "_SYSTEM", str(tmp_path / "enabled"))
    raftkv.use_huge_pages()()
    assert _names() == []
