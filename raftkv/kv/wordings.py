"""The texts of `LimitExceeded`: formed where it is read, of which limit it was and the numbers.

The texts are no part of the state from core format 2 on, so they may be worded differently in a
later release. The names and the order of the numbers are state: they never change their meaning.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = ["WORDINGS", "worded"]

#: By the name of the limit, for the numbers in their order.
WORDINGS: Final[dict[str, str]] = {
    "key_bytes_max": "a key of {} bytes exceeds key_bytes_max = {}",
    "lease_keys_max": ("lease {} has lease_keys_max = {} keys: attach this one to another lease"),
    "lease_keys_max/txn": (
        "lease {} may get more than lease_keys_max = {} keys: attach keys in a transaction that "
        "deletes less, or to another lease"
    ),
    "leases_max": "there are leases_max = {} leases: share one, or revoke some",
    "limit": "limit = {} must be 0 (no limit) or more",
    "result_bytes_max": "the result exceeds result_bytes_max = {}: ask for less",
    "rows_max": "the command touches more than rows_max = {} keys: split it",
    "txn_depth": "inner transactions may be at most {} deep",
    "txn_ops_max": "a transaction with {} operations exceeds txn_ops_max = {}",
    "txn_ops_max/inner": "an inner transaction with {} operations exceeds txn_ops_max = {}",
    "value_bytes_max": "a value of {} bytes exceeds value_bytes_max = {}",
}


def worded(limit: str, *numbers: Any) -> str:
    """The text. Of a limit that this release does not know, what is known of it."""
    wording = WORDINGS.get(limit)
    if wording is None:
        return f"{limit} was exceeded ({', '.join(map(str, numbers))})"
    return wording.format(*numbers)
