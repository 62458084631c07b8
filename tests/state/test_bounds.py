"""Bounds that decide what `apply` answers are part of the core format.

A node with another bound comes to another state. So a bound changes with the core format only: a
change keeps the former value here under the former format, and lets the code ask for
`StateMachine.core_format`.
"""

from __future__ import annotations

import pytest

from raftkv.state import activation, core, costs, sessions

#: Of raftkv 0.1.0, which decides by them at core format 1.
FORMAT_1 = {
    (sessions, "SESSION_WINDOW"): 65_536,
    (sessions, "CLIENTS_MAX"): 10_000,
    (sessions, "CLIENT_IDLE_MS"): 3_600_000,
    (sessions, "_EXPIRED_PER_BATCH"): 16,
    (core, "OPENINGS_KEPT"): 16,
    (core, "NAME_CHARS_MAX"): 255,
    (core, "PLUGINS_MAX"): 256,
    (core, "VOTERS_MAX"): 255,
}
#: What core format 2 has besides.
FORMAT_2 = {
    (sessions, "OUTCOME_BYTES_MAX"): 1024 * 1024,
    (sessions, "OUTCOMES_BYTES_MAX"): 64 * 1024 * 1024,
    (sessions, "OUTCOME_KEPT_BYTES"): 128,
    (activation, "VANISHED_MS"): 3_600_000,
    (costs, "ROW_BYTES"): 4096,
}


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [(module, name, value) for (module, name), value in {**FORMAT_1, **FORMAT_2}.items()],
    ids=[name for _, name in {**FORMAT_1, **FORMAT_2}],
)
def test_a_bound_is_that_of_its_format(module: object, name: str, value: int) -> None:
    assert getattr(module, name) == value
