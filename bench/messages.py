"""Counts the messages that this process sends to other nodes, by the purpose of their streams.

raftkv counts bytes, not messages, because nobody needs them in production. So the counter is the
benchmark's: while it is installed, every link's `send_frame` goes through it, in this process only.
That costs some 0.2 microseconds for a message, which is why it is installed for the performance
test alone and for nothing whose figures are compared with those of earlier versions.

What is ugly: a greeting is counted under the purpose that the dialler wants; these are few.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["MessageCount"]


class MessageCount:
    """Messages by purpose: `raft` (cores), `follow` (replicants and their cores), `rpc` (calls)."""

    def __init__(self) -> None:
        self.messages: dict[str, int] = {}
        self.bytes = 0
        self._original: Callable[..., None] | None = None

    def install(self) -> None:
        """Counts from now on, on all links of this process."""
        # Here, because `bench compare` runs the other loads on revisions that have it elsewhere.
        from bench.runner.product import Link

        assert self._original is None, "it counts already"
        # By its name among the class' own: a rename must fail here and not count nothing.
        original: Callable[..., None] = vars(Link)["send_frame"]
        messages = self.messages

        def send_frame(link: Any, frame: bytes) -> None:
            purpose = link.purpose
            messages[purpose] = messages.get(purpose, 0) + 1
            self.bytes += len(frame)
            original(link, frame)

        self._original = original
        setattr(Link, "send_frame", send_frame)  # noqa: B010  mypy refuses the assignment

    def remove(self) -> None:
        """Puts the links' own function back. What was counted stays."""
        if self._original is not None:
            from bench.runner.product import Link

            setattr(Link, "send_frame", self._original)  # noqa: B010
            self._original = None
