"""etcd's key-value words over a real socket, on the real keyspace."""

from __future__ import annotations

import asyncio
import base64
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftkv import errors
from raftkv.client.failures import error_of
from raftkv.kv import KVApi, PutOp, TxnTooCostly
from raftkv.kv.large import SHORT_AT_ONCE
from raftkv.plugin import Host
from raftkv.server.answers import failure_of
from raftkv.server.gateway import Gateway
from raftkv.state import SetSetting
from tests.kv.fake_host import FakeHost
from tests.server.conftest import Served, b64

ALL = {"key": b64(b"\0"), "range_end": b64(b"\0")}


def keys(answer: Any) -> list[str]:
    return [kv["key"] for kv in answer.get("kvs", [])]


def test_a_put_is_read_back_with_its_revisions(served: Served) -> None:
    put = served.put(b"k", b"v")
    assert put["header"]["revision"] == "2"
    assert put["header"]["raft_term"] == "7"
    assert int(put["header"]["cluster_id"]) > 0
    assert int(put["header"]["member_id"]) > 0
    status, answer = served.post("/v3/kv/range", {"key": b64(b"k")})
    assert status == 200
    assert answer == {
        "header": put["header"],
        "kvs": [
            {
                "key": b64(b"k"),
                "create_revision": "2",
                "mod_revision": "2",
                "version": "1",
                "value": b64(b"v"),
            }
        ],
        "count": "1",
    }


def test_the_words_are_there_under_the_name_of_etcd_3_3(served: Served) -> None:
    put = served.post("/v3beta/kv/put", {"key": b64(b"k"), "value": b64(b"v")})
    assert put[0] == 200
    assert served.post("/v3beta/kv/range", ALL) == served.post("/v3/kv/range", ALL)
    assert keys(served.post("/v3beta/kv/range", ALL)[1]) == [b64(b"k")]


def test_defaults_are_left_out(served: Served) -> None:
    served.put(b"k", b"")
    assert served.post("/v3/kv/range", {"key": b64(b"none")})[1].keys() == {"header"}
    (kv,) = served.post("/v3/kv/range", {"key": b64(b"k")})[1]["kvs"]
    assert kv.keys() == {"key", "create_revision", "mod_revision", "version"}
    assert served.post("/v3/kv/deleterange", {"key": b64(b"none")})[1].keys() == {"header"}


def test_bytes_of_every_value_survive(served: Served) -> None:
    value = bytes(range(256))
    served.put(value, value)
    (kv,) = served.post("/v3/kv/range", {"key": b64(value)})[1]["kvs"]
    assert kv["key"] == kv["value"] == b64(value)


def test_prev_kv_of_put_and_delete(served: Served) -> None:
    served.put(b"k", b"1")
    body = {"key": b64(b"k"), "value": b64(b"2"), "prev_kv": True}
    assert served.post("/v3/kv/put", body)[1]["prev_kv"]["value"] == b64(b"1")
    answer = served.post("/v3/kv/deleterange", {"key": b64(b"k"), "prev_kv": True})[1]
    assert answer["deleted"] == "1"
    assert [kv["value"] for kv in answer["prev_kvs"]] == [b64(b"2")]


@pytest.mark.parametrize(
    ("request_body", "expected", "count", "more"),
    [
        ({"key": b64(b"b"), "range_end": b64(b"d")}, [b"b", b"c"], "2", False),
        ({"key": b64(b"b"), "range_end": b64(b"\0")}, [b"b", b"c", b"d"], "3", False),
        (ALL, [b"a", b"b", b"c", b"d"], "4", False),
        (ALL | {"limit": "2"}, [b"a", b"b"], "4", True),
        (ALL | {"limit": 2}, [b"a", b"b"], "4", True),
        (ALL | {"limit": -1}, [b"a", b"b", b"c", b"d"], "4", False),
        (ALL | {"count_only": True}, [], "4", False),
        (
            ALL | {"sort_order": "ASCEND", "sort_target": "KEY"},
            [b"a", b"b", b"c", b"d"],
            "4",
            False,
        ),
        (ALL | {"sort_order": 1, "sort_target": 0}, [b"a", b"b", b"c", b"d"], "4", False),
        ({"key": b64(b"d"), "range_end": b64(b"b")}, [], None, False),
    ],
)
def test_ranges(
    served: Served, request_body: Any, expected: list[bytes], count: str | None, more: bool
) -> None:
    for key in (b"a", b"b", b"c", b"d"):
        served.put(key, b"v" + key)
    status, answer = served.post("/v3/kv/range", request_body)
    assert status == 200, answer
    assert keys(answer) == [b64(key) for key in expected]
    assert answer.get("count") == count
    assert answer.get("more", False) is more


def test_a_revision_below_0_is_the_newest_as_in_etcd(served: Served) -> None:
    """A method of Python refuses it (tests/client/test_arguments.py)."""
    served.put(b"k", b"v")
    one = {"key": b64(b"k")}
    assert served.post("/v3/kv/range", {**one, "revision": "-1"}) == served.post(
        "/v3/kv/range", one
    )
    whole = served.post("/v3/kv/range", ALL)
    assert whole[1]["count"] == "1"
    for name in ("revision", "min_mod_revision"):
        assert served.post("/v3/kv/range", {**ALL, name: "-7"}) == whole, name
    for revision in ("-7", "-1"):
        status, answer = served.post("/v3/kv/compaction", {"revision": revision})
        assert (status, answer["code"]) == (400, 11)
        assert answer["error"] == "etcdserver: mvcc: required revision has been compacted"


def test_a_large_range_is_of_one_revision_whatever_happens_meanwhile(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raftkv.server.gateway.PAGE_KEYS", 3)
    monkeypatch.setattr("raftkv.server.large_answer.SLICE_ITEMS", 3)
    node = served.node
    gateway = Gateway(node)

    async def read(**more: Any) -> tuple[list[bytes], dict[str, Any]]:
        """The keys are changed, and their history is compacted, between the pages."""
        reading = asyncio.ensure_future(gateway.range(json.dumps({**ALL, **more}).encode()))
        for number in range(8):
            await asyncio.sleep(0)
            assert not reading.done()
            await node.kv.put(b"%d" % (9 - number), b"new")
            await node.kv.compact(node.kv.revision)
        answer = json.loads(await reading)
        return [base64.b64decode(kv.get("value", "")) for kv in answer["kvs"]], answer

    async def scenario() -> None:
        for number in range(30):
            await node.kv.put(b"%02d" % number, b"old")
        now = str(node.kv.revision)
        values, answer = await read()
        assert (values, answer["count"], answer["header"]["revision"]) == ([b"old"] * 30, "30", now)
        for number in range(30):
            await node.kv.put(b"%02d" % number, b"newer")
        now = str(node.kv.revision)
        was = node.kv.revision - 30
        values, answer = await read(revision=was, limit=29)
        assert values == [b"old"] * 20 + [b"new"] + [b"old"] * 8  # b"2" stands before b"20"
        assert (answer["count"], answer["more"], answer["header"]["revision"]) == ("38", True, now)

    served.run(scenario())


def test_a_large_answer_in_another_order_is_written_in_parts(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        served.put(b"%02d" % number, b"v" * 20)
    ordered = {**ALL, "sort_order": "DESCEND"}
    whole = served.post("/v3/kv/range", ordered)
    monkeypatch.setattr("raftkv.server.large_answer.SLICE_ITEMS", 4)
    assert served.post("/v3/kv/range", ordered) == whole
    some = served.post("/v3/kv/range", {**ordered, "limit": "9"})[1]
    assert (keys(some), some["more"], some["count"]) == (keys(whole[1])[:9], True, "30")
    monkeypatch.setattr("raftkv.server.large_answer.ANSWER_BYTES_MAX", 1000)
    status, answer = served.post("/v3/kv/range", ordered)
    assert (status, answer["reason"]) == (400, "too_large")
    assert "1000 bytes" in str(answer)


def test_a_range_of_few_large_values_is_written_in_slices(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        served.put(b"%02d" % number, b"v" * 100)
    requests: list[Any] = [ALL, {**ALL, "limit": "20"}, {**ALL, "sort_order": "DESCEND"}]
    whole = [served.post("/v3/kv/range", request) for request in requests]
    assert all(status == 200 for status, _ in whole)
    monkeypatch.setattr("raftkv.server.large_answer.SLICE_BYTES", 500)
    assert [served.post("/v3/kv/range", request) for request in requests] == whole

    async def turns(request: Any) -> int:
        """How many turns of the loop it takes."""
        reading = asyncio.ensure_future(
            Gateway(served.node).range(json.dumps(request | {"serializable": True}).encode())
        )
        count = 0
        while not reading.done():
            await asyncio.sleep(0)
            count += 1
        return count

    for request in requests:
        assert served.run(turns(request)) >= 4
    monkeypatch.setattr("raftkv.server.large_answer.ANSWER_BYTES_MAX", 2000)
    for request in requests:
        status, answer = served.post("/v3/kv/range", request)
        assert (status, answer["reason"]) == (400, "too_large")
    assert served.post("/v3/kv/range", {**ALL, "limit": "4"})[0] == 200


def test_keys_only_leaves_the_values_out(served: Served) -> None:
    served.put(b"k", b"v")
    (kv,) = served.post("/v3/kv/range", ALL | {"keys_only": True})[1]["kvs"]
    assert "value" not in kv


def test_serializable_reads_the_local_copy(served: Served) -> None:
    served.post("/v3/kv/range", ALL | {"serializable": True})
    assert set(served.node.host.consistencies) == {"local"}
    served.post("/v3/kv/range", ALL)
    assert served.node.host.consistencies.count("linearizable") == 1


@pytest.mark.parametrize("end", [b"\0", b"d"])
def test_delete_range(served: Served, end: bytes) -> None:
    for key in (b"a", b"b", b"c"):
        served.put(key, b"v")
    body = {"key": b64(b"b"), "range_end": b64(end)}
    assert served.post("/v3/kv/deleterange", body)[1]["deleted"] == "2"
    assert keys(served.post("/v3/kv/range", ALL)[1]) == [b64(b"a")]


TXN = {
    "compare": [{"key": b64(b"k"), "target": "VERSION", "result": "EQUAL", "version": "0"}],
    "success": [
        {"request_put": {"key": b64(b"k"), "value": b64(b"v")}},
        {"request_range": {"key": b64(b"k")}},
    ],
    "failure": [{"request_delete_range": {"key": b64(b"k"), "prev_kv": True}}],
}


def test_a_transaction_takes_either_branch(served: Served) -> None:
    status, first = served.post("/v3/kv/txn", TXN)
    assert status == 200
    assert first["succeeded"] is True
    put, found = first["responses"]
    assert put == {"response_put": {"header": {"revision": "2"}}}
    assert found["response_range"]["kvs"][0]["value"] == b64(b"v")
    second = served.post("/v3/kv/txn", TXN)[1]
    assert "succeeded" not in second
    (deleted,) = second["responses"]
    assert deleted["response_delete_range"]["deleted"] == "1"
    assert second["header"]["revision"] == "3"


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ({"target": "VALUE", "value": b64(b"v")}, True),
        ({"target": "VALUE", "value": b64(b"w"), "result": "LESS"}, True),
        ({"target": "VALUE", "value": b64(b"w"), "result": "GREATER"}, False),
        ({"target": 3, "result": 3, "value": b64(b"v")}, False),
        ({"target": "CREATE", "create_revision": "2"}, True),
        ({"target": "MOD", "mod_revision": 1, "result": "GREATER"}, True),
        ({"target": "VERSION", "version": 1, "result": "NOT_EQUAL"}, False),
    ],
)
def test_comparisons(served: Served, condition: dict[str, Any], holds: bool) -> None:
    served.put(b"k", b"v")
    answer = served.post("/v3/kv/txn", {"compare": [{"key": b64(b"k"), **condition}]})[1]
    assert answer.get("succeeded", False) is holds


def test_camel_case_nulls_and_unknown_fields_are_read_as_etcd_reads_them(served: Served) -> None:
    body = {
        "compare": [{"createRevision": "0", "target": "CREATE", "key": b64(b"k"), "result": None}],
        "success": [{"requestPut": {"key": b64(b"k"), "value": b64(b"v"), "prevKv": True}}],
        "somethingElse": {"deep": [1]},
    }
    status, answer = served.post("/v3/kv/txn", body)
    assert status == 200
    assert answer["succeeded"] is True
    assert served.post("/v3/kv/range", {"key": b64(b"k"), "rangeEnd": None})[1]["count"] == "1"


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b'"x"', b'{"key":1}', b'{"key":"&&"}', b'{"limit":"x"}', b"\xff", b"[" * 100_000],
)
def test_what_is_no_request_is_refused(served: Served, body: bytes) -> None:
    status, answer = served.post("/v3/kv/range", body)
    assert status == 400
    assert answer["code"] == 3
    assert answer["error"] == answer["message"]


@pytest.mark.parametrize("body", [b"", b"{}", b" "])
def test_a_request_without_a_key_gets_etcds_answer(served: Served, body: bytes) -> None:
    for path in ("range", "put", "deleterange"):
        status, answer = served.post(f"/v3/kv/{path}", body)
        assert (status, answer["code"]) == (400, 3)
        assert answer["error"] == "etcdserver: key is not provided"


def test_integers_beyond_64_bits_are_refused(served: Served) -> None:
    for limit in (2**63, str(2**63), -(2**63) - 1):
        status, answer = served.post("/v3/kv/range", ALL | {"limit": limit})
        assert (status, answer["code"]) == (400, 3)


def test_duplicate_keys_in_a_transaction_get_etcds_answer(served: Served) -> None:
    put = {"request_put": {"key": b64(b"k"), "value": b64(b"v")}}
    status, answer = served.post("/v3/kv/txn", {"success": [put, put]})
    assert (status, answer["code"]) == (400, 3)
    assert answer["error"] == "etcdserver: duplicate key given in txn request"


@pytest.mark.parametrize("operation", [{}, {"request_range": ALL, "request_put": ALL}])
def test_an_operation_is_exactly_one_request(served: Served, operation: Any) -> None:
    status, answer = served.post("/v3/kv/txn", {"success": [operation]})
    assert (status, answer["code"]) == (400, 3)


def test_unknown_enum_values_are_refused(served: Served) -> None:
    for order in ("SIDEWAYS", 9, "9"):
        assert served.post("/v3/kv/range", ALL | {"sort_order": order})[0] == 400


@pytest.mark.parametrize(
    ("trouble", "status", "code", "reason"),
    [
        (errors.NoLeader("none"), 503, 14, "no_leader"),
        (errors.Overloaded("full"), 429, 8, "overloaded"),
        (errors.Stopped("stopping"), 503, 14, "stopped"),
        (errors.DiskFailed("no space"), 503, 14, "disk_failed"),
        (errors.Timeout("late"), 504, 4, "timeout"),
        (errors.ReadTimeout("late"), 504, 4, "read_timeout"),
        (errors.TooLarge("big"), 400, 3, "too_large"),
        (errors.PluginFault("kv", "KeyError"), 412, 9, "plugin_fault"),
        (ValueError("a bug"), 500, 13, "internal"),
    ],
)
def test_errors_of_the_node(
    served: Served, trouble: Exception, status: int, code: int, reason: str
) -> None:
    served.node.host.trouble = lambda: trouble
    found, answer = served.post("/v3/kv/put", {"key": b64(b"k")})
    assert (found, answer["code"], answer["reason"]) == (status, code, reason)
    assert "a bug" not in json.dumps(answer), "what an unexpected error says is for the log"


def test_a_value_over_the_limit_names_the_limit_and_changes_nothing(served: Served) -> None:
    body = {"key": b64(b"k"), "value": b64(b"x" * (1024 * 1024 + 1))}
    status, answer = served.post("/v3/kv/put", body)
    assert (status, answer["code"]) == (400, 3)
    assert answer["error"] == "etcdserver: request is too large"
    assert "value_bytes_max" in answer["detail"]
    assert "kvs" not in served.post("/v3/kv/range", ALL)[1]


def test_a_transaction_that_looks_at_too_much_says_what_to_do(served: Served) -> None:
    served.node.host.apply("core", SetSetting.of("kv", "rows_max", 3))
    for number in range(4):
        served.put(b"%d" % number, b"v")
    compare = [{**ALL, "target": "VERSION", "result": "GREATER", "version": "0"}]
    write = [{"request_put": {"key": b64(b"k"), "value": b64(b"v")}}]
    status, answer = served.post("/v3/kv/txn", {"compare": compare, "success": write})
    assert (status, answer["code"], answer["reason"]) == (412, 9, "txn_too_costly")
    assert "compare mod revisions" in answer["detail"]
    assert answer["args"] == [answer["detail"], 3]
    assert "kvs" not in served.post("/v3/kv/range", {"key": b64(b"k")})[1]
    error = error_of("http://n1", status, json.dumps(answer).encode())
    assert isinstance(error, TxnTooCostly)
    assert error.args == (answer["detail"], 3)


def test_a_transaction_that_only_reads_takes_no_entry_and_is_written_in_parts(
    served: Served,
) -> None:
    for number in range(1500):
        served.run(served.node.kv.put(b"%04d" % number, b"v"))
    index = served.node.host.machine.index
    whole = {"key": b64(b"\0"), "range_end": b64(b"\0")}
    body = {
        "compare": [{**whole, "target": "VERSION", "result": "EQUAL", "version": "1"}],
        "success": [
            {"request_range": {**whole, "sort_order": "DESCEND", "sort_target": "KEY"}},
            {"request_txn": {"success": [{"request_range": {**whole, "limit": "1"}}]}},
        ],
    }
    for _ in range(3):  # on the usual way and on the short one
        status, answer = served.post("/v3/kv/txn", body)
        assert (status, answer["succeeded"]) == (200, True)
        first, second = answer["responses"]
        kvs = first["response_range"]["kvs"]
        assert [kv["key"] for kv in kvs] == [b64(b"%04d" % n) for n in reversed(range(1500))]
        assert first["response_range"]["count"] == "1500"
        assert first["response_range"]["header"] == {"revision": "1501"}
        inner = second["response_txn"]["responses"][0]["response_range"]
        assert (len(inner["kvs"]), inner["more"], inner["count"]) == (1, True, "1500")
        assert answer["header"]["revision"] == "1501"
    assert served.node.host.machine.index == index


def test_c9_a_fault_is_answered_without_its_text() -> None:
    """It names files of the server."""
    failure = failure_of(errors.DiskFailed("/srv/raftkv/a/wal/1.wal cannot be used"))
    assert failure is not None
    assert (failure.status, failure.reason) == (503, "disk_failed")
    assert b"/srv" not in failure.body
    assert b"its log has the reason" in failure.body


def test_a_large_range_takes_a_place_by_what_the_barrier_has_waited_for() -> None:
    """The copy was empty when the request came."""

    class LateHost(FakeHost):
        def __init__(self) -> None:
            super().__init__()
            self.applied = asyncio.Event()

        async def barrier(
            self, consistency: str = "linearizable", *, timeout_s: float | None = None
        ) -> None:
            if consistency == "linearizable":
                await self.applied.wait()

    async def play() -> None:
        host = LateHost()
        kv = KVApi(cast(Host, host))
        node = SimpleNamespace(kv=kv, barrier=host.barrier)
        gateway = Gateway(cast(Any, node), cast(Any, SimpleNamespace(json=lambda revision: b"{}")))
        body = json.dumps({"key": b64(b"k"), "range_end": b64(b"l")}).encode()
        tasks = [asyncio.create_task(gateway.range(body)) for _ in range(20)]
        await asyncio.sleep(0)
        for begin in range(0, 3_000, 100):
            names = range(begin, begin + 100)
            await kv.txn(success=[PutOp(b"k%06d" % number, b"v") for number in names])
        host.applied.set()
        at_once = 0
        while not all(task.done() for task in tasks):
            at_once = max(at_once, SHORT_AT_ONCE - kv._places._short._value)
            await asyncio.sleep(0)
        assert at_once == SHORT_AT_ONCE
        assert {json.loads(await task)["count"] for task in tasks} == {"3000"}

    asyncio.run(play())
