"""How a link ends, or does not begin."""

from __future__ import annotations

from typing import Final

__all__ = ["NOT_SENT", "LinkBroken", "LinkError", "LinkRefused"]

#: The reason of a report that claims more than counts: what does count was taken.
NOT_SENT: Final = "not_sent"


class LinkError(Exception):
    """Of a link between regions."""


class LinkBroken(LinkError):
    """There is no connection, or there is none any more. It is worth trying again."""


class LinkRefused(LinkError):
    """The other region says no. `reason` is a stable word, the text is for people.

    Trying again soon is of no use, unless `reason` says that it is only this node ("overloaded",
    "not_ready").
    """

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason
