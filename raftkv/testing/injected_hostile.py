"""Injected bugs of what a program that is no member must not achieve; see planted.py."""

from __future__ import annotations

from collections.abc import Callable

from raftkv.credibility import Credibility
from raftkv.testing.planting import wrapping

__all__: list[str] = []


@wrapping(
    "believe-any-epoch",
    "a newer epoch in any handshake stops a core and resets a replicant",
    Credibility,
    "believes",
    seeds_max=20,
)
def _believe_any_epoch(believes: Callable[..., bool]) -> Callable[..., bool]:
    return lambda credibility, name, proof: True
