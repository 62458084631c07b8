"""The network door: etcd's JSON gateway words, health, status, and the plugins' routes."""

from .app import App
from .door import Door
from .serving import door_of
from .tls import DoorTls

__all__ = ["App", "Door", "DoorTls", "door_of"]
