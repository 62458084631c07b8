"""`/v1/conf/...`, handler by handler, on simulated nodes with real consensus."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from raftkv.errors import NoLeader
from raftkv.plugin import Request, Response
from raftkv.state.core import SetSetting
from tests.metrics_page import documented
from tests.plugins.raftkv_conf.conf_world import ConfWorld

BAD = (400, "bad_request")
SECRET = "s3cret"
DEEP = b'{"value": ' + 10_000 * b"[" + 10_000 * b"]" + b"}"


class Stand:
    """A cluster of three cores, and the doors of all of them."""

    def __init__(self, world: ConfWorld) -> None:
        self.world = world

    def ask(
        self,
        method: str,
        path: str,
        of: str = "",
        *,
        query: dict[str, str] | None = None,
        body: Any = None,
        at: str = "core1",
    ) -> tuple[int, Any]:
        """The status and the body as whoever asked gets them."""
        service = self.world.nodes[at].hosting.services["conf"]
        routes = {(route.method, route.path): route.handler for route in service.routes()}
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = Request({"path": of}, query or {}, b"" if body is None else data, "")
        handler: Any = routes[method, path](request)
        response: Response = self.world.do(at, handler)
        return response.status, json.loads(msgspec.json.encode(response.body))

    def put(self, path: str, value: Any, **words: Any) -> tuple[int, Any]:
        return self.ask("PUT", "values/{path}", path, body={"value": value, **words})

    def get(self, path: str, at: str = "core1") -> tuple[int, Any]:
        return self.ask("GET", "values/{path}", path, at=at)


@pytest.fixture
def stand() -> Iterator[Stand]:
    with ConfWorld(seed=7, local={"core3": {"mail.host": "here"}}) as world:
        yield Stand(world)


def reason(answer: tuple[int, Any]) -> tuple[int, str]:
    """The status and the stable word of an error, which has all that errors of the door have."""
    status, body = answer
    assert body["error"] == body["message"]
    assert isinstance(body["code"], int)
    return status, body["reason"]


def test_a_value_is_set_read_and_unset(stand: Stand) -> None:
    status, done = stand.put("mail.port", 587)
    assert (status, done["outcome"], done["nodes"]) == (200, "ok", [])
    assert done["id"] >= 1
    status, found = stand.get("mail.port", at="core2")
    assert (status, found["node"], found["value"], found["source"]) == (200, "core2", 587, "set")
    assert found["doc"] == "Where mail goes."
    query = {"required": "core1,core2,core3", "timeout_s": "20"}
    status, done = stand.ask("DELETE", "values/{path}", "mail.port", query=query)
    assert (status, done["outcome"]) == (200, "ok")
    assert stand.get("mail.port")[1]["value"] == 25
    assert stand.world.rooms["core2"].brought == [("mail.port", 587), ("mail.port", 25)]


def test_any_json_is_a_value_below_user(stand: Stand) -> None:
    for value in ({"a": [1, None]}, "text", None, False):
        assert stand.put("user.mine", value)[0] == 200
        assert stand.get("user.mine", at="core3")[1]["value"] == value


def test_refused_values_change_nothing_and_are_not_quoted(stand: Stand) -> None:
    before = stand.get("mail.port")
    for path, value, answer, advice in (
        ("mail.port", 70_000, (400, "conf_invalid_value"), "must be 1 to 65535"),
        ("mail.port", SECRET, (400, "conf_invalid_value"), "Expected `int`, got `str`"),
        ("mail.prot", 1, (404, "conf_unknown_path"), "did you mean mail.port"),
    ):
        got = stand.put(path, value)
        assert reason(got) == answer, got
        assert advice in got[1]["error"]
        assert SECRET not in got[1]["error"]
    stand.world.rooms["core1"].broken.add("mail.port")
    got = stand.put("mail.port", 587)
    assert reason(got) == (409, "conf_not_set")
    assert "587" not in got[1]["error"]
    # What was in effect before is brought about again.
    stand.world.rooms["core1"].broken.clear()
    stand.world.until(lambda: stand.get("mail.port") == before)


def test_too_much_is_refused_before_anything_is_changed(stand: Stand) -> None:
    # One value is limited by the calls, all of them together by the configuration.
    raised = SetSetting.of("calls", "args_bytes_max", 1024 * 1024)
    stand.world.do("core1", stand.world.nodes["core1"].propose("core", raised))
    assert stand.put("user.one", "x" * 600_000)[0] == 200
    got = stand.put("user.two", "x" * 600_000)
    assert reason(got) == (400, "conf_too_much")
    assert "keep large data in the keyspace" in got[1]["error"]
    assert stand.get("user.two")[1]["source"] == "default"


def test_wrong_requests_say_what_is_right(stand: Stand) -> None:
    good = {"value": 587}
    for method, path, query, body, advice in (
        ("PUT", "values/{path}", {}, b"", "missing required field `value`"),
        ("PUT", "values/{path}", {}, b"\xff", "JSON with value, required, timeout_s"),
        ("PUT", "values/{path}", {}, DEEP, "nested too deep"),
        ("PUT", "values/{path}", {}, {**good, "wait": 1}, "unknown field"),
        ("PUT", "values/{path}", {}, {**good, "required": "core1"}, "a list of their names"),
        ("PUT", "values/{path}", {}, {**good, "required": []}, "required is empty"),
        ("PUT", "values/{path}", {}, {**good, "timeout_s": 0}, "> 0"),
        ("PUT", "values/{path}", {"value": "1"}, good, "it takes none"),
        ("DELETE", "values/{path}", {"required": "a,,b"}, None, "names with commas"),
        ("DELETE", "values/{path}", {"required": "0"}, None, "say 1 or more"),
        ("DELETE", "values/{path}", {"timeout_s": "nan"}, None, "say more than 0"),
        ("DELETE", "values/{path}", {"timeout_s": "soon"}, None, "say more than 0"),
        ("DELETE", "values/{path}", {"wait": "1"}, None, "only required, timeout_s"),
        ("GET", "values", {"prefix": "mail"}, None, "it takes none"),
        ("GET", "diff", {"node": "core1"}, None, "it takes none"),
        ("POST", "sync", {}, {"node": "core1"}, "unknown field"),
    ):
        got = stand.ask(method, path, "mail.port", query=query, body=body)
        assert reason(got) == BAD, (method, path, query, body, got)
        assert advice in got[1]["error"], got
    assert reason(stand.put("mail.port", 1, required=4)) == (400, "calls_too_many_required")
    assert reason(stand.put("mail.port", 1, required=["core9"])) == (404, "calls_unknown_node")
    assert reason(stand.get("mail.prot")) == (404, "conf_unknown_path")


def test_a_secret_is_shown_nowhere(stand: Stand) -> None:
    assert stand.put("mail.password", SECRET)[0] == 200
    assert stand.world.rooms["core2"].last("mail.password") == SECRET
    shown = [
        stand.get("mail.password"),
        stand.ask("GET", "values"),
        stand.ask("GET", "diff"),
        stand.ask("POST", "sync"),
    ]
    assert SECRET not in json.dumps(shown)
    assert stand.get("mail.password")[1]["value"] == "***"


def test_all_paths_are_listed_with_where_they_come_from(stand: Stand) -> None:
    stand.put("user.mine", 1)
    _, found = stand.ask("GET", "values", at="core3")
    assert found["node"] == "core3"
    rows = {each["path"]: (each["value"], each["source"]) for each in found["values"]}
    assert list(rows) == sorted(rows)
    assert rows["mail.host"] == ("here", "local")
    assert rows["mail.port"] == (25, "default")
    assert rows["user.mine"] == (1, "set")
    assert "log.level" in rows


def test_a12_a_core_that_has_applied_nothing_shows_no_defaults(stand: Stand) -> None:
    assert stand.put("user.colour", "blue")[0] == 200
    for name in stand.world.cores:
        stand.world.kill(name)
    stand.world.start("core1")
    stand.world.until(lambda: stand.world.is_up("core1"))
    for path, of in (("values", ""), ("values/{path}", "user.colour"), ("diff", "")):
        with pytest.raises(NoLeader, match="has applied nothing since its start"):
            stand.ask("GET", path, of)


def test_diff_shows_who_differs_and_why(stand: Stand) -> None:
    _, found = stand.ask("GET", "diff")
    assert (found["consistent"], found["unreachable"]) == (False, {})
    assert sorted(found["nodes"]) == ["core1", "core2", "core3"]
    [row] = found["rows"]
    assert (row["path"], row["cause"]) == ("mail.host", "local")
    assert {each["node"]: each["source"] for each in row["values"]} == {
        "core1": "default",
        "core2": "default",
        "core3": "local",
    }


def test_sync_mends_a_node_that_could_not_follow(stand: Stand) -> None:
    stand.world.rooms["core2"].broken.add("mail.port")
    status, done = stand.put("mail.port", 587, timeout_s=2)
    assert (status, done["outcome"], done["nodes"]) == (200, "peers_lagging", ["core2"])
    assert stand.get("mail.port", at="core2")[1]["value"] == 25
    # What a copy brings may come into effect later; it is there, and kept.
    _, found = stand.ask("POST", "sync")
    assert (found["verdict"], found["synced"]) == ("fixed", ["core2"])
    assert found["differing"] == [{"node": "core2", "keys": ["conf:mail.port"], "more": 0}]
    stand.world.rooms["core2"].broken.clear()
    stand.world.until(lambda: stand.get("mail.port", at="core2")[1]["value"] == 587)
    stand.world.until(lambda: stand.world.rooms["core2"].last("mail.port") == 587)
    assert stand.ask("POST", "sync")[1]["verdict"] == "consistent"


def test_every_figure_is_explained_in_the_docs_and_no_other(stand: Stand) -> None:
    service = stand.world.nodes["core1"].hosting.services["conf"]
    shown = {(f"raftkv_conf_{metric.name}", metric.kind) for metric in service.metrics()}
    assert shown == set(documented("raftkv_conf_").items())
