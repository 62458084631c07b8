"""ReadIndex: linearizable reads without writing to the log (rule 17; Raft thesis 6.4).

Rules of this file: pure; requests are opaque tokens, time and messages are the engine's.

Theory. The leader notes its commit index, then a majority confirms that it is still the leader of
its term by echoing a round number; whatever was committed anywhere before the round started lies
at or below the noted index. The noted index is valid only once an entry of the leader's own term
is committed (its no-op), because only then it knows what earlier terms committed. All requests
that arrive while a round is in flight share the next one, so that a thousand concurrent readers
cost two rounds. A step-down fails every request: the asker tries the next leader.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from .membership import Configuration

__all__ = ["ReadRounds"]


class ReadRounds:
    """The rounds of one leader in one term."""

    def __init__(self) -> None:
        self.round = 0
        self._waiting: list[Hashable] = []
        self._in_round: list[Hashable] = []
        self._index = 0
        self._echoed: set[str] = set()
        self._open = False

    @property
    def waiting(self) -> bool:
        """Whether requests wait for a round that has not started."""
        return bool(self._waiting)

    @property
    def in_flight(self) -> bool:
        return self._open

    def request(self, token: Hashable) -> None:
        self._waiting.append(token)

    def start(self, commit: int, number: int) -> bool:
        """Open the next round at `commit`: whoever echoes `number` or a later one confirms it.

        False if nobody waits or a round is in flight. The caller asserts that an entry of the
        current term is committed, and that nothing with this number was sent before.
        """
        if self._open or not self._waiting:
            return False
        self.round = number
        self._in_round, self._waiting = self._waiting, []
        self._index = commit
        self._echoed = set()
        self._open = True
        return True

    def echoed(self, voter: str, round_number: int) -> None:
        """A voter confirmed the leader's term in answer to a message of that number."""
        if self._open and round_number >= self.round:
            self._echoed.add(voter)

    def finish(self, configuration: Configuration, me: str) -> tuple[int, list[Hashable]] | None:
        """(index, tokens) once a majority of the configuration in force has echoed."""
        if not self._open or not configuration.majority({me, *self._echoed}):
            return None
        self._open = False
        tokens, self._in_round = self._in_round, []
        return self._index, tokens

    def fail(self) -> Iterable[Hashable]:
        """Step-down: every request is given back unanswered."""
        tokens = self._in_round + self._waiting
        self._in_round, self._waiting, self._open = [], [], False
        return tokens
