"""Addresses in a configuration: which may be told to other nodes, and which exclude each other.

An address is `host:port`, or `[host]:port` with an IPv6 address. `peer_address`, `cores` and
`http_address` are for others, who connect to them; `listen_address` and `http_listen_address` are
for this machine. Everything wrong is found before a cluster is bootstrapped, because the log
remembers the addresses of its members.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Mapping, Sequence
from typing import Final

from .errors import ConfigError

__all__ = ["PORT_DIGITS_MAX", "check_addresses", "is_loopback", "is_wildcard", "parse_address"]

# Of the number of a port. Longer ones are not even read: that has a limit of its own in Python.
PORT_DIGITS_MAX: Final = 5

_NO_HOST: Final = re.compile(r"[\s/\[\]]")

_LISTENING: Final = {"peer_address": "listen_address", "http_address": "http_listen_address"}


def parse_address(address: str, label: str = "address") -> tuple[str, int]:
    """Split `host:port` (or `[v6]:port`); raise `ConfigError` naming `label` if it is not one."""
    host, separator, port = address.rpartition(":")
    digits = port.isascii() and port.isdecimal() and len(port) <= PORT_DIGITS_MAX
    number = int(port) if digits else -1
    brackets = host.startswith("["), host.endswith("]")
    bare = host[1:-1] if all(brackets) else host
    # A URL, a space or half a pair of brackets would only be found by the resolver, if at all.
    if not separator or not 0 <= number <= 65_535 or not bare or _NO_HOST.search(bare):
        raise ConfigError(f'{label} = {address!r} is not an address: write "host:port"')
    return bare, number


def is_loopback(host: str) -> bool:
    """Whether the host is this machine for itself only."""
    if host.lower().removesuffix(".") == "localhost":
        return True
    found = _ip(host)
    return found is not None and found.is_loopback


def is_wildcard(host: str) -> bool:
    """Whether the host means every address of a machine: 0.0.0.0, ::, and their other spellings."""
    found = _ip(host)
    return found is not None and found.is_unspecified


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return _short_ip(host)
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return found if mapped is None else mapped


def _short_ip(host: str) -> ipaddress.IPv4Address | None:
    """The system reads `0`, `127.1` and `0x7f000001` as IPv4 addresses, too."""
    if not host[:1].isdigit():
        return None
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host))
    except (OSError, UnicodeEncodeError):
        return None


def check_addresses(
    name: str,
    role: str,
    cores: Mapping[str, str],
    for_others: Sequence[tuple[str, str]],
    listening: Sequence[tuple[str, str]],
) -> None:
    """Raise `ConfigError` for addresses that cannot be used, or not together.

    `for_others` are (key, address) pairs told to other nodes, `cores` among them; `listening` those
    that this node listens on.
    """
    for label, address in (*for_others, *listening):
        host, port = parse_address(address, label)
        if port == 0:
            raise ConfigError(
                f"{label} = {address!r}: port 0 means any free port, which the other nodes and "
                f"clients could not know: name a port"
            )
        if is_wildcard(host) and (label, address) in for_others:
            mine = name if label == f"cores.{name}" else label
            other = _LISTENING.get("peer_address" if mine == name else label)
            remedy = f", and listen on {host} with {other}" if other else ""
            raise ConfigError(
                f"{label} = {address!r} is no address that others can reach: name one of the "
                f"machine{remedy}"
            )
    _check_cores(name, role, cores, dict(for_others)["peer_address"])
    _check_clash([*for_others[:1], *(pair for pair in for_others if pair[0] == "http_address")])
    _check_clash(listening)


def _check_cores(name: str, role: str, cores: Mapping[str, str], peer_address: str) -> None:
    owners: dict[tuple[str, int], str] = {}
    for core in sorted(cores):
        owner = owners.setdefault(_place(cores[core]), core)
        if owner != core:
            raise ConfigError(
                f"cores.{owner} and cores.{core} have one address, {cores[core]!r}: each core has "
                f"an address of its own"
            )
    owner = owners.get(_place(peer_address), name)
    if owner != name:
        raise ConfigError(
            f"peer_address = {peer_address!r} is the address of another node, cores.{owner}: this "
            f"{role} needs one of its own"
        )


def _check_clash(pairs: Sequence[tuple[str, str]]) -> None:
    """Two addresses of one node must differ, and none may include another."""
    for position, (label, address) in enumerate(pairs):
        host, port = _place(address)
        for other_label, other in pairs[:position]:
            other_host, other_port = _place(other)
            wild = is_wildcard(host) or is_wildcard(other_host)
            if port == other_port and (wild or host == other_host):
                raise ConfigError(
                    f"{other_label} = {other!r} and {label} = {address!r} are one address: the "
                    f"nodes and the HTTP API need a port each"
                )


def _place(address: str) -> tuple[str, int]:
    """Host and port, so that spellings of one address are equal."""
    host, port = parse_address(address)
    found = _ip(host)
    if found is not None:
        return str(found), port
    bare = host.lower().removesuffix(".")
    return ("127.0.0.1" if bare == "localhost" else bare), port
