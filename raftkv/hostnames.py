"""Names of hosts and origins of web pages in one form each, so that they can be compared.

Pure: used where the configuration is checked and where the HTTP API judges a request.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

__all__ = ["host_of", "is_address", "normal_name", "normal_origin", "source_of"]

# As DNS bounds it, in text form.
_NAME_CHARS_MAX: Final = 253
# Underscores are no part of a host name in DNS, but container networks use them.
_NAME: Final = re.compile(r"(?:\*\.)?[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_-])?")
_IPV6_PREFIX_BITS: Final = 64
_PORT: Final = re.compile(r"(?::[0-9]{0,5})?")
_ORIGIN: Final = re.compile(r"([a-z][a-z0-9+.-]*)://(.+)")
# Browsers leave these out of an origin.
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}


def is_address(name: str) -> bool:
    """Whether `name` is an IP address in its canonical kinds of notation."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def source_of(host: str) -> str:
    """The address that a peer's `host` counts as: itself, or its IPv6 network of 64 bits.

    Each host in such a network has all of its addresses.
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, _IPV6_PREFIX_BITS), strict=False))


def normal_name(text: str) -> str | None:
    """A host name or address in lower case without the dot of the DNS root; None if it is none.

    An IPv6 address is taken with and without brackets. A name may begin with the label `*`.
    """
    name = text.lower()
    if name.startswith("[") and name.endswith("]"):
        name = name[1:-1]
        return name if ":" in name and is_address(name) else None
    if is_address(name):
        return name
    name = name.removesuffix(".")
    if len(name) > _NAME_CHARS_MAX or ".." in name or _NAME.fullmatch(name) is None:
        return None
    return name


def host_of(authority: str) -> str | None:
    """The host of `host[:port]`, as `normal_name` gives it; None if it is not of that form."""
    if authority.startswith("["):
        end = authority.find("]") + 1
        host, port = authority[:end], authority[end:]
    else:
        host, colon, number = authority.partition(":")
        port = colon + number
    if _PORT.fullmatch(port) is None or "*" in host:
        return None
    return normal_name(host)


def normal_origin(text: str) -> str | None:
    """An origin, `scheme://host[:port]`, as browsers write it; None if it is not one."""
    found = _ORIGIN.fullmatch(text.lower())
    if found is None:
        return None
    scheme, authority = found.groups()
    if host_of(authority) is None:
        return None
    return f"{scheme}://{authority.removesuffix(_DEFAULT_PORTS.get(scheme, ' '))}"
