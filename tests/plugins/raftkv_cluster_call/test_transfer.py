"""Copies of states: whole or not at all, whatever is lost or damaged on the way."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from raftkv.errors import PeerUnreachable, RemoteFailed, Timeout
from raftkv.testing.clock import run
from raftkv_cluster_call import transfer as module
from raftkv_cluster_call.commands import Cursor
from raftkv_cluster_call.states import States
from raftkv_cluster_call.transfer import (
    FORMAT,
    KEEP_S,
    OPEN,
    PAGE,
    PAGE_BYTES,
    PAGE_TRIES,
    Copied,
    CopyFailed,
    Opened,
    Page,
    Transfer,
)
from tests.plugins.raftkv_cluster_call.lone_host import Hosts, LoneHost
from tests.plugins.raftkv_cluster_call.test_states import Box

BIG = bytes(range(256)) * (9 * PAGE_BYTES // 512)


class Side:
    """One node with a state."""

    def __init__(self, host: LoneHost, bytes_max: int = module.STATE_BYTES_MAX) -> None:
        self.host = host
        self.states = States(host)
        self.box = Box(at=7, small=b"s", big=BIG)
        self.states.add(self.box)
        self.transfer = Transfer(host, self.states, bytes_max)
        self.transfer.register()

    async def ready(self, id: int = 7, state: str = "following") -> Side:
        cursor = Cursor(id, state)  # type: ignore[arg-type]
        self.host.state.tables["cursors"][self.host.name] = cursor
        self.host.state.tables["meta"]["last"] = 9
        await self.states.adopt(7)
        return self

    async def fetch(self, node: str = "n1", **options: object) -> Copied:
        return await self.transfer.fetch(node, timeout_s=30.0, **options)  # type: ignore[arg-type]


async def pair(seed: int = 0) -> tuple[Hosts, Side, Side]:
    hosts = Hosts("n1", "n2", seed=seed)
    source = await Side(hosts["n1"]).ready()
    copier = Side(hosts["n2"])
    hosts.asked.clear()
    return hosts, source, copier


def test_a_copy_has_everything_and_is_as_of_the_cursor() -> None:
    async def body() -> None:
        hosts, _, copier = await pair()
        copied = await copier.fetch()
        assert copied == Copied(7, {"box": {"small": b"s", "big": BIG}})
        pages = [method for _, method in hosts.asked if method == PAGE]
        assert len(pages) == -(-(len(BIG) + 100) // PAGE_BYTES) > 2
        # From itself it works, too: `fix` asks every node alike.
        assert (await copier.fetch("n1")).as_of == 7

    run(body())


def test_joiners_that_waited_for_a_long_call_share_one_dump() -> None:
    """Whose patience ended asked again: all that wait must not have a dump each, one by one."""

    async def body() -> None:
        _, source, copier = await pair()
        async with source.states.lock:
            asked = [asyncio.ensure_future(copier.fetch(fresh=False, least=7)) for _ in range(5)]
            await asyncio.sleep(5)
        copies = await asyncio.gather(*asked)
        assert {copy.as_of for copy in copies} == {7}
        assert source.transfer.dumps == 1
        # What is compared is always fresh.
        await asyncio.gather(copier.fetch(), copier.fetch())
        assert source.transfer.dumps == 3

    run(body())


def test_lost_and_damaged_pages_are_asked_for_again() -> None:
    async def body() -> None:
        hosts, _, copier = await pair()
        count = 0

        def every_second(node: str, method: str) -> bool:
            nonlocal count
            count += method == PAGE
            return method == PAGE and count % 2 == 1

        hosts.mishap = every_second
        assert (await copier.fetch()).states["box"]["big"] == BIG
        hosts.mishap = lambda node, method: False
        damaged = 0

        def flip(node: str, method: str, reply: bytes) -> bytes:
            nonlocal damaged
            if method != PAGE or damaged:
                return reply
            damaged += 1
            page = msgspec.msgpack.decode(reply, type=Page)
            return msgspec.msgpack.encode(Page(b"?" + page.content[1:], page.crc))

        hosts.damage = flip
        assert (await copier.fetch()).states["box"]["big"] == BIG
        assert damaged == 1

    run(body())


def test_a_page_that_never_comes_ends_the_copy() -> None:
    async def body() -> None:
        hosts, _, copier = await pair()
        hosts.mishap = lambda node, method: method == PAGE
        with pytest.raises(Timeout):
            await copier.fetch()
        assert [method for _, method in hosts.asked] == [OPEN, *[PAGE] * PAGE_TRIES]
        assert copier.transfer.failures == 1

    run(body())


def test_a_source_that_dies_in_the_middle_ends_the_copy() -> None:
    async def body() -> None:
        hosts, _, copier = await pair()

        def third_page(node: str, method: str, reply: bytes) -> bytes:
            if [each for _, each in hosts.asked].count(PAGE) == 3:
                hosts["n1"].up = False
            return reply

        hosts.damage = third_page
        with pytest.raises(PeerUnreachable):
            await copier.fetch()
        assert copier.box.items["big"] == BIG
        assert copier.box.at == 7

    run(body())


def test_a_source_that_was_restarted_in_the_middle_ends_the_copy() -> None:
    """Its dump is forgotten, and pages of two dumps would not be one state."""

    async def body() -> None:
        hosts, _, copier = await pair()
        again: list[asyncio.Task[Side]] = []

        def second_page(node: str, method: str, reply: bytes) -> bytes:
            if [each for _, each in hosts.asked].count(PAGE) == 2 and not again:
                side = Side(hosts.restart("n1"))
                side.box.items["big"] = BIG[::-1]
                again.append(asyncio.ensure_future(side.ready()))
            return reply

        hosts.damage = second_page
        with pytest.raises(RemoteFailed, match="keeps this dump no more"):
            await copier.fetch()
        await again[0]
        assert (await copier.fetch()).states["box"]["big"] == BIG[::-1]

    run(body())


@pytest.mark.parametrize(
    ("opened", "expected"),
    [
        (Opened(FORMAT + 1, 7, b"t", 10, 0), "format"),
        (Opened(FORMAT, 7, b"t", module.STATE_BYTES_MAX + 1, 0), "keyspace"),
        (Opened(FORMAT, 7, b"t", 0, 1), "damaged"),
    ],
)
def test_what_cannot_be_copied_is_refused(opened: Opened, expected: str) -> None:
    async def body() -> None:
        hosts, _, copier = await pair()
        hosts.damage = lambda node, method, reply: msgspec.msgpack.encode(opened)
        with pytest.raises(CopyFailed, match=expected):
            await copier.fetch()
        hosts.damage = lambda node, method, reply: b"\xc1"
        with pytest.raises(CopyFailed, match="words"):
            await copier.fetch()

    run(body())


def test_only_a_node_that_follows_and_has_settled_is_a_source() -> None:
    async def body() -> None:
        _, source, copier = await pair()
        await source.ready(state="gap")
        with pytest.raises(RemoteFailed, match="NotASource"):
            await copier.fetch()
        await source.ready()
        source.states.add(Box("late"))
        with pytest.raises(RemoteFailed, match="StatesNotReady"):
            await copier.fetch()

    run(body())


def test_a_state_that_is_too_large_is_not_sent() -> None:
    async def body() -> None:
        hosts = Hosts("n1", "n2")
        await Side(hosts["n1"], bytes_max=1000).ready()
        with pytest.raises(RemoteFailed, match="StateTooLarge"):
            await Side(hosts["n2"]).fetch()

    run(body())


def test_what_a_state_raises_is_told_without_its_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body() -> None:
        _, source, copier = await pair()

        async def broken() -> dict[str, bytes]:
            raise ValueError("the password is hunter2")

        source.box.dump = broken  # type: ignore[method-assign]
        with pytest.raises(RemoteFailed) as caught:
            await copier.fetch()
        assert "ValueError" in str(caught.value)
        assert "broken" in str(caught.value)
        assert "hunter2" not in str(caught.value) + caplog.text

    run(body())


def test_the_dump_waits_for_the_call_that_runs() -> None:
    async def body() -> None:
        hosts, source, copier = await pair()
        await source.states.lock.acquire()
        source.box.items["small"] = b"half"
        fetching = asyncio.ensure_future(copier.fetch())
        await asyncio.sleep(1.0)
        assert not fetching.done()
        source.box.items["small"] = b"whole"
        hosts["n1"].state.tables["cursors"]["n1"] = Cursor(8, "following")
        source.states.lock.release()
        copied = await fetching
        assert (copied.as_of, copied.states["box"]["small"]) == (8, b"whole")

    run(body())


def test_a_dump_is_used_again_while_it_is_new_enough_and_kept() -> None:
    async def body() -> None:
        hosts, source, copier = await pair()
        await copier.fetch(fresh=False, least=7)
        await copier.fetch(fresh=False, least=3)
        assert source.transfer.dumps == 1
        # `fix` compares what is there now.
        source.box.items["small"] = b"now"
        assert (await copier.fetch()).states["box"]["small"] == b"now"
        assert source.transfer.dumps == 2
        hosts["n1"].state.tables["cursors"]["n1"] = Cursor(9, "following")
        assert (await copier.fetch(fresh=False, least=8)).as_of == 9
        assert source.transfer.dumps == 3
        await asyncio.sleep(KEEP_S + 1)
        assert source.transfer._kept == {}
        await copier.fetch(fresh=False, least=9)
        assert source.transfer.dumps == 4

    run(body())


def test_the_time_limit_holds_for_the_whole() -> None:
    async def body() -> None:
        hosts, _, copier = await pair()
        hosts.mishap = lambda node, method: method == PAGE
        began = asyncio.get_running_loop().time()
        with pytest.raises(Timeout):
            await copier.transfer.fetch("n1", timeout_s=3.0)
        assert asyncio.get_running_loop().time() - began < 4.0

    run(body())
