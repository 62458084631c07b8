"""The answer to a handshake names the purpose that was dialled for, or the link is ended."""

from __future__ import annotations

import asyncio
import contextlib
import ssl

from raftkv.config import parse_address
from raftkv.raft import wire
from raftkv.security.directory import CertificateDirectory
from raftkv.testing.local_cluster import LocalCluster
from tests.test_membership import in_loop, until


@in_loop
async def test_a_replicant_only_certificate_gets_no_consensus_link_by_its_answer() -> None:
    """It answers a core that dials for consensus as a replicant would answer a call."""
    async with LocalCluster(cores=3, tls=True) as cluster:
        former = next(node for node in cluster.cores if node.leader != node.name)
        hello = former._peering.hello("raft")
        await former.stop()
        certificates = str(cluster.certificates)
        issuer = CertificateDirectory(certificates)
        issuer.issue(former.name, ["127.0.0.1"], replicant_only=True, force=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        stem = f"{certificates}/{former.name}"
        context.load_cert_chain(f"{stem}.pem", f"{stem}.key")
        context.load_verify_locations(f"{certificates}/ca.pem")
        context.verify_mode = ssl.CERT_REQUIRED
        got: list[str] = []
        ended = 0

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal ended
            with contextlib.suppress(OSError, EOFError):
                while True:
                    size = int.from_bytes(await reader.readexactly(4), "little")
                    message = wire.decode(await reader.readexactly(size))
                    got.append(type(message).__name__)
                    if isinstance(message, wire.Hello):
                        lie = {"purpose": "rpc", "role": "replicant", "wanted": ""}
                        fields = {name: getattr(hello, name) for name in hello.__struct_fields__}
                        writer.write(wire.encode(wire.Hello(**(fields | lie))))
            ended += 1
            writer.close()

        host, port = parse_address(former.config.peer_address)
        server = await asyncio.start_server(answer, host, port, ssl=context)
        await until(lambda: ended >= 2)
        server.close()
        assert "Hello" in got
        assert "Append" not in got
