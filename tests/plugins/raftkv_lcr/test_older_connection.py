"""`older_connection = "keep"`: a connected client keeps its connection, others are refused."""

from __future__ import annotations

import asyncio

import pytest

from raftkv.errors import PeerUnreachable
from raftkv.testing.clock import run
from raftkv_lcr.commands import Mode
from raftkv_lcr.result import OpenedSession
from raftkv_lcr.wire import CONNECTED
from tests.plugins.raftkv_lcr.fakes import Cluster, live, story


def keep(cluster: Cluster) -> None:
    cluster.raise_core_format()
    cluster.set("older_connection", "keep")


def kept(opened: OpenedSession) -> tuple[str, str | None]:
    return opened.outcome, None if opened.channel is None else opened.channel.channel


@story()
async def test_item_5_connected_client_keeps_its_connection(cluster: Cluster) -> None:
    keep(cluster)
    one, two, three = cluster.nodes.values()
    await one.broker.connect("c", "a")
    for clean in (False, True):
        opened = await two.broker.connect("c", "b", clean_start=clean)
        assert kept(opened) == ("occupied", "a")
    assert [call for call, _ in one.broker.calls] == []
    # Its client goes away: the session is taken over as ever.
    one.broker.sessions[("c", "a")].connected = False
    assert (await three.broker.connect("c", "d")).present
    assert [(name, session.channel) for name, session in live(cluster)] == [("core3", "d")]
    assert two.lcr.counters["occupied"] == 2


@story()
async def test_item_5_newer_connection_displaces_unless_the_setting_says_otherwise(
    cluster: Cluster,
) -> None:
    one, two, _ = cluster.nodes.values()
    await one.broker.connect("c", "a")
    assert (await two.broker.connect("c", "b")).outcome == "ok"


@pytest.mark.parametrize("clean", [False, True])
def test_item_5_owner_that_the_local_copy_does_not_know_is_asked_too(clean: bool) -> None:
    @story()
    async def body(cluster: Cluster) -> None:
        keep(cluster)
        one, two, _ = cluster.nodes.values()

        async def first(number: int) -> None:
            if number == 1:
                await one.broker.connect("c", "a")

        cluster.before_each_open(two, first)
        opened = await two.broker.connect("c", "b", clean_start=clean)
        assert kept(opened) == ("occupied", "a")
        # The claim of the refused connection is deleted.
        await asyncio.sleep(1)
        entry = one.view().table("clients")["c"]
        assert entry.owner.channel == "a"
        assert entry.claim is None

    body()


@story()
async def test_item_5_two_at_the_same_instant_one_is_refused(cluster: Cluster) -> None:
    keep(cluster)
    one, two, three = cluster.nodes.values()
    answers = await asyncio.gather(
        *(node.broker.connect("c", node.name) for node in (one, two, three))
    )
    assert sorted(each.outcome for each in answers).count("ok") == 1
    assert len(live(cluster)) == 1


@story()
async def test_item_5_channel_whose_node_does_not_answer_stays(cluster: Cluster) -> None:
    keep(cluster)
    one, two, _ = cluster.nodes.values()
    await one.broker.connect("c", "a")
    call = two.rpc.call

    async def unreachable(node: str, method: str, payload: bytes, timeout_s: float) -> bytes:
        if method == CONNECTED:
            raise PeerUnreachable("cut off")
        return await call(node, method, payload, timeout_s)

    two.rpc.call = unreachable  # type: ignore[method-assign]
    assert kept(await two.broker.connect("c", "b", timeout_s=4)) == ("occupied", "a")


@pytest.mark.parametrize("mode", ["disabled", "dual", "migration"])
def test_item_5_older_connection_is_kept_under_each_mode(mode: Mode) -> None:
    async def whole() -> None:
        cluster = await Cluster(3).start()
        await cluster.sessions(mode)
        keep(cluster)
        one, two, _ = cluster.nodes.values()
        await one.broker.connect("c", "a")
        await asyncio.sleep(1)
        assert kept(await two.broker.connect("c", "b")) == ("occupied", "a")
        one.broker.sessions[("c", "a")].connected = False
        assert (await two.broker.connect("c", "d")).present

    run(whole())


def test_item_5_without_a_broker_a_registered_channel_is_a_connected_client() -> None:
    async def whole() -> None:
        cluster = await Cluster(3).start()
        keep(cluster)
        one, two, _ = cluster.nodes.values()
        row = (await one.lcr.connect("c", "a")).owner
        assert row is not None
        refused = await two.lcr.connect("c", "b")
        assert (refused.outcome, refused.owner) == ("occupied", row)
        await one.lcr.unregister(row)
        assert (await two.lcr.connect("c", "b")).outcome == "ok"

    run(whole())
