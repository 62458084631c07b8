"""What `up` does in a terminal: show how it is until Ctrl-C ends it, or leave it behind.

One cluster (`raftkv cluster up`) and several (kit.LocalClusters) are brought up, shown and stopped
in the same way. In the foreground nothing outlives the command; what is detached stays, and stays
to be looked at when it could not be brought up.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from raftkv.errors import RaftkvError

from .output import console, print_status, status_table
from .saying import note_line, say_line

if TYPE_CHECKING:
    from .devcluster import ClusterStatus

__all__ = ["Brought", "bring_up", "show"]

# How often the status is drawn anew.
WATCH_INTERVAL_S: Final = 0.5


class Brought(Protocol):
    """What can be brought up: one development cluster, or several."""

    @property
    def exists(self) -> bool:
        """Whether it was laid out."""

    def down(self) -> Sequence[str]:
        """Stop what runs."""

    def statuses(self) -> Sequence[tuple[str, ClusterStatus]]:
        """Of each cluster; its name is "" where there is but one."""


def bring_up(
    brought: Brought, start: Callable[[Callable[[str], None]], Sequence[str]], *, detach: bool
) -> None:
    """Run `start`, say the lines that it gives on stderr, and show the status until Ctrl-C.

    `start` gets what shows its progress. With `detach` the status is shown once. What `start`
    raises is raised; before, in the foreground, everything is stopped.
    """
    with _stop_on_sigterm() if not detach else contextlib.nullcontext():
        try:
            for line in start(note_line):
                note_line(line)
            if not detach:
                _watch(brought)
        except KeyboardInterrupt:
            note_line("stopping")
            brought.down()
        except RaftkvError:
            if not detach and brought.exists:
                brought.down()
            raise
    if detach:
        show(brought.statuses())


def show(statuses: Sequence[tuple[str, ClusterStatus]]) -> None:
    """The tables on stdout, below each other."""
    for name, status in statuses:
        if name:
            say_line(f"{name}:")
        print_status(status)
    sys.stdout.flush()


@contextlib.contextmanager
def _stop_on_sigterm() -> Iterator[None]:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _watch(brought: Brought) -> None:
    """Show the status until Ctrl-C, or until the last node has ended."""
    found = brought.statuses()
    shown: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if sys.stdout.isatty():
        from rich.live import Live

        shown = Live(_drawn(found), console=console(), auto_refresh=False)
    else:
        # Into a file or a pipe the tables go once: they cannot be drawn over there.
        show(found)
    with shown as live:
        while any(node.running for _, status in found for node in status.nodes):
            time.sleep(WATCH_INTERVAL_S)
            found = brought.statuses()
            if live is not None:
                live.update(_drawn(found), refresh=True)
    note_line("no node is running any more")


def _drawn(statuses: Sequence[tuple[str, ClusterStatus]]) -> Any:
    from rich.console import Group

    parts: list[Any] = []
    for name, status in statuses:
        parts += [f"{name}:"] if name else []
        parts.append(status_table(status))
    return Group(*parts)
