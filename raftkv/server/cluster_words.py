"""etcd's words on the cluster that are served: the list of members, a member's status, its hash.

A replicant is shown as a learner: it has all the data, answers every word, and has no vote. Sizes
of a database file are left out, because there is none.
"""

from __future__ import annotations

from typing import Final

import msgspec

from . import messages
from .answers import BadRequest
from .encoding import Headers, wire_id
from .ports import DoorNode, MemberStanding

__all__ = ["ETCD_API_VERSION", "ClusterWords"]

#: The level of etcd's API that clients may expect here. Some choose their words by it.
ETCD_API_VERSION: Final = "3.4.0"


_NAMES: Final = {
    "id": "ID",
    "member_id": "memberID",
    "peer_urls": "peerURLs",
    "client_urls": "clientURLs",
    "is_learner": "isLearner",
    "raft_index": "raftIndex",
    "raft_term": "raftTerm",
    "raft_applied_index": "raftAppliedIndex",
}


class _Member(msgspec.Struct, omit_defaults=True, rename=_NAMES):
    id: str = ""
    name: str = ""
    peer_urls: list[str] = []
    client_urls: list[str] = []
    is_learner: bool = False


class _Status(msgspec.Struct, omit_defaults=True, rename=_NAMES):
    version: str = ""
    leader: str = ""
    raft_index: str = ""
    raft_term: str = ""
    raft_applied_index: str = ""
    errors: list[str] = []
    is_learner: bool = False


#: The alarm of a used-up quota (raftkv/state/quota.py).
_NOSPACE: Final = "NOSPACE"


class _Alarm(msgspec.Struct, omit_defaults=True, rename=_NAMES):
    member_id: str = ""
    alarm: str = ""


class ClusterWords:
    """Each method takes a request's JSON body and returns the JSON of the answer.

    `scheme` is that of the doors, `http` or `https`: the same on all nodes of a cluster.
    """

    def __init__(self, node: DoorNode, headers: Headers, scheme: str = "http") -> None:
        self._node = node
        self._header = headers.json
        self._scheme = scheme
        self._requests = messages.decoder_of(messages.NoRequest)
        self._alarm_requests = messages.decoder_of(messages.AlarmRequest)
        self._hash_requests = messages.decoder_of(messages.HashRequest)

    async def members(self, body: bytes) -> bytes:
        """`POST /v3/cluster/member/list`. The header has no revision, as etcd's."""
        messages.decode(self._requests, body)
        status = self._node.status()
        listed = [self._member(status.cluster_id, member) for member in status.members]
        listed.sort(key=lambda member: int(member.id))
        form = b'{"header":%b,"members":%b}'
        return form % (self._header(0), msgspec.json.encode(listed))

    async def status(self, body: bytes) -> bytes:
        """`POST /v3/maintenance/status`."""
        messages.decode(self._requests, body)
        status, leader, term = self._node.status(), self._node.leader, self._node.term
        own = wire_id(status.cluster_id, status.name)
        shown = _Status(
            version=ETCD_API_VERSION,
            leader="" if leader is None else str(wire_id(status.cluster_id, leader)),
            raft_index=_number(status.commit_index),
            raft_term=_number(term),
            raft_applied_index=_number(status.applied_index),
            errors=[
                *([] if leader is not None else ["etcdserver: no leader"]),
                *(f"memberID:{own} alarm:{name}" for name in status.alarms),
            ],
            is_learner=status.role == "replicant",
        )
        rest = msgspec.json.encode(shown)[1:]
        return b'{"header":%b,%b' % (self._header(self._node.kv.revision), rest)

    async def hash(self, body: bytes) -> bytes:
        """`POST /v3/maintenance/hashkv`, of later etcds: of this node's own keys, as they are here.

        With `hash_revision`, as etcd 3.6 has it, and beside it `keys` and the whole `digest`.
        """
        request = messages.decode(self._hash_requests, body)
        kv = self._node.kv
        found = await kv.hash(max(request.revision, 0), consistency="local")
        form = b'{"header":%b,"hash":%d,"compact_revision":"%d","hash_revision":"%d",'
        head = form % (self._header(kv.revision), found.short, kv.lowest_revision, found.revision)
        return head + b'"keys":"%d","digest":"%b"}' % (found.keys, found.digest.hex().encode())

    async def alarm(self, body: bytes) -> bytes:
        """`POST /v3/maintenance/alarm`: the alarms of this node and of the cluster.

        `memberID` and `alarm` choose as etcd's do; 0 and NONE are all. The action DEACTIVATE ends
        NOSPACE, which is the cluster's: whatever member is named.
        """
        request = messages.decode(self._alarm_requests, body)
        kind = messages.enum_value(request.alarm, messages.ALARM_TYPES, "alarm")
        action = messages.enum_value(request.action, messages.ALARM_ACTIONS, "action")
        if messages.ALARM_ACTIONS[action] == "DEACTIVATE":
            return await self._disarm(kind)
        if action:
            raise BadRequest(
                "an alarm cannot be raised by a request: NOSPACE is raised by a write beyond the "
                "quota, DISK by a node's disk, CORRUPT by a comparison of the cores; leave the "
                "action out to see them"
            )
        status = self._node.status()
        own = wire_id(status.cluster_id, status.name)
        shown = [
            _Alarm(str(own), name)
            for name in status.alarms
            if request.memberID in (0, own) and kind in (0, messages.ALARM_TYPES.index(name))
        ]
        listed = b',"alarms":' + msgspec.json.encode(shown) if shown else b""
        return b'{"header":%b%b}' % (self._header(self._node.kv.revision), listed)

    async def _disarm(self, kind: int) -> bytes:
        if messages.ALARM_TYPES[kind] not in ("NONE", _NOSPACE):
            raise BadRequest(
                f"{messages.ALARM_TYPES[kind]} ends by itself when its cause has gone; only "
                f"{_NOSPACE} can be disarmed"
            )
        own = wire_id(self._node.status().cluster_id, self._node.status().name)
        ended = await self._node.quotas.disarm()
        shown = [_Alarm(str(own), _NOSPACE)] if ended else []
        listed = b',"alarms":' + msgspec.json.encode(shown) if shown else b""
        return b'{"header":%b%b}' % (self._header(self._node.kv.revision), listed)

    def _member(self, cluster_id: str, member: MemberStanding) -> _Member:
        client = member.http_address
        return _Member(
            id=str(wire_id(cluster_id, member.name)),
            name=member.name,
            peer_urls=[f"{self._scheme}://{member.peer_address}"],
            client_urls=[] if client is None else [f"{self._scheme}://{client}"],
            is_learner=member.role == "replicant",
        )


def _number(value: int) -> str:
    """A 64-bit number in JSON; a default is left out."""
    return str(value) if value else ""
