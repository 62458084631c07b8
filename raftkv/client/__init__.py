"""The network client: `raftkv.Client`. docs/clients.md tells how to use it."""

from .client import Client, DoorAnswer
from .kv import ClientKV
from .leases import ClientLeases
from .streams import ClientStream
from .tls import ClientTls
from .watch import ClientWatch

__all__ = [
    "Client",
    "ClientKV",
    "ClientLeases",
    "ClientStream",
    "ClientTls",
    "ClientWatch",
    "DoorAnswer",
]
