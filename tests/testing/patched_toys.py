"""Code under test, for test_own_errors.py: of each kind of function one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


def double(number: int) -> int:
    return 2 * number


def opposite(number: int) -> int:
    return -number


def step() -> None:
    """One of STEPS."""


COMMANDS = {int: double}
STEPS = (step,)


class Toy:
    def __init__(self) -> None:
        self.number = 1

    @property
    def half(self) -> float:
        return self.number / 2

    @staticmethod
    def fixed(number: int) -> int:
        return number

    @classmethod
    def made(cls) -> Toy:
        return cls()

    def plain(self, number: int) -> int:
        return self.number + number

    async def awaited(self, number: int) -> int:
        return self.number + number

    def each(self) -> Iterator[int]:
        yield self.number


def run() -> None:
    for each in STEPS:
        each()


def swallowed(toy: Toy) -> None:
    """A loop that survives whatever happens in it, as some nodes have."""
    with contextlib.suppress(Exception):
        toy.plain(2)
