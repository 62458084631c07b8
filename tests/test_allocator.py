"""allocator.py: what glibc does with large blocks that were freed."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import raftkv
from raftkv import allocator
from raftkv.cli import serve
from raftkv.config import NodeConfig

# Blocks that are mapped separately, after a large one was freed.
PROGRAM = """
import ctypes, sys
import raftkv
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
        "fordblks", "keepcost")]
libc.mallinfo2.restype = Info
if sys.argv[1] == "tuned":
    assert raftkv.tune_malloc()
libc.free(libc.malloc(16 << 20))
before = libc.mallinfo2().hblks
kept = [libc.malloc(1 << 20) for _ in range(4)]
print(libc.mallinfo2().hblks - before)
"""


def is_glibc() -> bool:
    return allocator._mallopt() is not None and hasattr(ctypes.CDLL(None), "mallinfo2")


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Without settings of the allocator."""
    for name in [*os.environ]:
        if name.startswith("MALLOC_") or name == "GLIBC_TUNABLES":
            monkeypatch.delenv(name)
    return monkeypatch


@pytest.mark.skipif(not is_glibc(), reason="another C library")
@pytest.mark.usefixtures("environment")
def test_large_blocks_are_returned_to_the_system_once_it_is_asked_for() -> None:
    def mapped(how: str) -> int:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True
        )
        return int(done.stdout)

    # By itself glibc has learned from the large block that smaller ones belong into its heap.
    assert mapped("plain") == 0
    assert mapped("tuned") == 4


class FakeMallopt:
    def __init__(self, answer: int = 1) -> None:
        self.asked: list[tuple[int, int]] = []
        self._answer = answer

    def __call__(self, what: int, value: int) -> int:
        self.asked.append((what, value))
        return self._answer


def test_what_is_asked_for(environment: pytest.MonkeyPatch) -> None:
    mallopt = FakeMallopt()
    environment.setattr(allocator, "_mallopt", lambda: mallopt)
    assert raftkv.tune_malloc()
    assert dict(mallopt.asked) == {-3: 256 * 1024, -1: 4 * 1024 * 1024, -8: 2}
    environment.setattr(allocator, "_mallopt", lambda: FakeMallopt(answer=0))
    assert not raftkv.tune_malloc(), "it was refused"


@pytest.mark.parametrize(
    ("name", "value", "changed"),
    [
        ("MALLOC_ARENA_MAX", "8", False),
        ("MALLOC_TRIM_THRESHOLD_", "131072", False),
        ("GLIBC_TUNABLES", "glibc.malloc.arena_max=4", False),
        ("GLIBC_TUNABLES", "glibc.pthread.rseq=0", True),
    ],
)
def test_the_environment_has_the_last_word(
    environment: pytest.MonkeyPatch, name: str, value: str, changed: bool
) -> None:
    mallopt = FakeMallopt()
    environment.setattr(allocator, "_mallopt", lambda: mallopt)
    environment.setenv(name, value)
    assert raftkv.tune_malloc() == changed
    assert bool(mallopt.asked) == changed


def unknown(name: str) -> Any:
    raise ValueError(f"unrecognized configuration name: {name}")


@pytest.mark.parametrize("confstr", [unknown, lambda _: None, lambda _: "other 1.2"])
def test_another_c_library_is_left_as_it_is(environment: pytest.MonkeyPatch, confstr: Any) -> None:
    environment.setattr(os, "confstr", confstr)
    assert not raftkv.tune_malloc()


class Reached(Exception):
    """The rest of `raftkv serve` is not of interest."""


def test_serve_asks_for_it_before_it_starts_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def loop() -> Any:
        raise Reached

    for name in ("raise_limit", "tune_malloc", "tune_gc", "tune_threads", "use_huge_pages"):
        monkeypatch.setattr(serve, name, lambda name=name: asked.append(name))
    monkeypatch.setattr(serve, "_loop_factory", loop)
    address = "127.0.0.1:1"
    config = NodeConfig(name="a", dir=str(tmp_path), peer_address=address, cores={"a": address})
    with pytest.raises(Reached):
        serve.run(config)
    assert {"tune_malloc", "tune_threads"} <= set(asked)
