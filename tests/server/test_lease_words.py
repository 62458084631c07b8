"""etcd's lease words at the door, and the words on the cluster."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from raftkv import errors
from raftkv.client.failures import error_of
from raftkv.errors import NoSpace
from tests.server.conftest import Served, b64
from tests.server.wire import Wire, post

HEAD = {"revision": "1", "raft_term": "7"}


def ask(served: Served, path: str, body: Any) -> Any:
    status, answer = served.post(path, body)
    assert status == 200, answer
    header = answer["header"]
    answer["header"] = {key: header[key] for key in header if not key.endswith("_id")}
    return answer


def test_the_hash_of_the_keys(served: Served) -> None:
    for number in range(3):
        served.put(b"%d" % number, b"v")
    newest = ask(served, "/v3/maintenance/hashkv", {})
    assert newest["header"]["revision"] == newest["hash_revision"] == "4"
    assert (newest["keys"], newest["compact_revision"]) == ("3", "-1")
    assert newest["hash"] == int(newest["digest"][:8], 16)
    former = ask(served, "/v3/maintenance/hashkv", {"revision": "3"})
    assert (former["hash_revision"], former["keys"]) == ("3", "2")
    assert former["header"]["revision"] == "4"
    assert former["digest"] != newest["digest"]
    assert ask(served, "/v3/maintenance/hashkv", {"revision": "-1"}) == newest
    status, answer = served.post("/v3/maintenance/hashkv", {"revision": "9"})
    assert (status, answer["reason"]) == (400, "future_revision")


def test_the_alarms_of_the_node_itself(served: Served) -> None:
    assert ask(served, "/v3/maintenance/alarm", {}) == {"header": HEAD}
    served.node.alarms = ["DISK"]
    found = ask(served, "/v3/maintenance/alarm", {"action": "GET"})
    ((own, alarm),) = [(each["memberID"], each["alarm"]) for each in found["alarms"]]
    assert alarm == "DISK"
    for body, shown in (
        ({"memberID": own}, True),
        ({"memberID": "1"}, False),
        ({"action": 0, "alarm": "DISK"}, True),
        ({"alarm": "NOSPACE"}, False),
    ):
        assert ("alarms" in ask(served, "/v3/maintenance/alarm", body)) is shown, body
    status = ask(served, "/v3/maintenance/status", {})
    assert status["errors"] == [f"memberID:{own} alarm:DISK"]
    for action, text in (("ACTIVATE", "cannot be raised"), (2, "ends by itself")):
        code, answer = served.post("/v3/maintenance/alarm", {"action": action, "alarm": "DISK"})
        assert code == 400
        assert text in answer["message"]


def test_nospace_is_disarmed_as_by_etcds_clients(served: Served) -> None:
    served.node.alarms = ["NOSPACE"]
    found = ask(served, "/v3/maintenance/alarm", {"action": "GET"})
    assert [each["alarm"] for each in found["alarms"]] == ["NOSPACE"]
    # etcdctl sends back what it was shown.
    for body in (found["alarms"][0], {"alarm": "NOSPACE"}, {}):
        ended = ask(served, "/v3/maintenance/alarm", {"action": "DEACTIVATE", **body})
        assert ended["alarms"] == found["alarms"]
    assert served.node.quotas.disarmed == 3


def test_a_write_beyond_the_quota_has_etcds_text(served: Served) -> None:
    served.node.host.trouble = lambda: NoSpace("kv")
    for path, body in (
        ("/v3/kv/put", {"key": "YQ=="}),
        ("/v3/kv/txn", {"success": [{"requestPut": {"key": "YQ=="}}]}),
        ("/v3/lease/grant", {"TTL": "60"}),
    ):
        code, answer = served.post(path, body)
        assert code == 429
        assert answer["error"] == "etcdserver: mvcc: database space exceeded"
        assert (answer["code"], answer["reason"]) == (8, "no_space")
        assert "raftkv alarm disarm" in answer["detail"]
        again = error_of("http://n1", code, json.dumps(answer).encode())
        assert isinstance(again, NoSpace)
        assert (again.args, str(again)) == (("kv",), answer["detail"])


def test_a_lease_is_granted_looked_at_and_revoked(served: Served) -> None:
    grant = ask(served, "/v3/lease/grant", {"TTL": "60", "ID": 5})
    assert grant == {"header": HEAD, "ID": "5", "TTL": "60"}
    served.post("/v3/kv/put", {"key": b64(b"k"), "lease": "5"})
    head = HEAD | {"revision": "2"}
    for path in ("/v3/lease/timetolive", "/v3/kv/lease/timetolive"):
        found = ask(served, path, {"ID": "5", "keys": True})
        assert found == {
            "header": head, "ID": "5", "TTL": "60", "grantedTTL": "60", "keys": [b64(b"k")],
        }  # fmt: skip
    for path in ("/v3/lease/leases", "/v3/kv/lease/leases"):
        assert ask(served, path, {}) == {"header": head, "leases": [{"ID": "5"}]}
    revoked = ask(served, "/v3/kv/lease/revoke", {"ID": "5"})
    assert revoked == {"header": HEAD | {"revision": "3"}, "deleted": "1"}
    assert ask(served, "/v3/lease/leases", b"")["header"]["revision"] == "3"


def test_a_lease_that_is_gone_has_no_time(served: Served) -> None:
    found = ask(served, "/v3/lease/timetolive", {"ID": "5"})
    assert found == {"header": HEAD, "ID": "5", "TTL": "-1"}
    assert ask(served, "/v3/lease/timetolive", {}) == {"header": HEAD, "TTL": "-1"}


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "text"),
    [
        ("lease/revoke", {"ID": 9}, 404, 5, "etcdserver: requested lease not found"),
        ("lease/grant", {"TTL": 10, "ID": 4}, 412, 9, "etcdserver: lease already exists"),
        ("lease/grant", {"TTL": 9_000_000_001}, 400, 11, "etcdserver: too large lease TTL"),
        ("kv/put", {"key": "aw==", "lease": 9}, 404, 5, "etcdserver: requested lease not found"),
        ("kv/put", {"key": "aw==", "ignore_value": True}, 400, 3, "etcdserver: key not found"),
        (
            "kv/put",
            {"key": "aw==", "ignore_value": True, "value": "aw=="},
            400,
            3,
            "etcdserver: value is provided",
        ),
        (
            "kv/put",
            {"key": "aw==", "ignore_lease": True, "lease": 4},
            400,
            3,
            "etcdserver: lease is provided",
        ),
        ("kv/compaction", {"revision": 9}, 400, 11,
         "etcdserver: mvcc: required revision is a future revision"),
        ("kv/range", {"key": "aw==", "revision": 9}, 400, 11,
         "etcdserver: mvcc: required revision is a future revision"),
        ("kv/txn", {"compare": [{"key": "aw=="}] * 129}, 400, 3,
         "etcdserver: too many operations in txn request"),
    ],
)  # fmt: skip
def test_refusals_are_etcds(
    served: Served, path: str, body: Any, status: int, code: int, text: str
) -> None:
    served.post("/v3/lease/grant", {"TTL": 10, "ID": 4})
    found, answer = served.post(f"/v3/{path}", body)
    assert (found, answer["code"], answer["error"]) == (status, code, text)
    assert answer["message"] == text
    assert list(answer)[:3] == ["error", "message", "code"]


def test_names_are_those_of_etcds_messages(served: Served) -> None:
    """`ttl` is no field of etcd's: it is ignored, and the shortest lease is granted."""
    assert ask(served, "/v3/lease/grant", {"ttl": 100, "ID": 1})["TTL"] != "100"


def test_keep_alive_answers_each_request_and_ends_with_the_body(served: Served) -> None:
    ask(served, "/v3/lease/grant", {"TTL": 60, "ID": 5})
    with Wire(served.door.port) as wire:
        wire.open_stream("/v3/lease/keepalive", {"ID": "5"})
        assert wire.head()[0] == 200
        assert wire.result()["TTL"] == "60"
        wire.say({"ID": 6}, b" \n", {"ID": 5})
        assert {"header", "ID"} == set(wire.result())
        assert wire.result()["ID"] == "5"
        wire.end_body()
        assert wire.line() is None
        wire.send(post("/v3/kv/range", b'{"key":"aw=="}'))
        assert wire.response()[0] == 200, "the connection goes on"


def test_keep_alive_with_one_request_is_what_most_clients_send(served: Served) -> None:
    ask(served, "/v3/lease/grant", {"TTL": 60, "ID": 5})
    status, _, body = served.ask("POST", "/v3/lease/keepalive", b'{"ID":"5"}')
    assert status == 200
    assert json.loads(body)["result"]["TTL"] == "60"


def test_keep_alive_without_a_leader_is_an_ordinary_error(served: Served) -> None:
    served.node.host.trouble = lambda: errors.NoLeader("none")
    status, headers, body = served.ask("POST", "/v3/lease/keepalive", b'{"ID":"5"}')
    assert (status, headers["retry-after"]) == (503, "1")
    assert json.loads(body)["error"] == "etcdserver: no leader"


def test_an_unexpected_error_in_a_stream_says_nothing_of_itself(served: Served) -> None:
    served.node.host.trouble = lambda: ValueError("secret")
    status, _, body = served.ask("POST", "/v3/lease/keepalive", b'{"ID":"5"}')
    assert status == 500
    assert b"secret" not in body


def test_members_are_all_nodes_and_replicants_are_learners(served: Served) -> None:
    answer = ask(served, "/v3/cluster/member/list", {})
    assert answer["header"] == {"raft_term": "7"}
    found = {member["name"]: member for member in answer["members"]}
    assert found["solo"]["peerURLs"] == ["http://127.0.0.1:1"]
    assert found["solo"]["clientURLs"] == ["http://127.0.0.1:2"]
    assert "isLearner" not in found["solo"]
    assert found["reader"]["isLearner"] is True
    assert "clientURLs" not in found["reader"]
    ids = [int(member["ID"]) for member in answer["members"]]
    assert ids == sorted(ids)


def test_the_status_of_a_member(served: Served) -> None:
    members = ask(served, "/v3/cluster/member/list", {})["members"]
    (own,) = (member["ID"] for member in members if member["name"] == "solo")
    answer = ask(served, "/v3/maintenance/status", {})
    assert answer == {
        "header": HEAD,
        "version": "3.4.0",
        "leader": own,
        "raftIndex": "1",
        "raftTerm": "7",
        "raftAppliedIndex": "1",
    }
    served.node.leader = None
    lonely = ask(served, "/v3/maintenance/status", {})
    assert lonely["errors"] == ["etcdserver: no leader"]
    assert "leader" not in lonely


def test_a_long_list_takes_several_turns_of_the_loop(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raftkv.server.large_answer.SLICE_ITEMS", 5)
    for number in range(1, 31):
        ask(served, "/v3/lease/grant", {"TTL": 60, "ID": number})
    for number in range(1, 31):
        body = {"key": b64(b"%02d" % number), "value": "", "lease": 30}
        assert served.post("/v3/kv/put", body)[0] == 200
    listed = ask(served, "/v3/lease/leases", {})["leases"]
    assert [int(each["ID"]) for each in listed] == list(range(1, 31))
    keys = ask(served, "/v3/lease/timetolive", {"ID": 30, "keys": True})["keys"]
    assert keys == [b64(b"%02d" % number) for number in range(1, 31)]

    async def turns(path: str, body: bytes) -> int:
        asked = asyncio.ensure_future(served.app._reading[path](body))
        count = 0
        while not asked.done():
            await asyncio.sleep(0)
            count += 1
        await asked
        return count

    assert served.run(turns("/v3/lease/leases", b"{}")) >= 6
    assert served.run(turns("/v3/lease/timetolive", b'{"ID":30,"keys":true}')) >= 6
    monkeypatch.setattr("raftkv.server.large_answer.ANSWER_BYTES_MAX", 100)
    for path, asked in (("leases", {}), ("timetolive", {"ID": 30, "keys": True})):
        status, answer = served.post(f"/v3/lease/{path}", asked)
        assert (status, answer["reason"]) == (400, "too_large")
