"""Private keys with a password are refused everywhere, at once; a failed reload ends no reloading.

OpenSSL would ask for the password at the terminal, on the event loop that loads the key.
"""

from __future__ import annotations

import asyncio
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from raftkv.client import Client, ClientTls
from raftkv.errors import CertificateError
from raftkv.security import channel, credentials
from raftkv.security.keeper import Keeper
from raftkv.server import tls as http_tls
from raftkv.server.tls import DoorTls
from tests.security import pki
from tests.security.test_keeper import SIGNER, Runtime, config, files_in
from tests.server.test_tls import World

WORDS = "encrypted with a password"


def encrypt(key: str) -> None:
    """Put a password on the key in a file."""
    path = Path(key)
    loaded = serialization.load_pem_private_key(path.read_bytes(), password=None)
    path.write_bytes(
        loaded.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_the_http_api_refuses_it_with_advice(world: World) -> None:
    encrypt(world.files.key)
    with pytest.raises(CertificateError, match=rf"http_tls: .*{WORDS}.*openssl pkey"):
        DoorTls(world.files)


def test_a_client_refuses_it_when_it_is_made(world: World) -> None:
    certificate, key = world.client
    encrypt(key)
    tls = ClientTls(ca=world.doors.ca, certificate=certificate, key=key)
    with pytest.raises(CertificateError, match=WORDS):
        Client(["https://127.0.0.1:1"], tls=tls)
    # Certificate and key in one file.
    both = Path(certificate)
    both.write_bytes(both.read_bytes() + Path(key).read_bytes())
    with pytest.raises(CertificateError, match=WORDS):
        Client(["https://127.0.0.1:1"], tls=ClientTls(ca=world.doors.ca, certificate=str(both)))


def test_a_link_between_nodes_refuses_it(world: World) -> None:
    encrypt(world.files.key)
    pem = Path(world.doors.ca).read_text()
    with pytest.raises(CertificateError, match=WORDS):
        channel.contexts(world.files.certificate, world.files.key, pem)


@pytest.mark.cluster
def test_the_command_line_does_not_ask_at_the_terminal(world: World) -> None:
    certificate, key = world.client
    encrypt(key)
    mine, theirs = pty.openpty()
    command = [sys.executable, "-m", "raftkv", "get", "k", "--endpoint", "https://127.0.0.1:1"]
    command += ["--cacert", world.doors.ca, "--cert", certificate, "--key", key]
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        _, said = process.communicate(timeout=30)
    finally:
        process.kill()
        os.close(mine)
        os.close(theirs)
    assert process.returncode == 2
    assert WORDS.encode() in said


Failing = Callable[..., Any]


def unforeseen(*arguments: Any) -> Any:
    raise AttributeError("an unforeseen defect")


def test_a_failed_reload_of_the_http_api_never_ends_reloading(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a key with a password nor an unforeseen error."""

    async def whole() -> None:
        monkeypatch.setattr(http_tls, "POLL_S", 0.01)
        tls = DoorTls(world.files)
        good = Path(world.files.key).read_bytes()
        first = tls._current
        watching = asyncio.create_task(tls.watch())
        encrypt(world.files.key)
        await _until(lambda: tls.fault is not None and WORDS in tls.fault)
        with monkeypatch.context() as patched:
            patched.setattr(http_tls, "_load", unforeseen)
            Path(world.files.key).write_bytes(good + b"\n")
            await _until(lambda: tls.fault is not None and "AttributeError" in tls.fault)
            with pytest.raises(CertificateError, match="AttributeError"):
                await tls.reload()
        assert tls._current is first
        assert not watching.done()
        Path(world.files.key).write_bytes(good)
        await _until(lambda: tls.fault is None)
        assert tls._current is not first
        watching.cancel()

    asyncio.run(asyncio.wait_for(whole(), 30))


def test_a_failed_reload_between_nodes_never_ends_reloading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pki.write(tmp_path, pki.node(SIGNER, "core1"), SIGNER)
    files, runtime = files_in(tmp_path), Runtime()
    keeper = Keeper(config(files), runtime)  # type: ignore[arg-type]
    keeper.start()
    runtime.run()
    good = Path(files.key).read_bytes()
    encrypt(files.key)
    runtime.pass_polls(3)
    assert WORDS in str(keeper.fault)
    with monkeypatch.context() as patched:
        patched.setattr(credentials, "load", unforeseen)
        Path(files.key).write_bytes(good + b"\n")
        runtime.pass_polls(3)
        assert "AttributeError" in str(keeper.fault)
    Path(files.key).write_bytes(good)
    runtime.pass_polls(3)
    assert keeper.fault is None, "the next change of a file was read"
    keeper.stop()
    runtime.run()


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)
