"""Consensus: PySyncObj made durable, safe and fast. Knows bytes, not commands."""
