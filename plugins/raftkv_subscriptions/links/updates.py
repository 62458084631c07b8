"""The updates that a link has proposed (snapshot mode): the same again costs no entry.

A stream that begins anew says all that stand, so each is compared with the last one that was taken
for this subscription as it is here, by its id: one that was made anew takes it again. An update is
its snapshot and what it excepts: of one snapshot, a later update may say more, by excepting less.
"""

from __future__ import annotations

from typing import Final

from raftkv.plugin import View
from raftkv_subscriptions.rows import Advance, Sub, Topic

__all__ = ["Updates"]

# Subscriptions whose last update is remembered.
REMEMBERED_MAX: Final = 10_000


class Updates:
    """Of one link."""

    def __init__(self) -> None:
        self._taken: dict[tuple[str, str], tuple[int, int, int]] = {}

    def is_known(self, view: View, topic: str, what: Advance) -> bool:
        """Whether it was the last one that was taken."""
        known = self._taken.get((topic, what.sub))
        return known is not None and known == _of(view, topic, what)

    def taken(self, view: View, topic: str, what: Advance) -> None:
        """The log has taken it."""
        said = _of(view, topic, what)
        if said is None:
            return
        self._taken.pop((topic, what.sub), None)
        if len(self._taken) >= REMEMBERED_MAX:
            del self._taken[next(iter(self._taken))]
        self._taken[topic, what.sub] = said


def _of(view: View, topic: str, what: Advance) -> tuple[int, int, int] | None:
    """The subscription here, the snapshot, and what is excepted; None: it is not here."""
    row: Topic | None = view.table("topics").get(topic)
    sub: Sub | None = None if row is None else view.table("subs").get((row.id, what.sub))
    return None if sub is None else (sub.id, what.id, hash(what.without))
