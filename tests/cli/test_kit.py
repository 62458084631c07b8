"""What the command groups of plugins are made of."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from raftkv.cli.kit import Ask, At, Stage, path_part, shown, wait_for, while_waiting
from raftkv.cli.saying import ADVICE
from raftkv.errors import ConfigError, NoLeader, NotApplied, RaftkvError, Refused, Timeout


class FakeDoor:
    """A door that gives the same answer to everything; `answer` None: it does not answer."""

    def __init__(self, status: int = 200, answer: Any = None, *, mute: bool = False) -> None:
        self.asked: list[str] = []
        self.released = threading.Event()
        door = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                door.asked.append(f"{self.command} {self.path}")
                if mute:
                    door.released.wait(10)
                    return
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_POST(self) -> None:
                self.do_GET()

            def do_PUT(self) -> None:
                self.do_GET()

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Doors:
    """Makes doors that end with the test."""

    def __init__(self) -> None:
        self.made: list[FakeDoor] = []

    def __call__(self, *arguments: Any, **options: Any) -> FakeDoor:
        self.made.append(FakeDoor(*arguments, **options))
        return self.made[-1]


@pytest.fixture(name="door")
def doors_fixture(doors: Doors) -> Doors:
    return doors


@pytest.fixture
def doors() -> Iterator[Doors]:
    doors = Doors()
    yield doors
    for each in doors.made:
        each.close()


def ask(*doors: FakeDoor | str, timeout_s: float = 5.0) -> Ask:
    places = tuple(each if isinstance(each, str) else each.endpoint for each in doors)
    return Ask(At(endpoints=places, timeout_s=timeout_s))


DEAD = "http://127.0.0.1:1"


def test_the_first_that_answers_is_taken(door: Doors) -> None:
    busy = door(503, {"error": "no leader", "reason": "no_leader"})
    good, unasked = door(200, {"a": 1}), door(200, {"a": 2})
    assert ask(DEAD, busy, good, unasked)("GET", "/v1/x") == {"a": 1}
    assert (busy.asked, good.asked, unasked.asked) == (["GET /v1/x"], ["GET /v1/x"], [])


def test_a_refusal_is_an_answer(door: Doors) -> None:
    refusing, other = door(404, {"error": "there is none"}), door(200, {})
    with pytest.raises(Refused, match="there is none"):
        ask(refusing, other)("GET", "/v1/x")
    assert other.asked == []


def test_what_may_have_happened_is_repeated_only_if_that_does_no_harm(door: Doors) -> None:
    # 504 without a reason is a proxy's word: nobody knows what became of the request.
    unknown, good = door(504, {}), door(200, {"a": 1})
    assert ask(unknown, good)("POST", "/v1/x", {}) == {"a": 1}
    with pytest.raises(Timeout):
        # Neither is known to work.
        ask(unknown, door(504, {}))("POST", "/v1/x", {}, repeat=False)
    assert unknown.asked.count("POST /v1/x") == 2
    assert len(good.asked) == 1
    # One that works is asked first.
    cut_off = door(503, {"error": "no leader", "reason": "no_leader"})
    good = door(200, {"a": 1})
    assert ask(cut_off, good)("POST", "/v1/x", {}, repeat=False) == {"a": 1}
    assert cut_off.asked == ["GET /health"]
    assert good.asked == ["GET /health", "POST /v1/x"]
    # What was never sent may be sent to another.
    assert ask(DEAD, good)("POST", "/v1/x", {}, repeat=False) == {"a": 1}


def test_a_node_that_hangs_leaves_time_for_the_others(door: Doors) -> None:
    hanging, good = door(mute=True), door(200, {"a": 1})
    assert ask(hanging, good, timeout_s=2.0)("GET", "/v1/x") == {"a": 1}


def test_the_time_is_up() -> None:
    with pytest.raises(NotApplied, match="cannot be reached"):
        ask(DEAD, timeout_s=0.1)("GET", "/v1/x")


def test_a10_a_change_that_nobody_answered_says_that_it_may_still_happen(doors: Doors) -> None:
    """Who takes it for failed would do it twice: publish twice, for one."""
    hanging = doors(mute=True)
    with pytest.raises(Timeout) as caught:
        ask(hanging, timeout_s=1.0)("POST", "/v1/x", {}, repeat=False)
    text = str(caught.value)
    assert text.startswith(f"the outcome is unknown, it may still take effect: {hanging.endpoint}")
    assert text.endswith(ADVICE)
    with pytest.raises(Timeout, match="may still take effect") as caught:
        ask(hanging, timeout_s=1.0)("PUT", "/v1/x", {})
    assert ADVICE not in str(caught.value)  # it can be repeated
    with pytest.raises(Timeout) as caught:
        ask(hanging, timeout_s=1.0)("GET", "/v1/x")
    assert "take effect" not in str(caught.value)
    # A node's own words about it are said once.
    told = doors(503, {"error": "the outcome is unknown, the write may still be applied"})
    with pytest.raises(Timeout) as caught:
        ask(told)("POST", "/v1/x", {}, repeat=False)
    assert str(caught.value).count("outcome is unknown") == 1
    assert str(caught.value).endswith(ADVICE)


def test_a12_the_error_of_one_of_several_nodes_is_said_to_be_the_last(doors: Doors) -> None:
    lost = doors(503, {"error": "no leader", "reason": "no_leader"})
    with pytest.raises(NotApplied, match="no endpoint could do it in time; the last: .*no leader"):
        ask(DEAD, lost, timeout_s=2.0)("GET", "/v1/x")
    with pytest.raises(NoLeader, match=f"^{lost.endpoint}: no leader"):
        ask(lost, timeout_s=2.0)("GET", "/v1/x")


@pytest.mark.parametrize("reason", ["calls_deadline_passed", "limbo_promote_timed_out"])
def test_a12_a_call_whose_time_was_over_is_no_refusal(doors: Doors, reason: str) -> None:
    over = doors(409, {"error": "the time was over", "reason": reason})
    with pytest.raises(RaftkvError, match="the time was over") as caught:
        ask(over)("POST", "/v1/x", {}, repeat=False)
    assert not isinstance(caught.value, Refused)
    assert over.asked == ["POST /v1/x"]


def test_each_endpoint_is_asked_itself(door: Doors) -> None:
    good = door(200, {"a": 1})
    (_, answer, nothing), (place, none, error) = ask(good, DEAD).each("GET", "/v1/x")
    assert (answer, nothing, place, none) == ({"a": 1}, None, DEAD, None)
    assert isinstance(error, NotApplied)


def test_a_part_of_a_path_is_one_segment() -> None:
    assert path_part("a/b?c#d e%") == "a%2Fb%3Fc%23d%20e%25"
    assert path_part("..") == "%2E%2E"
    assert path_part("a.b") == "a.b"
    with pytest.raises(ConfigError, match=r"\\xff is not valid UTF-8"):
        path_part("\udcff")


def test_shown_is_one_line() -> None:
    assert shown("a\nb\x1b[1mü") == "a\\nb\\x1b[1mü"


def test_what_is_seen_meanwhile_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    stages = iter([Stage("one", 1, 2), Stage("one", 1, 2), Stage("two", 2, 2)])
    done = threading.Event()

    def look() -> Stage:
        try:
            return next(stages)
        except StopIteration:
            done.set()
            raise RaftkvError("nobody answers just now") from None

    assert while_waiting(lambda: done.wait(20.0), look)
    assert capsys.readouterr().err == "one\ntwo\n"


def test_what_the_act_raises_is_raised() -> None:
    looked = threading.Event()

    def act() -> None:
        looked.wait(20.0)
        raise Refused("no")

    def look() -> Stage:
        looked.set()
        return Stage("waiting")

    with pytest.raises(Refused, match="no"):
        while_waiting(act, look)


def test_a_condition_is_looked_at_until_it_holds_or_the_time_is_up() -> None:
    looks = iter((False, False, True))
    assert wait_for(lambda: next(looks), 30.0)
    assert list(looks) == []
    assert not wait_for(lambda: False, 0.05)
