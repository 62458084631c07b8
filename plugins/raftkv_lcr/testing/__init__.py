"""For tests of programs that embed the registry: a broker in memory."""

from .broker import MemoryBroker, Session, decode_content

__all__ = ["MemoryBroker", "Session", "decode_content"]
