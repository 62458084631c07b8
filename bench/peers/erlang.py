"""What programs on Erlang's emulator need beside themselves: a cookie and a port mapper.

Both are ours: other Erlang nodes may run on this machine, and a port mapper that is left to itself
stays when the nodes have gone.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bench.peers.children import Children
from bench.peers.peer import PeerFailed

__all__ = ["HOST", "emulator_environment", "start_port_mapper"]

HOST: Final = "127.0.0.1"
START_TIMEOUT_S: Final = 30.0
_NAME: Final = "epmd"
_POLL_S: Final = 0.05


def emulator_environment(
    environment: Mapping[str, str], directory: Path, mapper_port: int
) -> dict[str, str]:
    """For every emulator of one cluster; makes its cookie in `directory` when there is none."""
    cookie = directory / ".erlang.cookie"
    if not cookie.exists():
        with open(os.open(cookie, os.O_CREAT | os.O_WRONLY, 0o400), "w") as file:
            file.write(secrets.token_hex(16))
    return {
        **environment,
        # Where the cookie is kept, and where a crash is described.
        "HOME": str(directory),
        "ERL_CRASH_DUMP": str(directory / "erl_crash.dump"),
        "ERL_EPMD_ADDRESS": HOST,
        "ERL_EPMD_PORT": str(mapper_port),
    }


def start_port_mapper(
    children: Children, path: str, environment: Mapping[str, str], failed: type[PeerFailed]
) -> None:
    """Start the mapper; it listens when this returns. Raises `failed`."""
    children.start(_NAME, [path], environment)
    until = time.monotonic() + START_TIMEOUT_S
    port = int(environment["ERL_EPMD_PORT"])
    while True:
        try:
            socket.create_connection((HOST, port), timeout=1.0).close()
            return
        except OSError as error:
            if children.ended() is not None or time.monotonic() > until:
                words = children.last_words(_NAME)
                raise failed(f"epmd does not listen: {error}. It wrote: {words}") from None
        time.sleep(_POLL_S)
