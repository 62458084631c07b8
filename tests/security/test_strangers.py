"""A handshake with a higher epoch, from any program that can reach a port, stops no core."""

from __future__ import annotations

import asyncio
import ssl

import msgspec
import pytest

from raftkv.config import parse_address
from raftkv.credibility import EPOCH
from raftkv.errors import MembershipRefused
from raftkv.member_changes import Request
from raftkv.raft import wire
from raftkv.raft.epoch import FOUNDED, Epoch
from raftkv.security.directory import CertificateDirectory
from raftkv.server.messages import ALARM_TYPES
from raftkv.testing.local_cluster import LocalCluster
from tests.test_membership import in_loop


async def greet(
    address: str, tls: ssl.SSLContext | None, *messages: wire.Message
) -> list[wire.Message]:
    """What the node at this address answers: one message to each."""
    host, port = parse_address(address)
    reader, writer = await asyncio.open_connection(host, port, ssl=tls)
    answers = []
    try:
        async with asyncio.timeout(10):
            for message in messages:
                writer.write(wire.encode(message))
                size = int.from_bytes(await reader.readexactly(4), "little")
                answers.append(wire.decode(await reader.readexactly(size)))
        return answers
    finally:
        writer.close()


def hello_of(purpose: str, cluster_id: str, epoch: Epoch = FOUNDED) -> wire.Hello:
    return wire.Hello(
        wire.PROTOCOL_VERSION,
        purpose,
        "raftkv",
        cluster_id,
        "edge7-00000000",
        "replicant",
        "127.0.0.1:1",
        epoch,
        about=wire.About(formats=[("core", 2)]),
    )


def replicant_only(certificates: str) -> ssl.SSLContext:
    """The context of a client with a certificate that is for a replicant only."""
    CertificateDirectory(certificates).issue("edge7", ["127.0.0.1"], replicant_only=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(f"{certificates}/ca.pem")
    context.load_cert_chain(f"{certificates}/edge7.pem", f"{certificates}/edge7.key")
    return context


@pytest.mark.parametrize("tls", [False, True])
def test_a_stranger_with_a_higher_epoch_stops_no_core(tls: bool) -> None:
    @in_loop
    async def run() -> None:
        async with LocalCluster(cores=3, tls=tls) as cluster:
            context = replicant_only(str(cluster.certificates)) if tls else None
            for node in cluster.cores:
                await node.wait_ready()
            cluster_id = cluster.cores[0].status().cluster_id
            for node in cluster.cores:
                for purpose in ("follow", "rpc"):
                    hello = hello_of(purpose, cluster_id, Epoch(1, "x"))
                    (answer,) = await greet(node.config.peer_address, context, hello)
                    assert isinstance(answer, wire.Refusal)
                    assert answer.code == "unproved_epoch"
            await cluster.cores[0].kv.put(b"k", b"v")
            for node in cluster.cores:
                assert not node._fault.done()
                assert "edge7" in str(node.status().unproved_epoch)
                assert node.status().alarms == [EPOCH]
                assert EPOCH in ALARM_TYPES
                assert node._peering.credibility.unproved_epochs == 2

    run()


@in_loop
async def test_a_certificate_for_replicants_only_changes_no_members() -> None:
    async with LocalCluster(cores=3, tls=True) as cluster:
        context = replicant_only(str(cluster.certificates))
        for node in cluster.cores:
            await node.wait_ready()
        (leader,) = [node for node in cluster.cores if node.leader == node.name]
        other = next(node for node in cluster.cores if node is not leader)
        remove = msgspec.msgpack.encode(Request("remove", other.name, False, 5.0))
        _, refused, listed = await greet(
            leader.config.peer_address,
            context,
            hello_of("rpc", leader.status().cluster_id),
            wire.RpcRequest(1, "core.change_members", remove),
            wire.RpcRequest(2, "core.list_members", b""),
        )
        assert isinstance(refused, wire.RpcReply)
        assert isinstance(listed, wire.RpcReply)
        assert (refused.error, listed.error) == ("not_permitted", "")
        assert b"edge7 may not call 'core.change_members'" in refused.payload
        assert len(leader.membership.list()) == 3
        assert leader._peering.calls_refused == 1


@in_loop
async def test_a_replicant_with_such_a_certificate_says_whom_to_ask() -> None:
    async with LocalCluster(cores=1, replicants=1, tls=True) as cluster:
        (replicant,) = cluster.replicants
        await replicant.wait_ready()
        certificates = CertificateDirectory(str(cluster.certificates))
        certificates.issue("replicant1", ["127.0.0.1"], replicant_only=True, force=True)
        await replicant.reload_certificates()
        with pytest.raises(MembershipRefused, match="ask a core"):
            await replicant.membership.remove("core1")
