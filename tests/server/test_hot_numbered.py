"""Writes under a client session on the short way: as on the usual one, each applied once."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftkv import Client
from raftkv.kv import Compare, PutOp
from raftkv.server.hot import HEADS_MAX, Heads
from tests.client.doors import Served, served
from tests.server.conftest import b64

PATH = "/v3/kv/put"


def body(value: str = "v") -> bytes:
    return json.dumps({"key": b64(b"k"), "value": b64(value.encode())}).encode()


def request(*lines: str, data: bytes | None = None, path: str = PATH) -> bytes:
    """A POST; the lines stand between `host` and `content-length`."""
    data = body() if data is None else data
    head = [f"POST {path} HTTP/1.1", "host: [::1]", *lines, f"content-length: {len(data)}"]
    return "\r\n".join([*head, "", ""]).encode() + data


def numbers(session: str, seq: int, floor: int = 1) -> list[str]:
    return [f"raftkv-session: {session}", f"raftkv-seq: {seq}", f"raftkv-floor: {floor}"]


class Caller:
    """One connection to the door of the first node."""

    def __init__(self, doors: Served) -> None:
        self._door = doors.doors[doors.cluster.nodes[0].name]

    async def __aenter__(self) -> Caller:
        self._streams = await asyncio.open_connection("127.0.0.1", self._door.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._streams[1].close()

    @property
    def hot(self) -> int:
        return self._door._state.hot_total

    async def ask(self, data: bytes) -> tuple[int, Any]:
        reader, writer = self._streams
        writer.write(data)
        async with asyncio.timeout(10):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = int(head.partition("content-length: ")[2].split("\r\n")[0])
            return int(head.split()[1]), json.loads(await reader.readexactly(length))

    async def session(self) -> str:
        status, answer = await self.ask(request(path="/v1/sessions", data=b"{}"))
        assert status == 200
        return str(answer["session"])


@contextlib.asynccontextmanager
async def calling() -> AsyncIterator[Caller]:
    async with served(1) as doors, Caller(doors) as caller:
        yield caller


def revision(answer: tuple[int, Any]) -> int:
    assert answer[0] == 200, answer
    return int(answer[1]["header"]["revision"])


def test_numbered_writes_take_the_short_way_and_are_applied_once() -> None:
    async def story() -> None:
        async with calling() as caller:
            mine, other = await caller.session(), await caller.session()
            first = revision(await caller.ask(request(*numbers(mine, 1))))
            before = caller.hot
            assert revision(await caller.ask(request(*numbers(mine, 2)))) == first + 1
            assert revision(await caller.ask(request(*numbers(mine, 12, 3)))) == first + 2
            assert caller.hot == before + 2
            # Again, and a number that came on the usual way: the first answers.
            assert revision(await caller.ask(request(*numbers(mine, 12, 3)))) == first + 2
            assert revision(await caller.ask(request(*numbers(other, 1)))) == first + 3
            assert revision(await caller.ask(request(*numbers(other, 1)))) == first + 3
            assert caller.hot == before + 5, "sessions share what was learned"
            # The same bytes without a number are another head.
            assert revision(await caller.ask(request())) == first + 4
            assert caller.hot == before + 5

    asyncio.run(story())


def test_all_writing_words_and_a_client_take_it() -> None:
    async def story() -> None:
        async with served(1) as doors, Client(doors.urls) as client, Caller(doors) as caller:
            for round in range(3):
                before = caller.hot
                for _ in range(2):
                    await client.kv.put(b"k", b"v")
                    await client.kv.txn([Compare(b"k", "version", ">", 0)], [PutOp(b"l", b"")])
                    await client.kv.delete(b"l")
                if round:
                    assert caller.hot == before + 6
            found = await client.kv.get(b"k")
            assert found is not None
            assert found.version == 6

    asyncio.run(story())


def test_refusals_are_the_same_on_both_ways() -> None:
    async def story() -> None:
        async with calling() as caller:
            mine = await caller.session()
            for seq in (1, 2):
                await caller.ask(request(*numbers(mine, seq)))
            before = caller.hot
            secret = mine.partition("-")[2]
            for session, seq, floor in [
                ("999999-1", 3, 1),  # there is no such session
                (f"1-{secret}", 3, 1),  # nor with this secret
                (mine, 0, 0),
                (mine, 3, 4),
                (mine, 2**62 + 1, 1),
            ]:
                lines = numbers(session, seq, floor)
                # `x-other` is a head that is never learned.
                usual = await caller.ask(request("x-other: 1", *lines))
                assert usual[0] >= 400
                assert await caller.ask(request(*lines)) == usual
            assert caller.hot == before
            assert (await caller.ask(request(*numbers(mine, 2), data=body("other"))))[0] == 200
            lines = numbers(mine, 4)
            refused = await caller.ask(request(*lines, data=b'{"key": ""}'))
            assert refused[0] == 400
            assert await caller.ask(request("x-other: 1", *lines, data=b'{"key": ""}')) == refused

    asyncio.run(story())


@pytest.mark.parametrize(
    "lines",
    [
        ["raftkv-seq: 3", "raftkv-session: {s}", "raftkv-floor: 1"],
        ["raftkv-session: {s}", "raftkv-seq: 3"],
        ["raftkv-session: {s}", "raftkv-seq: 3", "raftkv-floor: 1", "raftkv-more: 1"],
        ["raftkv-session: {s}", "raftkv-seq: 3", "raftkv-floor: 1", "raftkv-seq: 4"],
        ["raftkv-session: {s}", "raftkv-seq: +3", "raftkv-floor: 1"],
        ["raftkv-session: {s}", "raftkv-seq:  3", "raftkv-floor: 1"],
        ["raftkv-session: {s}", "raftkv-seq: 3", "raftkv-floor: 1", " 0"],
        ["raftkv-session: {s}", "raftkv-seq: 3", "x-other: 1", "raftkv-floor: 1"],
    ],
)
def test_another_form_takes_the_usual_way(lines: list[str]) -> None:
    async def story() -> None:
        async with calling() as caller:
            mine = await caller.session()
            for seq in (1, 2):
                await caller.ask(request(*numbers(mine, seq)))
            before = caller.hot
            # The parser itself refuses the line that continues another one, not in JSON.
            with contextlib.suppress(asyncio.IncompleteReadError, json.JSONDecodeError):
                for _ in range(2):
                    await caller.ask(request(*(line.format(s=mine) for line in lines)))
            assert caller.hot == before

    asyncio.run(story())


# What is learned ----------------------------------------------------------------------------------

HEADERS = [(b"host", b"door"), (b"content-length", b"5")]
BEFORE, BEHIND = b"POST /v3/kv/put HTTP/1.1\r\nhost: [::1]", b"\r\ncontent-length: 5\r\n\r\n"
LINES = b"\r\nraftkv-session: %b\r\nraftkv-seq: %b\r\nraftkv-floor: %b"


def learned(more: list[tuple[bytes, bytes]] | None = None) -> Heads:
    heads = Heads(frozenset([b"/v3/kv/put"]), 1024)
    values = [(b"raftkv-session", b"7-a"), (b"raftkv-seq", b"1"), (b"raftkv-floor", b"1")]
    head = BEFORE + LINES % (b"7-a", b"1", b"1") + BEHIND
    heads.learn(head, b"POST", b"/v3/kv/put", [*HEADERS, *values, *(more or [])])
    return heads


@given(
    st.integers(0, 10**25),
    st.integers(0, 2**80),
    st.integers(0, 10**25),
    st.sampled_from([b"raftkv-seq", b"Raftkv-Seq", b"RAFTKV-SEQ"]),
)
def test_other_numbers_are_read_as_they_stand(
    session: int, nonce: int, n: int, name: bytes
) -> None:
    handle = b"%d-%x" % (session, nonce)
    lines = (LINES % (handle, b"%d" % n, b"%d" % n)).replace(b"raftkv-seq", name)
    known = learned().numbered(BEFORE + lines + BEHIND)
    if session >= 10**20 or nonce >= 2**64 or n >= 10**19:
        assert known is None, "left to the usual way, which refuses it"
    else:
        assert known is not None
        assert known.numbered == {
            b"raftkv-session": handle, b"raftkv-seq": b"%d" % n, b"raftkv-floor": b"%d" % n
        }  # fmt: skip
        assert (known.path, known.body_bytes) == (b"/v3/kv/put", 5)


@pytest.mark.parametrize(
    "head",
    [
        BEFORE + BEHIND,
        # The lines elsewhere, or twice; something behind them that continues the last one.
        LINES % (b"7-a", b"2", b"1") + b"\r\n" + BEFORE + BEHIND,
        BEFORE + LINES % (b"7-a", b"2", b"1") + LINES % (b"7-a", b"3", b"1") + BEHIND,
        BEFORE + LINES % (b"7-a", b"2", b"1") + b"\r\n 2" + BEHIND,
        BEFORE + LINES % (b"7-a", b"2", b"1") + b"\r\n\t2" + BEHIND,
        BEFORE + b"\r\nexpect: x" + LINES % (b"7-a", b"2", b"1") + BEHIND,
        BEFORE + LINES % (b"7-a", b"2", b"1") + b"\r\ncontent-length: 6\r\n\r\n",
        BEFORE + LINES % (b"7-a", b"2", b"x") + BEHIND,
        BEFORE + LINES % (b"7-a", b"", b"1") + BEHIND,
    ],
)
def test_a_head_that_differs_in_more_is_not_known(head: bytes) -> None:
    heads = learned()
    assert heads.numbered(BEFORE + LINES % (b"7-a", b"12", b"1") + BEHIND) is not None
    assert heads.numbered(head) is None
    assert heads.get(head) is None


def test_what_is_not_plain_is_not_learned() -> None:
    for more in ([(b"raftkv-seq", b"2")], [(b"expect", b"x")], [(b"raftkv-other", b"1")]):
        heads = learned(more)
        assert heads.numbered(BEFORE + LINES % (b"7-a", b"1", b"1") + BEHIND) is None


def test_so_many_are_kept() -> None:
    heads = Heads(frozenset([b"/v3/kv/put"]), 10**6)
    for number in range(1, HEADS_MAX + 2):
        length = b"%d" % number
        values = [(b"raftkv-session", b"7-a"), (b"raftkv-seq", b"1"), (b"raftkv-floor", b"1")]
        head = BEFORE + LINES % (b"7-a", b"1", b"1") + b"\r\ncontent-length: %b\r\n\r\n" % length
        heads.learn(
            head, b"POST", b"/v3/kv/put", [(b"content-length", length), (b"host", b"door"), *values]
        )
        assert len(heads._around) + len(heads._known) <= HEADS_MAX


# Whatever is known, the parser would have said the same -------------------------------------------


class Parsed:
    """What httptools makes of a head; None: it is no complete head of a POST over HTTP/1.1."""

    def __init__(self) -> None:
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.complete = False

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.complete = True

    @classmethod
    def of(cls, head: bytes) -> Parsed | None:
        parsed = cls()
        parser = httptools.HttpRequestParser(parsed)
        try:
            parser.feed_data(head)
        except httptools.HttpParserError:
            return None
        plain = parser.get_method() == b"POST" and parser.get_http_version() == "1.1"
        usable = parsed.complete and plain and parser.should_keep_alive()
        return parsed if usable and not parser.should_upgrade() else None


PIECES = st.sampled_from(
    [
        b"host: [::1]", b"content-length: 5", b"content-length: 6", b"accept: */*", b"expect: x",
        b"raftkv-session: 7-a", b"raftkv-seq: 1", b"raftkv-seq: 20", b"raftkv-floor: 1", b"",
        b"Raftkv-Session: 8-BC", b"RAFTKV-SEQ: 3", b"raftkv-floor: 2", b" 4", b"\t4", b":",
        b"raftkv-seq:5", b"raftkv-floor: 1 ", b"user-agent: raftkv-seq: 1", b"POST / HTTP/1.1",
    ]
)  # fmt: skip
ENDS = st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r"])
THREE = st.builds(
    lambda session, seq, floor: (LINES % (session, seq, floor))[2:],
    *(st.sampled_from(each) for each in ([b"7-a", b"9-ff"], [b"1", b"22"], [b"1", b"0"])),
)


@st.composite
def heads_alike(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Two heads of the same lines, in which a few are exchanged, added or left out."""
    usual = [b"host: [::1]", b"content-length: 5", draw(THREE)][: draw(st.integers(2, 3))]
    lines = [(line, b"\r\n") for line in draw(st.permutations(usual))]
    if draw(st.booleans()):
        lines.insert(draw(st.integers(0, len(lines))), draw(st.tuples(PIECES, ENDS)))
    other = list(lines)
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.integers(0, len(other)))
        other[place : place + draw(st.integers(0, 1))] = draw(
            st.lists(st.tuples(st.one_of(PIECES, THREE, THREE), ENDS), max_size=1)
        )
    start = b"POST /v3/kv/put HTTP/1.1\r\n"
    one, two = (
        start + b"".join(line + end for line, end in each) + b"\r\n" for each in (lines, other)
    )
    return one, two


@settings(max_examples=1000)
@given(heads_alike())
def test_what_is_known_is_what_the_parser_would_have_said(pair: tuple[bytes, bytes]) -> None:
    first, second = pair
    heads = Heads(frozenset([b"/v3/kv/put"]), 1024)
    taught = Parsed.of(first)
    if taught is not None and first.find(b"\r\n\r\n") == len(first) - 4:
        heads.learn(first, b"POST", taught.url, taught.headers)
    for head in (first, second):
        if head.find(b"\r\n\r\n") != len(head) - 4:
            continue  # the door looks at what stands before the first empty line
        known = heads.get(head) or heads.numbered(head)
        if known is None:
            continue
        parsed = Parsed.of(head)
        assert parsed is not None
        assert parsed.url == known.path
        said = dict(parsed.headers)
        names = [name for name, _ in parsed.headers]
        assert all(names.count(name) == 1 for name in names if name.startswith((b"raft", b"cont")))
        assert int(said[b"content-length"]) == known.body_bytes
        numbered = {name: value for name, value in said.items() if name.startswith(b"raftkv-")}
        assert numbered == (known.numbered or {})
