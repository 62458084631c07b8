"""Whom a certificate names.

The identity is one URI among the subject alternative names:

    raftkv://<cluster>/<node name>                   may be a core or a replicant
    raftkv://<cluster>/<node name>?role=replicant    never takes part in consensus

The common name repeats the node's name for people, and the host names are for doors that speak
HTTPS: neither is ever compared, because a node may move to another address under its name.

A certificate carries no role unless it is asked to. The role is replicated state: a replicant may
be promoted to a core while it runs, and that must not wait for a certificate.
"""

from __future__ import annotations

from typing import NamedTuple

from raftkv.config import is_name

__all__ = ["CertificateIdentity", "parse_uri", "uri_of"]

SCHEME = "raftkv://"
_REPLICANT_ONLY = "?role=replicant"


class CertificateIdentity(NamedTuple):
    """The owner of a certificate. `replicant_only`: it must not take part in consensus."""

    cluster: str
    name: str
    replicant_only: bool = False


def uri_of(identity: CertificateIdentity) -> str:
    """The URI that stands in the certificate."""
    role = _REPLICANT_ONLY if identity.replicant_only else ""
    return f"{SCHEME}{identity.cluster}/{identity.name}{role}"


def parse_uri(uri: str) -> CertificateIdentity | None:
    """The identity in a URI, or None if it is none that `uri_of` could have made."""
    if not uri.startswith(SCHEME):
        return None
    cluster, slash, rest = uri[len(SCHEME) :].partition("/")
    name = rest.removesuffix(_REPLICANT_ONLY)
    if not slash or not is_name(cluster) or not is_name(name):
        return None
    return CertificateIdentity(cluster, name, replicant_only=name != rest)
