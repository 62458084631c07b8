"""The pages of a node: health, version, figures and status, below no plugin's name.

Rules of this file
- `/metrics` is made at most once in METRICS_KEPT_S for each of its two forms: it takes some
  milliseconds of the node's loop, and a flood of scrapes would hold up the heartbeats.
- `/health`, `/livez` and `/version` are answered beyond `requests_max`, too (`PROBES`): they cost
  little, and a supervisor would restart a node that is only busy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping
from typing import Any, Final

import msgspec

from .answers import FAULT_TEXT, JSON_TYPE
from .cluster_words import ETCD_API_VERSION
from .health import Health
from .ports import DoorNode

__all__ = ["METRICS_KEPT_S", "PAGES", "PROBES", "Page", "StatusPages"]

PAGES: Final = frozenset(("/health", "/livez", "/readyz", "/version", "/metrics", "/v1/status"))
PROBES: Final = frozenset(("/health", "/livez", "/version"))
#: How old the figures of `/metrics` may be; less than any usual interval of scrapes.
METRICS_KEPT_S: Final = 1.0

_TEXT_TYPE: Final = (b"content-type", b"text/plain; charset=utf-8")
#: In an Accept header: which of the two forms is wanted.
_OPENMETRICS: Final = "application/openmetrics-text"

#: Status, content type, body.
Page = tuple[int, tuple[bytes, bytes], bytes]


class StatusPages:
    """The pages of one node. `clock` gives seconds; without it the running loop's clock is used."""

    def __init__(
        self, node: DoorNode, version: str, clock: Callable[[], float] | None = None
    ) -> None:
        self._node = node
        self._clock = clock
        self._health = Health(node)
        # By the form that was asked for: when it was made, and the page.
        self._figures: dict[str, tuple[float, Page]] = {}
        self._version_body = msgspec.json.encode(
            {"etcdserver": ETCD_API_VERSION, "etcdcluster": ETCD_API_VERSION, "raftkv": version}
        )

    async def page(self, path: str, scope: MutableMapping[str, Any]) -> Page:
        """The answer to a GET of one of PAGES."""
        match path:
            case "/health":
                status, body = self._health.health()
                return status, JSON_TYPE, body
            case "/livez":
                return _text(*await self._health.livez(scope["query_string"]))
            case "/readyz":
                return _text(*await self._health.readyz(scope["query_string"]))
            case "/metrics":
                return self._metrics(dict(scope["headers"]).get(b"accept", b"").decode("latin-1"))
            case "/version":
                return 200, JSON_TYPE, self._version_body
            case _:
                return 200, JSON_TYPE, self._status()

    def _status(self) -> bytes:
        status = self._node.status()
        if status.fault is None:
            return msgspec.json.encode(status)
        return msgspec.json.encode({**msgspec.to_builtins(status), "fault": FAULT_TEXT})

    def _metrics(self, accept: str) -> Page:
        form = _OPENMETRICS if _OPENMETRICS in accept else ""
        now = asyncio.get_running_loop().time() if self._clock is None else self._clock()
        made, page = self._figures.get(form, (now, None))
        if page is None or not 0 <= now - made < METRICS_KEPT_S:
            kind, body = self._node.metrics.render(form)
            page = (200, (b"content-type", kind.encode("latin-1")), body)
            self._figures[form] = (now, page)
        return page


def _text(status: int, body: bytes) -> Page:
    return status, _TEXT_TYPE, body
