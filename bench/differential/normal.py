"""What is left out of a comparison, and nothing else.

ids of the cluster and of its members    that they are there is compared
raft_term                                 likewise
revisions                                 relative to the one at the start of the example
ids of leases that the server chose       by their order
the time that a lease has left            that it has not expired, and not more than granted
the order of leases, and of a lease's keys    neither is defined: etcd walks a map
`reason` and `detail` of an error         raftkv's additions
how events of a watch are batched         only their order counts
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from bench.differential.doors import Answer, Door
from bench.differential.words import Step

__all__ = ["normal", "normal_messages"]

_REVISIONS: Final = {"revision", "create_revision", "mod_revision", "compact_revision"}
_HIDDEN: Final = {
    "cluster_id", "member_id", "raft_term", "raftTerm", "raftIndex", "raftAppliedIndex", "dbSize",
    "dbSizeInUse", "leader", "name", "peerURLs", "clientURLs",
}  # fmt: skip
_OURS_OF_ERRORS: Final = {"reason", "detail", "args"}
_OPEN: Final = {"version", "etcdserver", "etcdcluster"}


def normal(door: Door, step: Step, answer: Answer) -> Answer:
    """The answer as it is compared."""
    document = _normal(door, answer.document)
    if step.path.endswith("/lease/revoke") and isinstance(document, dict):
        document.pop("deleted", None)
    return Answer(answer.status, answer.kind, document)


def _normal(door: Door, found: Any, field: str = "") -> Any:
    if isinstance(found, list):
        each = [_normal(door, item) for item in found]
        return sorted(each, key=str) if field in ("leases", "keys") else each
    if not isinstance(found, dict):
        return found
    tidy: dict[str, Any] = {}
    for name, value in found.items():
        if name in _OURS_OF_ERRORS and "error" in found:
            continue
        if name == "raftkv" and "etcdserver" in found:
            continue
        tidy[name] = _value(door, name, value, found)
    return tidy


def _value(door: Door, name: str, value: Any, whole: dict[str, Any]) -> Any:
    if name in _HIDDEN:
        return "given" if value not in ("", "0", 0, None) else value
    if name in _REVISIONS and isinstance(value, str) and value.lstrip("-").isdecimal():
        return int(value) - door.base
    if name in ("ID", "lease") and isinstance(value, str) and value.isdecimal():
        number = int(value)
        if number in door.granted:
            return f"granted {door.granted.index(number)}"
        return "a member" if "peerURLs" in whole else value
    if name == "TTL" and "grantedTTL" in whole:
        left, granted = int(value), int(whole["grantedTTL"])
        return "some" if 0 <= left <= granted else value
    if name in _OPEN and ("etcdserver" in whole or "raftIndex" in whole):
        return str(value)[:3] + ".x"
    return _normal(door, value, name)


def normal_messages(door: Door, messages: Sequence[Any]) -> dict[str, Any]:
    """A stream as it is compared: what was said of the watch, and all events in order."""
    said: list[Any] = []
    events: list[Any] = []
    for message in messages:
        result = message.get("result", message) if isinstance(message, dict) else message
        if not isinstance(result, dict):
            said.append(result)
            continue
        if result.get("created") or result.get("canceled") or "error" in message:
            plain = {key: value for key, value in result.items() if key != "events"}
            said.append(_normal(door, plain))
        events += _normal(door, result.get("events", []))
    return {"said": said, "events": events}
