"""How a development cluster lies in its directory: the shape, the names, the files."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from raftkv.config import load_config
from raftkv.errors import ConfigError

from . import processes

__all__ = ["ClusterShape", "Fsync", "lay_out", "read_shape", "shape_path"]

Fsync = Literal["on", "off"]

HOST: Final = "127.0.0.1"
CLUSTER: Final = "dev"
# Where the authority and all certificates are, below the cluster's directory.
CERTIFICATES: Final = "certs"
# All nodes share one machine; more of them show nothing that fewer do not.
NODES_MAX: Final = 31


class ClusterShape(msgspec.Struct, frozen=True, kw_only=True):
    """What cluster.json holds: the arguments with which the directory was laid out."""

    cores: int
    replicants: int
    fsync: Fsync = "on"
    tls: bool = False

    @property
    def names(self) -> list[str]:
        """All nodes, cores first."""
        cores = [f"core{n}" for n in range(1, self.cores + 1)]
        return cores + [f"replicant{n}" for n in range(1, self.replicants + 1)]


def shape_path(directory: str) -> str:
    """The file whose presence says that the directory is laid out completely."""
    return os.path.join(directory, "cluster.json")


def read_shape(directory: str) -> ClusterShape:
    """The shape of the cluster in `directory`; `ConfigError` if there is none."""
    path = shape_path(directory)
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(), type=ClusterShape)
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(
            f"there is no cluster in {directory}: start one with "
            f"raftkv cluster up --dir {directory}"
        ) from None
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path} cannot be used: {error}") from None


def lay_out(directory: str, shape: ClusterShape, plugins: Sequence[str] | None) -> None:
    """Write all configurations, with free ports, and then the shape.

    An interrupted attempt leaves no shape, so that the next one begins anew: no node can have been
    started from it.
    """
    names = shape.names
    if shape.cores < 1 or shape.replicants < 0 or len(names) > NODES_MAX:
        raise ConfigError(
            f"a cluster needs at least 1 core and 0 replicants, and at most {NODES_MAX} nodes"
        )
    ports = processes.free_ports(2 * len(names), HOST)
    peers = {name: f"{HOST}:{ports[2 * n]}" for n, name in enumerate(names)}
    doors = {name: f"{HOST}:{ports[2 * n + 1]}" for n, name in enumerate(names)}
    cores = {name: peers[name] for name in names[: shape.cores]}
    if shape.tls:
        # Imported late: most clusters of one machine need no `cryptography`.
        from raftkv.security.directory import certify

        certify(os.path.join(directory, CERTIFICATES), CLUSTER, names, [HOST])
    for name in names:
        text = _toml(name, peers[name], doors[name], cores, shape, plugins)
        path = os.path.join(directory, name, "node.toml")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        load_config(path)
    temporary = shape_path(directory) + ".new"
    with open(temporary, "wb") as binary:
        binary.write(msgspec.json.encode(shape))
    os.rename(temporary, shape_path(directory))


def _toml(
    name: str,
    peer_address: str,
    http_address: str,
    cores: dict[str, str],
    shape: ClusterShape,
    plugins: Sequence[str] | None,
) -> str:
    """The text of node.toml. JSON's strings and arrays of strings are TOML's, too."""
    lines = [
        f"name = {json.dumps(name)}",
        f"role = {json.dumps('core' if name in cores else 'replicant')}",
        f"cluster = {json.dumps(CLUSTER)}",
        'dir = "data"',
        f"peer_address = {json.dumps(peer_address)}",
        f"http_address = {json.dumps(http_address)}",
        f"fsync = {json.dumps(shape.fsync)}",
    ]
    if plugins is not None:
        lines.append(f"plugins = {json.dumps(list(plugins))}")
    lines += ["", "[cores]"]
    lines += [f"{core} = {json.dumps(address)}" for core, address in cores.items()]
    if shape.tls:
        lines += ["", "[tls]", f'ca = "../{CERTIFICATES}/ca.pem"']
        lines.append(f'certificate = "../{CERTIFICATES}/{name}.pem"')
        lines.append(f'key = "../{CERTIFICATES}/{name}.key"')
    return "\n".join(lines) + "\n"
