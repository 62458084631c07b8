"""Injected bugs of the links between cores; see planted.py."""

from __future__ import annotations

from collections.abc import Callable

from raftkv.link_renewal import LinkRenewal
from raftkv.testing.planting import wrapping

__all__: list[str] = []


@wrapping(
    "silent-link-stands",
    "a consensus link on which nothing arrives any more is not dialled again",
    LinkRenewal,
    "_look",
    seeds_max=60,
)
def _stands(look: Callable[[LinkRenewal], None]) -> Callable[[LinkRenewal], None]:
    return lambda renewal: None
