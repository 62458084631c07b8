"""A client at a door with TLS."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from raftkv import Client
from raftkv.client import ClientTls
from raftkv.config import HttpTls
from raftkv.errors import CertificateError, NotApplied, PeerUnreachable, ReadTimeout
from raftkv.server import App, Door
from raftkv.server.sessions import Sessions
from raftkv.server.tls import DoorTls
from raftkv.testing.local_cluster import LocalCluster
from tests.client.fake_door import in_loop
from tests.security import pki


@contextlib.asynccontextmanager
async def secure_door(folder: Path) -> AsyncIterator[tuple[str, ClientTls]]:
    """An endpoint that asks for certificates, and what gets in."""
    doors, people = pki.authority("doors"), pki.authority("people")
    served = pki.write(folder / "door", pki.node(doors, "door", "doors"), people)
    shown = pki.write(folder / "client", pki.node(people, "ann", "people"), doors)
    files = HttpTls(certificate=served.certificate, key=served.key, ca=served.ca)
    async with LocalCluster(1, fsync="off") as cluster:
        sessions = Sessions(cluster.nodes[0])
        app = App(cluster.nodes[0], routes=sessions.routes(), sessions=sessions)
        door = Door(app, "127.0.0.1", 0, tls=DoorTls(files))
        await door.start()
        try:
            yield (
                door.endpoint,
                ClientTls(ca=shown.ca, certificate=shown.certificate, key=shown.key),
            )
        finally:
            await door.stop()


@in_loop
async def scenario(folder: Path) -> None:
    async with secure_door(folder) as (endpoint, tls):
        assert endpoint.startswith("https://")
        async with Client(endpoint, tls=tls) as client:
            await client.kv.put(b"k", b"v")
            found = await client.kv.get(b"k")
            assert found is not None
            assert found.value == b"v"
            async with client.kv.watch(b"k", start_revision=1) as watch:
                assert (await anext(watch)).events[0].kv == found
            await asyncio.gather(*(client.kv.get(b"k") for _ in range(20)))
        # Without a certificate, and without trust in the door's.
        nobody = ClientTls(ca=tls.ca)
        async with Client(endpoint, tls=nobody, timeout_s=2) as client:
            with pytest.raises((NotApplied, ReadTimeout)):
                await client.kv.get(b"k")
        stranger = ssl.create_default_context()
        async with Client(endpoint, tls=stranger, timeout_s=2) as client:
            with pytest.raises(PeerUnreachable, match="certificate"):
                await client.kv.get(b"k")


def test_calls_and_watches_go_through_tls(tmp_path: Path) -> None:
    scenario(tmp_path)


@in_loop
async def test_files_that_cannot_be_used_are_named() -> None:
    with pytest.raises(CertificateError, match="none.pem"):
        Client("https://127.0.0.1:1", tls=ClientTls(ca="none.pem"))
