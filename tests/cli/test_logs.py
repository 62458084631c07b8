"""cli/logs.py: one JSON object a line, where the node stood, and no flood."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import pytest

from raftkv.cli.logs import BURST_LINES, Flood, JsonLines, Place, configure


class Standing:
    standing = ("leader", 7, 4711)


def record(message: str = "hello %s", *arguments: object, **more: Any) -> logging.LogRecord:
    made = logging.LogRecord(
        "raftkv.raft", logging.WARNING, __file__, 10, message, arguments, more.pop("exc_info", None)
    )
    made.created, made.msecs = 1_700_000_000.25, 250.0
    vars(made).update(more)
    return made


def line_of(made: logging.LogRecord, place: Place | None = None) -> dict[str, Any]:
    text = JsonLines(place or Place("core1")).format(made)
    assert "\n" not in text
    decoded: dict[str, Any] = json.loads(text)
    return decoded


def test_a_line_says_where_the_node_stood() -> None:
    place = Place("core1")
    place.node = Standing()
    assert line_of(record("hello %s", "you"), place) == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "warning",
        "node": "core1",
        "role": "leader",
        "term": 7,
        "index": 4711,
        "logger": "raftkv.raft",
        "message": "hello you",
    }


def test_before_there_is_a_node_it_is_starting() -> None:
    line = line_of(record("hello"))
    assert (line["role"], line["term"], line["index"]) == ("starting", 0, 0)


def test_an_exception_and_strange_text_stay_on_one_line() -> None:
    try:
        raise RuntimeError("first\nsecond \udcff")
    except RuntimeError:
        line = line_of(record("a\nb \udcff", exc_info=sys.exc_info()))
    assert line["message"].startswith("a\nb")
    assert line["error"].startswith("Traceback")
    assert "RuntimeError: first\nsecond" in line["error"]


class Clock:
    now = 50.0

    def __call__(self) -> float:
        return self.now


def test_one_place_in_the_code_writes_a_burst_and_then_a_trickle() -> None:
    clock = Clock()
    flood = Flood(clock)
    said = [flood.filter(record(f"trouble {number}")) for number in range(BURST_LINES + 50)]
    assert said == [True] * BURST_LINES + [False] * 50
    elsewhere = record("other")
    elsewhere.lineno = 11
    assert flood.filter(elsewhere), "another place has an allowance of its own"
    clock.now += 2.5
    lines = [record("trouble"), record("trouble"), record("trouble")]
    assert [flood.filter(line) for line in lines] == [True, True, False]
    assert [line_of(line).get("left_out") for line in lines[:2]] == [50, None]


def test_debugging_lines_are_not_bounded() -> None:
    flood = Flood(Clock())
    for _ in range(BURST_LINES + 50):
        made = record("detail")
        made.levelno = logging.DEBUG
        assert flood.filter(made)


def test_configure_writes_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    quieter = {name: logging.getLogger(name).level for name in ("uvicorn.error", "asyncio")}
    try:
        place = configure("core1")
        place.node = Standing()
        logging.getLogger("raftkv.raft").info("leads")
        logging.getLogger("raftkv.raft").debug("too fine")
        logging.getLogger("asyncio").info("not ours")
        assert place.writer.flush(30)
        (line,) = capfd.readouterr().err.splitlines()
        assert json.loads(line)["message"] == "leads"
        assert json.loads(line)["term"] == 7
    finally:
        root.handlers[:] = before
        root.setLevel(level)
        for name, number in quieter.items():
            logging.getLogger(name).setLevel(number)
