"""Damaged requests to the network door, through the gateway's own words.

A request has a path and a JSON body. Behind the door stands a node that answers every word with
`NoLeader`, after its arguments were checked as the keyspace's API checks them: what is fuzzed is
everything between the bytes and the node. Allowed: an answer of the node (here its refusal), or an
error that the door has words for, with a status below 500, or 501 for what is not served. The HTTP
parser itself is httptools; tests/cluster/test_hostile_input.py throws garbage at its port.
"""

from __future__ import annotations

import base64
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from raftkv.errors import NoLeader
from raftkv.kv.work_budget import WorkBudget
from raftkv.server.answers import failure_of
from raftkv.server.cluster_words import ClusterWords
from raftkv.server.encoding import Headers
from raftkv.server.gateway import Gateway
from raftkv.server.json_stream import JsonStream
from raftkv.server.lease_words import LeaseWords
from raftkv.server.streams import STREAM_REQUEST_BYTES_MAX
from raftkv.server.watch_words import WatchStream
from raftkv.testing.fuzz.mutate import damaged
from raftkv.testing.fuzz.target import Case, Finding

__all__ = ["HttpTarget"]

NOT_IMPLEMENTED: Final = 501
_KEY: Final = base64.b64encode(b"key").decode()
_END: Final = base64.b64encode(b"kez").decode()
_RANGE: Final[dict[str, Any]] = {
    "key": _KEY,
    "range_end": _END,
    "limit": "5",
    "sortOrder": "ASCEND",
    "sort_target": 0,
    "serializable": True,
    "keysOnly": False,
}
_PUT: Final[dict[str, Any]] = {"key": _KEY, "value": _END, "lease": 0, "prevKv": True}
_DELETE: Final[dict[str, Any]] = {"key": _KEY, "range_end": "AA==", "prev_kv": False}
_TXN: Final[dict[str, Any]] = {
    "compare": [
        {"result": "EQUAL", "target": "VERSION", "key": _KEY, "version": "1"},
        {"result": 1, "target": "VALUE", "key": _KEY, "value": _END, "range_end": _END},
    ],
    "success": [{"requestPut": _PUT}, {"request_range": _RANGE}],
    "failure": [{"request_delete_range": _DELETE}, {"requestTxn": {"success": []}}],
}
_WATCH: Final[dict[str, Any]] = {
    "create_request": {
        "key": _KEY,
        "rangeEnd": _END,
        "start_revision": "3",
        "filters": ["NOPUT", 1],
        "progressNotify": True,
        "watch_id": 7,
    },
    "cancelRequest": {"watchId": "7"},
    "progress_request": {},
}
WORDS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("range", _RANGE),
    ("put", _PUT),
    ("delete_range", _DELETE),
    ("txn", _TXN),
    ("compaction", {"revision": "5", "physical": True}),
    ("grant", {"TTL": "60", "ID": 7}),
    ("revoke", {"ID": "7"}),
    ("time_to_live", {"ID": "7", "keys": True}),
    ("list", {}),
    ("hash", {"revision": "5"}),
    ("watch", _WATCH),
)
_STRANGE: Final[tuple[Any, ...]] = (
    None, True, 0, -1, 1.5, 2**63, -(2**63) - 1, "", "x", "AA=", "\u0000", "9" * 400, [], {}, [[]],
    {"": None}, "EQUAL", "NONE", 99, "1e5", "-0", "٣", [None], {"key": {"key": {}}},
)  # fmt: skip


class _Deaf:
    """Keyspace, leases and watches: takes every word and has no leader."""

    revision = lowest_revision = 1

    def __init__(self) -> None:
        self.budget = WorkBudget()

    async def _nothing(self, *arguments: Any, **named: Any) -> Any:
        raise NoLeader("there is no cluster behind this door")

    put = read = delete_range = txn = compact = hash = _nothing
    grant = revoke = time_to_live = list = _nothing

    def _none(self, *arguments: Any, **named: Any) -> Any:
        raise NoLeader("there is no cluster behind this door")

    open = walk = rows = _none

    @property
    def hub(self) -> _Deaf:
        return self


class _Node:
    term = 1

    def __init__(self) -> None:
        self.kv = self.leases = _Deaf()

    def status(self) -> _Node:
        return self

    async def barrier(self, consistency: str = "linearizable") -> None:
        return

    cluster_id = name = "fuzz"


class _Words:
    """Every word by its name. A watch is cut into its requests first, as from a stream."""

    def __init__(self) -> None:
        node: Any = _Node()
        headers = Headers(node)
        self._node, self._headers = node, headers
        gateway, leases = Gateway(node, headers), LeaseWords(node, headers)
        self.range, self.put, self.txn = gateway.range, gateway.put, gateway.txn
        self.delete_range, self.compaction = gateway.delete_range, gateway.compaction
        self.grant, self.revoke = leases.grant, leases.revoke
        self.time_to_live, self.list = leases.time_to_live, leases.list
        self.hash = ClusterWords(node, headers).hash

    async def watch(self, body: bytes) -> None:
        stream = WatchStream(self._node, self._headers)
        cut = JsonStream(STREAM_REQUEST_BYTES_MAX)
        middle = len(body) // 2
        for found in (*cut.feed(body[:middle]), *cut.feed(body[middle:])):
            await stream.obey(found)
        # A request to cancel or to tell the progress needs no leader.
        raise NoLeader("the stream has ended")


class HttpTarget:
    """See the module's text. Counts requests."""

    name = "http"
    unit = "requests"
    traced: Sequence[str] = (
        "raftkv.server.messages",
        "raftkv.server.gateway",
        "raftkv.server.json_stream",
        "raftkv.server.lease_words",
        "raftkv.server.watch_words",
    )
    batch = 1000

    def __init__(self) -> None:
        self._words = _Words()

    def make(self, rng: random.Random) -> Case:
        word, document = WORDS[int(rng.random() * len(WORDS))]
        if rng.random() < 0.6:
            document = _changed(document, rng)
        case = Case({word: msgspec.json.encode(document)})
        return self.vary(case, rng) if rng.random() < 0.6 else case

    def vary(self, case: Case, rng: random.Random) -> Case:
        ((word, body),) = case.parts.items()
        if rng.random() < 0.05:
            deep = (b'{"success":[{"requestTxn":', b"[", b'{"compare":[')[int(rng.random() * 3)]
            return Case({word: deep * (1 + int(rng.random() ** 4 * 20_000))})
        return Case({word: damaged(body, rng, b'{"key":"AA==","lease":"1"}')})

    def run(self, case: Case) -> Counter[str]:
        ((word, body),) = case.parts.items()
        call = getattr(self._words, word)(body)
        try:
            call.send(None)
        except NoLeader:
            return Counter(["understood"])
        except Exception as error:
            failure = failure_of(error)
            if failure is None:
                raise
            if failure.status >= 500 and failure.status != NOT_IMPLEMENTED:
                raise Finding(f"answered with {failure.status}") from error
            return Counter([f"answered with {failure.status}"])
        finally:
            call.close()
        raise Finding("a word ended without asking the node")


def _changed(document: Any, rng: random.Random) -> Any:
    """One field exchanged, doubled under another name, removed or of another type."""
    if isinstance(document, dict) and document and rng.random() < 0.9:
        fields = dict(document)
        name = list(fields)[int(rng.random() * len(fields))]
        match int(rng.random() * 5):
            case 0:
                del fields[name]
            case 1:
                fields[name.upper() if rng.random() < 0.5 else name + "x"] = fields[name]
            case _:
                fields[name] = _changed(fields[name], rng)
        return fields
    if isinstance(document, list) and document and rng.random() < 0.9:
        items = list(document)
        at = int(rng.random() * len(items))
        items[at] = _changed(items[at], rng)
        return items
    return _STRANGE[int(rng.random() * len(_STRANGE))]
