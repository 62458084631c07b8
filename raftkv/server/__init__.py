"""The network door: etcd's JSON gateway words, health, status, and the plugins' routes."""

from .app import App
from .door import Door

__all__ = ["App", "Door"]
