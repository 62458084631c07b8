"""The tables in which nothing may be left when all transactions are decided and swept."""

from __future__ import annotations

__all__ = ["RESIDUE"]

RESIDUE = (
    "spans",
    "accepts",
    "staged",
    "transactions",
    "branches",
    "ended_nodes",
    "left",
    "ended_sessions",
    "unfolding",
    "dropped",
    "overfull",
)
