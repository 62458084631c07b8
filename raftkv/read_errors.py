"""What a read reports that was attempted several times and got no result."""

from __future__ import annotations

from .errors import RaftkvError, Timeout


class ReadErrors:
    """The errors of one read by endpoint.

    A read makes its last attempt with what is left of its time. If that runs out, the attempt
    reports less than the answer, such as "no leader", which the same endpoint gave before. The time
    of a write is another matter: it may have been applied.
    """

    def __init__(self) -> None:
        self._answers: dict[str, RaftkvError] = {}

    def latest(self, endpoint: str, error: RaftkvError) -> RaftkvError:
        """The error to report after an attempt at `endpoint` that ended in `error`."""
        if isinstance(error, Timeout):
            return self._answers.get(endpoint, error)
        self._answers[endpoint] = error
        return error
