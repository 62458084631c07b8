"""The replay in the store's own order, by hand and against the search."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from raftkv.testing.histories import Operation
from raftkv.testing.linearizability import check
from raftkv.testing.models import KeyValueStore
from raftkv.testing.revision_order import check_by_revision


def put(value: str, start: int, end: int, revision: int | None, **changes: Any) -> Operation:
    return Operation("a", "put", "k", value, None, start, end, revision=revision, **changes)


def get(value: str | None, start: int, end: int, revision: int) -> Operation:
    return Operation("b", "get", "k", None, value, start, end, revision=revision)


def lost(value: str, start: int) -> Operation:
    return Operation("c", "put", "k", value, None, start, None, "unknown")


def verdict(*history: Operation) -> tuple[str, str]:
    found = check_by_revision(history, KeyValueStore())
    return found.outcome, found.reason


def test_what_fits_is_consistent() -> None:
    history = [
        put("x", 0, 10, 5),
        get(None, 0, 9, 4),
        get("x", 5, 8, 5),
        Operation("a", "cas", "k", ("x", "y"), True, 11, 12, revision=7),
        Operation("a", "cas", "k", ("x", "z"), False, 11, 13, revision=8),
        Operation("a", "delete", "k", None, True, 14, 15, revision=9),
        get(None, 16, 17, 9),
    ]
    assert verdict(*history) == ("consistent", "")
    assert verdict() == ("consistent", "")


def test_a_value_that_the_revision_does_not_have() -> None:
    outcome, reason = verdict(put("x", 0, 1, 5), put("y", 2, 3, 6), get("x", 4, 5, 6))
    assert outcome == "violation"
    assert reason == "[b] get: 'x' at revision 6, where the replayed state is 'y'"


def test_a_revision_given_twice() -> None:
    outcome, reason = verdict(put("x", 0, 5, 5), put("y", 0, 5, 5))
    assert outcome == "violation"
    assert "revision 5 was given to [a] put 'x' and to [a] put 'y'" in reason


def test_an_order_that_does_not_keep_time() -> None:
    """The values alone would be fine."""
    history = [put("x", 0, 1, 6), put("y", 2, 3, 5), get("x", 0, 9, 6)]
    outcome, reason = verdict(*history)
    assert outcome == "violation"
    assert "began after [a] put 'x' had ended" in reason
    # A change cannot have a revision that was seen before it began.
    assert verdict(put("x", 0, 9, 5), get("x", 1, 2, 5), get("x", 3, 4, 5))[0] == "consistent"
    assert verdict(get("x", 1, 2, 5), put("x", 3, 4, 5))[0] == "violation"


def test_unknown_outcomes_help_once() -> None:
    assert verdict(lost("x", 0), get("x", 1, 2, 3))[0] == "consistent"
    history = [lost("x", 0), get("x", 1, 2, 3), put("y", 3, 4, 4), get("x", 5, 6, 5)]
    assert verdict(*history)[0] == "unknown"
    assert check(history, KeyValueStore()).outcome == "violation"
    assert verdict(get("x", 1, 2, 3), lost("x", 3))[0] == "unknown"


def test_without_revisions_there_is_no_verdict() -> None:
    assert verdict(put("x", 0, 1, None), get("x", 2, 3, 5)) == (
        "unknown",
        "1 of 2 answers carry no revision",
    )


@pytest.mark.parametrize("seed", range(5))
def test_both_oracles_agree_on_runs_and_on_their_corruption(seed: int) -> None:
    rng = random.Random(seed)
    history: list[Operation] = []
    value: str | None = None
    for revision in range(300):
        # Operations overlap their neighbours and take effect in the order of their revisions.
        start, end = 10 * revision - rng.randrange(25), 10 * revision + rng.randrange(25)
        if rng.random() < 0.5:
            value = f"v{revision}"
            history.append(put(value, start, end, revision))
        else:
            history.append(get(value, start, end, revision))
    assert verdict(*history)[0] == "consistent"
    assert check(history, KeyValueStore()).outcome == "linearizable"
    last = next(n for n in reversed(range(len(history))) if history[n].op == "get")
    history[last] = msgspec.structs.replace(history[last], output="v0")
    assert verdict(*history)[0] == "violation"
    assert check(history, KeyValueStore()).outcome == "violation"
