"""Calls between nodes: addresses that are none, answers that are too large, dead links."""

from __future__ import annotations

import asyncio
import pickle
import socket
from typing import Any

import pytest

from raftkv.errors import PeerUnreachable, RemoteFailed, Timeout
from raftkv.raft import wire
from raftkv.rpc import RpcHub
from raftkv.runtime import OsRuntime
from tests.clocks import LONG_S, skip


class LoopRuntime:
    """Of the runtime what calls use."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[Any]] = []

    def future(self) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()

    def spawn(self, coroutine: Any, name: str) -> asyncio.Task[Any]:
        self.tasks.append(asyncio.get_running_loop().create_task(coroutine))
        return self.tasks[-1]

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def call_later(self, delay_s: float, callback: Any, *arguments: Any) -> Any:
        return asyncio.get_running_loop().call_later(delay_s, callback, *arguments)


class Sent:
    """A link that keeps what is sent."""

    up = True
    peer_name = "b"

    def __init__(self) -> None:
        self.messages: list[Any] = []

    def send(self, message: Any) -> None:
        self.messages.append(message)


class Dialler:
    """Looks hosts up as asyncio does; whoever listens is linked at once."""

    def __init__(self, link: Sent) -> None:
        self.link = link

    async def dial(self, address: str, purpose: str, name: str) -> Sent:
        host = address.rpartition(":")[0]
        if host != "good":
            await asyncio.get_running_loop().create_connection(asyncio.Protocol, host, 1)
        return self.link


@pytest.mark.parametrize("bad", ["a..b", "x" * 64 + ".example", "a\0b"])
def test_an_address_that_is_none_is_passed_over_and_may_be_mended(bad: str) -> None:
    async def test() -> None:
        runtime: Any = LoopRuntime()
        link = Sent()
        dialler: Any = Dialler(link)
        addresses = [f"{bad}:5"]
        calls = RpcHub("a", runtime, dialler, lambda node: addresses, 1 << 20)
        with pytest.raises(PeerUnreachable, match="b cannot be reached"):
            await calls.call("b", "p.m", b"", 5)
        addresses.append("good:5")
        waiting = asyncio.ensure_future(calls.call("b", "p.m", b"", 5))
        while not link.messages:
            await asyncio.sleep(0)
        calls.on_reply(link, wire.RpcReply(1, "", b"answer"))  # type: ignore[arg-type]
        assert await waiting == b"answer"
        calls.stop()

    asyncio.run(test())


class Refuses:
    """Each address refuses connections, but for those of a host that cannot be reached."""

    async def dial(self, address: str, purpose: str, name: str) -> Sent:
        if address.startswith("silent"):
            raise TimeoutError(address)
        raise ConnectionRefusedError(address)


@pytest.mark.parametrize(
    ("addresses", "refused"),
    [
        (["x:1"], True),
        (["x:1", "y:1"], True),
        (["x:1", "silent:1"], False),
        (["silent:1", "x:1"], False),
        ([], False),
    ],
)
def test_item_b2_peer_refuses_if_all_of_its_addresses_do(
    addresses: list[str], refused: bool
) -> None:
    async def test() -> None:
        runtime: Any = LoopRuntime()
        dialler: Any = Refuses()
        calls = RpcHub("a", runtime, dialler, lambda node: addresses, 1 << 20)
        with pytest.raises(PeerUnreachable) as raised:
            await calls.call("b", "p.m", b"", 5)
        assert raised.value.refused == refused
        assert pickle.loads(pickle.dumps(raised.value)).refused == refused
        calls.stop()

    asyncio.run(test())


def test_an_answer_that_is_too_large_fails_alone() -> None:
    async def test() -> None:
        runtime: Any = LoopRuntime()
        link: Any = Sent()
        dialler: Any = Dialler(link)
        calls = RpcHub("a", runtime, dialler, lambda node: [], 10_000)

        async def handler(sender: str, payload: bytes) -> bytes:
            return bytes(int(payload))

        calls.register("p.m", handler)
        for size in (5000, 10_000):
            calls.on_request(link, wire.RpcRequest(size, "p.m", b"%d" % size))
        await asyncio.gather(*runtime.tasks)
        fits, too_large = link.messages
        assert (fits.error, len(fits.payload)) == ("", 5000)
        assert too_large.error == "remote_failed"
        assert b"10000 bytes exceeds" in too_large.payload
        waiting = asyncio.ensure_future(calls.call("a", "p.none", b"", 5))
        with pytest.raises(RemoteFailed):
            await waiting

    asyncio.run(test())


class Aborted(Sent):
    """A link whose other end may be gone without a word."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


class Redialler:
    """Every dialling gives another link."""

    def __init__(self) -> None:
        self.links: list[Aborted] = []

    async def dial(self, address: str, purpose: str, name: str) -> Aborted:
        self.links.append(Aborted())
        return self.links[-1]


def test_a_link_on_which_nothing_was_answered_is_not_used_again() -> None:
    """The machine is gone without a word, and TCP goes on for a quarter of an hour."""

    async def test() -> None:
        runtime: Any = LoopRuntime()
        dialler: Any = Redialler()
        calls = RpcHub("a", runtime, dialler, lambda node: ["good:5"], 1 << 20)
        longer = asyncio.ensure_future(calls.call("b", "p.m", b"", 0.3))
        for _ in range(2):
            with pytest.raises(Timeout):
                await calls.call("b", "p.m", b"", 0.01)
        first, second = dialler.links
        assert (len(first.messages), first.aborted) == (2, False), "one call may still be answered"
        assert (len(second.messages), second.aborted) == (1, True)
        with pytest.raises(Timeout):
            await longer
        assert first.aborted
        calls.stop()

    asyncio.run(test())


def test_a_link_on_which_another_call_was_answered_meanwhile_stays() -> None:
    async def test() -> None:
        runtime: Any = LoopRuntime()
        dialler: Any = Redialler()
        calls = RpcHub("a", runtime, dialler, lambda node: ["good:5"], 1 << 20)
        slow = asyncio.ensure_future(calls.call("b", "p.slow", b"", LONG_S))
        quick = asyncio.ensure_future(calls.call("b", "p.quick", b"", 2 * LONG_S))
        while not dialler.links or len(dialler.links[0].messages) < 2:
            await asyncio.sleep(0)
        (link,) = dialler.links
        skip(0.01)
        calls.on_reply(link, wire.RpcReply(2, "", b"answer"))
        assert await quick == b"answer"
        skip(LONG_S)
        with pytest.raises(Timeout):
            await slow
        assert not link.aborted
        with pytest.raises(Timeout):
            await calls.call("b", "p.m", b"", 0.01)
        assert dialler.links == [link]
        assert link.aborted
        calls.stop()

    asyncio.run(test())


def test_a_host_with_several_addresses_refuses_if_all_of_them_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """asyncio raises an OSError without errno for it, which names them all."""

    async def connect(port: int) -> None:
        runtime = OsRuntime()
        loop = asyncio.get_running_loop()

        async def resolved(host: str, port: int, **_: Any) -> list[Any]:
            tcp = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
            return [(*tcp, (address, port)) for address in ("127.0.0.1", "127.0.0.2")]

        monkeypatch.setattr(loop, "getaddrinfo", resolved)
        try:
            await runtime.connect(asyncio.Protocol, "two.example", port)
        finally:
            runtime.close()

    # It is bound and does not listen, so connections to it are refused.
    with socket.socket() as taken:
        taken.bind(("", 0))
        with pytest.raises(ConnectionRefusedError):
            asyncio.run(connect(taken.getsockname()[1]))


def test_a_host_of_which_one_address_does_not_answer_does_not_refuse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def connect(port: int) -> None:
        runtime = OsRuntime()

        async def resolved(host: str, port: int, **_: Any) -> list[Any]:
            tcp = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
            # The second is of a group, to which no connection can be.
            return [(*tcp, (address, port)) for address in ("127.0.0.1", "224.0.0.1")]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolved)
        try:
            await runtime.connect(asyncio.Protocol, "two.example", port)
        finally:
            runtime.close()

    with socket.socket() as taken:
        taken.bind(("", 0))
        with pytest.raises(OSError, match="Multiple exceptions") as raised:
            asyncio.run(connect(taken.getsockname()[1]))
    assert not isinstance(raised.value, ConnectionRefusedError)
