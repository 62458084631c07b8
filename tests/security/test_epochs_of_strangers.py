"""A handshake with a higher epoch, from any program that can reach a port, stops no core."""

from __future__ import annotations

import asyncio
import ssl

import pytest

from raftkv.config import parse_address
from raftkv.raft import wire
from raftkv.raft.epoch import Epoch
from raftkv.security.directory import CertificateDirectory
from raftkv.testing.local_cluster import LocalCluster
from tests.test_membership import in_loop


async def greet(address: str, hello: wire.Hello, tls: ssl.SSLContext | None) -> wire.Message:
    """The first message that the node at this address answers with."""
    host, port = parse_address(address)
    reader, writer = await asyncio.open_connection(host, port, ssl=tls)
    try:
        writer.write(wire.encode(hello))
        async with asyncio.timeout(10):
            size = int.from_bytes(await reader.readexactly(4), "little")
            return wire.decode(await reader.readexactly(size))
    finally:
        writer.close()


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
                    hello = wire.Hello(
                        wire.PROTOCOL_VERSION,
                        purpose,
                        "raftkv",
                        cluster_id,
                        "edge7-00000000",
                        "replicant",
                        "127.0.0.1:1",
                        Epoch(1, "x"),
                    )
                    answer = await greet(node.config.peer_address, hello, context)
                    assert isinstance(answer, wire.Refusal)
                    assert answer.code == "unproved_epoch"
            await cluster.cores[0].kv.put(b"k", b"v")
            for node in cluster.cores:
                assert not node._fault.done()
                assert "edge7" in str(node.status().unproved_epoch)
                assert node._peering.unproved_epochs == 2

    run()
