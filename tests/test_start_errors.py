"""Each error of a start names its cause and what to do."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest

from raftkv import NodeConfig
from raftkv.errors import AddressInUse, ConfigError, DiskFailed, RaftkvError, TooManyOpenFiles
from raftkv.node import Node
from raftkv.server import door_of
from raftkv.start_errors import error_of_listening, error_of_start
from raftkv.testing.local_cluster import free_ports

DIRECTORY = "/srv/raftkv/a"


@pytest.mark.parametrize(
    ("number", "file", "kind", "words"),
    [
        (errno.EACCES, DIRECTORY, ConfigError, "give it to the user that runs the node"),
        (errno.EACCES, "/srv", ConfigError, "give it to the user that runs the node"),
        (errno.EPERM, DIRECTORY + "/lock", ConfigError, "give it to the user"),
        (errno.EROFS, DIRECTORY, ConfigError, "mount its volume for writing"),
        (errno.ENOENT, DIRECTORY, ConfigError, "name a directory"),
        (errno.ENOTDIR, DIRECTORY, ConfigError, "name a directory"),
        (errno.ENOSPC, None, DiskFailed, "Free space"),
        (errno.EDQUOT, DIRECTORY + "/wal/1.wal", DiskFailed, "Free space"),
        (errno.EIO, None, DiskFailed, "Check the disk and replace it if it is bad"),
        (errno.EMFILE, DIRECTORY, TooManyOpenFiles, "ulimit -n"),
        (errno.ENFILE, DIRECTORY, TooManyOpenFiles, "fs.file-max"),
        # Not of the data directory at all: a socket or a file of a plugin.
        (errno.ECONNREFUSED, None, ConfigError, "the node cannot start: [Errno 111]"),
        (errno.EACCES, "/etc/other", ConfigError, "the node cannot start: [Errno 13]"),
    ],
)
def test_an_error_of_the_start_names_its_cause(
    number: int, file: str | None, kind: type[RaftkvError], words: str
) -> None:
    error = error_of_start(OSError(number, os.strerror(number), file), DIRECTORY)
    assert type(error) is kind
    assert words in str(error)
    assert "\n" not in str(error)
    assert ("disk" in str(error)) == (number == errno.EIO), "no other is the disk's"


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (socket.gaierror(-2, "Name or service not known"), ConfigError, "cannot be resolved"),
        (OSError(errno.EADDRINUSE, "in use"), AddressInUse, "choose another port"),
        (OSError(errno.EADDRNOTAVAIL, "no"), AddressInUse, "no such address"),
        (OSError(errno.EACCES, "denied"), AddressInUse, "a port above 1023"),
        (OSError(errno.EMFILE, "too many"), TooManyOpenFiles, "ulimit -n"),
        (OSError(errno.EAFNOSUPPORT, "family"), ConfigError, "not supported"),
    ],
)
def test_an_error_of_listening_names_the_key_and_the_cause(
    error: OSError, kind: type[RaftkvError], words: str
) -> None:
    found = error_of_listening(error, "peer_address", "host:1")
    assert type(found) is kind
    assert words in str(found)
    if kind is not TooManyOpenFiles:
        assert str(found).startswith("peer_address = 'host:1': ")


def _config(tmp_path: Path, **changes: Any) -> NodeConfig:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    config = NodeConfig(
        name="a", dir=str(tmp_path / "a"), peer_address=address, cores={"a": address}, plugins=()
    )
    return msgspec.structs.replace(config, **changes)


def _start(config: NodeConfig) -> str:
    """The text of the error that the start, or that of the HTTP API, ends with."""

    async def whole() -> None:
        async with Node(config) as node:
            server = door_of(node)
            await server.start()
            await server.stop()

    with pytest.raises(ConfigError) as caught:
        asyncio.run(asyncio.wait_for(whole(), 30))
    return str(caught.value)


def test_a_file_in_the_place_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    said = _start(_config(tmp_path, dir=str(tmp_path / "file" / "data")))
    assert "name a directory" in said
    assert "disk" not in said


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_of_another_user(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(mode=0o500)
    assert "give it to the user" in _start(_config(tmp_path))


def test_a_name_that_does_not_resolve(tmp_path: Path) -> None:
    name = "no-such-host.invalid"
    said = _start(_config(tmp_path, listen_address=f"{name}:1", insecure=True))
    assert said.startswith(f"listen_address = '{name}:1': the host name cannot be resolved")
    said = _start(_config(tmp_path, http_address=f"{name}:1", insecure=True))
    assert said.startswith(f"http_address = '{name}:1': the host name cannot be resolved")


def test_an_address_in_use_or_of_another_machine(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        said = _start(_config(tmp_path, listen_address=address))
        assert said.startswith(f"listen_address = '{address}': the address is already in use")
        said = _start(_config(tmp_path, http_address=address))
        assert said.startswith(f"http_address = '{address}': the address is already in use")
    # An address for documentation (RFC 5737): of no machine.
    said = _start(_config(tmp_path, listen_address="192.0.2.1:7401", insecure=True))
    assert "this machine has no such address" in said
