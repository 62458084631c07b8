"""Figures of a replicant: how far it is behind, and whom it follows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .family import Family, counter, gauge

if TYPE_CHECKING:
    from raftkv.parts import ReplicantPart

__all__ = ["replicant"]


def replicant(part: ReplicantPart) -> Iterator[Family]:
    """Everything that only a replicant has."""
    follower = part.follower
    entries, seconds = follower.lag
    yield gauge(
        "replicant_lag_entries", entries, "Committed entries, as far as known, not applied here."
    )
    yield gauge(
        "replicant_lag_seconds", seconds, "Since the oldest entry came that is not applied here."
    )
    yield gauge(
        "replicant_upstream_silence_seconds", follower.silence_s, "Since the upstream was heard."
    )
    yield gauge(
        "replicant_following", follower.upstream is not None, "1 while a core feeds this replicant."
    )
    yield counter(
        "replicant_upstream_changes_total",
        follower.upstream_changes,
        "Times this replicant began to follow a core.",
    )
