"""The parts of the MQTT broker that need no cluster: filters, and what a stranger may send."""

from __future__ import annotations

import asyncio
import importlib
import random
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("amqtt", reason="amqtt is not installed (the extra `dev` names it)")

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "docs" / "examples"


@pytest.fixture
def wire() -> Iterator[Any]:
    yield from _module("mqtt_wire")


@pytest.fixture
def session() -> Iterator[Any]:
    yield from _module("mqtt_session")


def _module(name: str) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        yield importlib.import_module(name)
    for each in ("mqtt_wire", "mqtt_session"):
        sys.modules.pop(each, None)


@pytest.mark.parametrize(
    ("topic_filter", "topic", "wanted"),
    [
        ("a/b", "a/b", True),
        ("a/b", "a/c", False),
        ("a/+", "a/b", True),
        ("a/+", "a", False),
        ("a/+", "a/b/c", False),
        ("a/+", "a/", True),
        ("+/+", "/b", True),
        ("+", "/b", False),
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("a/#", "ab", False),
        ("#", "a/b", True),
        ("#", "$SYS/x", False),
        ("+/x", "$SYS/x", False),
        ("$SYS/#", "$SYS/x", True),
    ],
)
def test_filters_match_as_mqtt_says(
    session: Any, topic_filter: str, topic: str, wanted: bool
) -> None:
    assert session.matches(topic_filter, topic) is wanted


@pytest.mark.parametrize("text", ["a", "/", "+", "#", "a/+/b", "a/#", "+/#", "$share"])
def test_filters(session: Any, text: str) -> None:
    assert session.is_filter(text)


@pytest.mark.parametrize("text", ["", "a#", "#/a", "a/#/b", "a+", "a/b+", "a\0b"])
def test_no_filters(session: Any, text: str) -> None:
    assert not session.is_filter(text)


# --- what comes over the wire ---------------------------------------------------------------------

CONNECT_311 = bytes([0x10, 14]) + b"\0\x04MQTT\x04\x02\0\x3c\0\x02me"
CONNECT_5 = bytes([0x10, 20]) + b"\0\x04MQTT\x05\x02\0\x3c\x05\x11\0\0\0\x09\0\x02me"


class Stranger:
    """Sends bytes to a wire; `heard` is what comes back."""

    def __init__(self, wire: Any, data: bytes) -> None:
        self._wire = wire
        self._data = data
        self.heard = b""
        self.closed: Any = None

    def run(self, act: Callable[[Any], Awaitable[Any]]) -> Any:
        """What `act` gives for the wire, None if that was closed."""
        return asyncio.run(self._run(act))

    async def _run(self, act: Callable[[Any], Awaitable[Any]]) -> Any:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            line = self._wire.Wire(reader, writer)
            try:
                done.set_result(await act(line))
            except self._wire.Closed as closed:
                self.closed = closed
                done.set_result(None)
            except Exception as error:
                done.set_exception(error)
            finally:
                line.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(self._data)
        writer.write_eof()
        result = await done
        self.heard = await reader.read()
        writer.close()
        server.close()
        await server.wait_closed()
        return result


async def hello(line: Any) -> Any:
    return await line.hello()


async def hello_and_more(line: Any) -> list[Any]:
    await line.hello()
    packets = []
    while len(packets) < 100:
        packets.append(await line.packet())
    return packets


def test_both_versions_say_who_they_are(wire: Any) -> None:
    old = Stranger(wire, CONNECT_311).run(hello)
    assert (old.client_id, old.clean_start, old.expiry_s, old.keep_alive_s) == ("me", True, 0, 60)
    new = Stranger(wire, CONNECT_5).run(hello)
    assert (new.client_id, new.clean_start, new.expiry_s, new.keep_alive_s) == ("me", True, 9, 60)


def test_an_unknown_version_is_told_so(wire: Any) -> None:
    stranger = Stranger(wire, CONNECT_311.replace(b"MQTT\x04", b"MQTT\x03"))
    assert stranger.run(hello) is None
    assert stranger.heard == bytes([0x20, 2, 0, 1])


def test_a_packet_that_is_too_large_is_not_read(wire: Any) -> None:
    huge = bytes([0x30, 0xFF, 0xFF, 0xFF, 0x7F])
    stranger = Stranger(wire, CONNECT_5 + huge)
    assert stranger.run(hello_and_more) is None
    assert stranger.closed.code == wire.PACKET_TOO_LARGE


@pytest.mark.parametrize("start", [b"", CONNECT_311, CONNECT_5])
def test_no_bytes_of_a_stranger_do_more_than_close_the_connection(wire: Any, start: bytes) -> None:
    seed = 20261122
    print(f"seed {seed}")
    chance = random.Random(seed)
    whole = start + CONNECT_5 + bytes([0x82, 8]) + b"\0\x01\0\0\x02a/\x01"
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 6)):
            data[chance.randrange(len(start), len(data))] = chance.randrange(256)
        stranger = Stranger(wire, bytes(data))
        stranger.run(hello_and_more)
        assert stranger.closed is not None
