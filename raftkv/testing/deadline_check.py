"""A check of the simulated world: a deadline costs a bounded number of steps.

Work in `deadlines.py` takes no virtual time: what a step costs there is far below the constants of
charges.py. So its steps are counted: how often it is asked whether a call is over, and how often
the timer is set. Each addition pays for eight of them at most: one look and one timer when it is
added, two looks when what is over is searched for, and those of the alarm that it may cause.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn

from raftkv.deadlines import Deadlines
from raftkv.testing.current import running_host
from raftkv.testing.patching import around

__all__ = ["STEPS_PER_CALL", "checked_deadlines"]

STEPS_PER_CALL: Final = 8
# Before the first search for what is over nothing was paid for it.
SPARE_STEPS: Final = 256


class _Work:
    """Of one `Deadlines`."""

    def __init__(self) -> None:
        self.added = 0
        self.steps = 0


@contextlib.contextmanager
def checked_deadlines(violated: Callable[[str, str], NoReturn]) -> Iterator[None]:
    """While this is entered, more work than that is a violation."""
    known: weakref.WeakKeyDictionary[Any, _Work] = weakref.WeakKeyDictionary()

    def wrap_init(init: Callable[..., None]) -> Callable[..., None]:
        def counting(
            deadlines: Any, runtime: Any, is_over: Callable[[Any], bool], *rest: Any
        ) -> None:
            work = known[deadlines] = _Work()

            def counted(item: Any) -> bool:
                work.steps += 1
                return is_over(item)

            init(deadlines, runtime, counted, *rest)

        return counting

    def wrap_alarm(set_alarm: Callable[..., None]) -> Callable[..., None]:
        def counting(deadlines: Any, at: float) -> None:
            known[deadlines].steps += 1
            set_alarm(deadlines, at)

        return counting

    def wrap_pass(passed: Callable[..., None]) -> Callable[..., None]:
        def checked(deadlines: Any) -> None:
            passed(deadlines)
            work = known[deadlines]
            if work.steps > STEPS_PER_CALL * work.added + SPARE_STEPS:
                violated(
                    "deadlines cost a bounded number of steps",
                    f"{running_host()} has taken {work.steps} steps for {work.added} calls",
                )

        return checked

    def wrap_add(add: Callable[..., None]) -> Callable[..., None]:
        def counting(deadlines: Any, at: float, item: Any) -> None:
            known[deadlines].added += 1
            add(deadlines, at, item)

        return counting

    def wrap_add_all(add_all: Callable[..., None]) -> Callable[..., None]:
        def counting(deadlines: Any, times: list[float], items: list[Any]) -> None:
            work = known[deadlines]
            added = work.added + len(items)
            add_all(deadlines, times, items)
            work.added = added  # it may have added them one by one

        return counting

    with (
        around(Deadlines, "__init__", wrap_init),
        around(Deadlines, "_set_alarm", wrap_alarm),
        around(Deadlines, "_pass", wrap_pass),
        around(Deadlines, "add", wrap_add),
        around(Deadlines, "add_all", wrap_add_all),
    ):
        yield
