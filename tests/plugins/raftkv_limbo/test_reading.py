"""Reads: confirmed, pending, linearizable."""

from __future__ import annotations

import asyncio

import pytest

from raftkv.errors import ReadTimeout
from raftkv_limbo.commands import Row, Write
from raftkv_limbo.refusals import KeyTooLarge, UnknownSpace
from tests.plugins.raftkv_limbo.fakes import Cluster, story, sync


@story(quorum="N")
async def test_readers_choose_what_they_see(cluster: Cluster) -> None:
    limbo, other = await cluster.own("core1"), cluster.limbo("core2")
    for key in ("a", "b", "c"):
        await limbo.submit(sync(key, "old"))
    cluster.isolate("core3")
    await limbo.submit(
        [Write("s", b"b", b"new"), Write("s", b"c", None), Write("s", b"d", b"new")],
        wait="submit",
    )
    await limbo.submit(sync("b", "newer"), wait="submit")
    for reader in (limbo, other):
        assert await reader.get("s", b"b") == Row(b"old", 2)
        assert await reader.get("s", b"b", view="linearizable") == Row(b"old", 2)
        assert await reader.get("s", b"b", view="pending") == Row(b"newer", 5)
        assert await reader.get("s", b"c", view="pending") is None
        assert [key for key, _ in await reader.range("s")] == [b"a", b"b", b"c"]
        assert await reader.range("s", view="pending") == (
            (b"a", Row(b"old", 1)),
            (b"b", Row(b"newer", 5)),
            (b"d", Row(b"new", 4)),
        )
        assert await reader.range("s", b"b", b"d", reverse=True, limit=1) == (
            (b"c", Row(b"old", 3)),
        )
    cluster.heal("core3")
    await other.wait_confirmed(5)
    assert await other.get("s", b"b") == Row(b"newer", 5)


@story()
async def test_a_linearizable_read_waits_for_the_newest(cluster: Cluster) -> None:
    limbo, other = await cluster.own("core1"), cluster.limbo("core2")
    cluster.pause("core2")
    await limbo.submit(sync("k", "new"))
    assert await other.get("s", b"k") is None
    read = asyncio.ensure_future(other.get("s", b"k", view="linearizable", timeout_s=60))
    await asyncio.sleep(1)
    assert not read.done()
    cluster.resume("core2")
    assert await read == Row(b"new", 1)
    cluster.isolate("core2")
    with pytest.raises(ReadTimeout):
        await other.get("s", b"k", view="linearizable", timeout_s=1)
    cluster.heal("core2")


@story()
async def test_bad_reads_are_refused(cluster: Cluster) -> None:
    limbo = cluster.limbo("core1")
    with pytest.raises(UnknownSpace):
        await limbo.get("nowhere", b"k")
    with pytest.raises(UnknownSpace):
        await limbo.range("nowhere", view="pending")
    with pytest.raises(KeyTooLarge):
        await limbo.get("s", b"k" * 1025)
    with pytest.raises(TypeError):
        await limbo.get("s", "k")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="view"):
        await limbo.get("s", b"k", view="dirty")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="limit"):
        await limbo.range("s", limit=-1)
