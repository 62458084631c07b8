"""Injected bugs of the HTTP API, each with a test that must notice.

The HTTP API does not run in the simulated world. A test that passes with a rule and without it
shows nothing, so each rule is taken out here for the time of one test, as in tests/mutants.py.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import pytest

from raftkv.config import HttpLimits
from raftkv.server.admission import Admission
from raftkv.server.bounded import BoundedHttp
from raftkv.server.outgoing import Outgoing
from raftkv.testing import patching, planting
from raftkv.testing.own_errors import watched
from raftkv.testing.patching import around, replaced
from raftkv.testing.planting import pretending
from tests.server import test_admission, test_outgoing
from tests.server.conftest import Served

Patch = Callable[[], AbstractContextManager[None]]


class InjectedBug(NamedTuple):
    patch: Patch
    test: Callable[[Served], None]
    limits: HttpLimits | None = None


def instead(owner: Any, name: str, function: Callable[..., Any]) -> Patch:
    return lambda: replaced(owner, name, function)


def _learns_every_head(take_head: Callable[..., None]) -> Callable[..., None]:
    """The short way takes a head for known whatever host and origin it names."""

    def broken(connection: Any, head: bytes) -> None:
        with pretending(
            connection._state.app, "admission", Admission(host_whitelist=["*"], cors=["*"])
        ):
            take_head(connection, head)

    return broken


def _forgets_what_is_closed(count_unsent: Callable[..., None]) -> Callable[..., None]:
    """What a connection holds that is to be closed counts for nothing."""

    def broken(connection: Any) -> None:
        with pretending(connection, "_gone", connection.transport.is_closing()):
            count_unsent(connection)

    return broken


# Where the code of the bugs is written.
FILES = (__file__, patching.__file__, planting.__file__)
SMALL = HttpLimits(answer_bytes_max=test_outgoing.LIMIT)

BUGS = {
    "any-host": InjectedBug(
        instead(Admission, "_judge_hosts", lambda *_: None),
        lambda served: test_admission.test_a_name_that_is_not_the_nodes_gets_nothing(
            served, "POST /v3/kv/put"
        ),
    ),
    "any-origin": InjectedBug(
        instead(Admission, "_knows_origin", lambda *_: True),
        test_admission.test_a_form_of_another_site_changes_nothing,
    ),
    "short-way-not-judged": InjectedBug(
        lambda: around(BoundedHttp, "_take_head", _learns_every_head),
        test_admission.test_a_head_is_refused_alike_on_the_short_way,
    ),
    "answers-unbounded": InjectedBug(
        instead(Outgoing, "require_room", lambda *_: None),
        lambda _: test_outgoing.test_one_answer_alone_is_never_too_large(),
    ),
    "answers-not-counted": InjectedBug(
        instead(Outgoing, "moved", lambda *_: None),
        lambda _: test_outgoing.test_the_answer_of_a_write_counts_and_is_never_refused(),
    ),
    "streams-do-not-wait": InjectedBug(
        instead(Outgoing, "_wake", lambda *_: None),
        lambda _: test_outgoing.test_those_who_wait_go_one_after_the_other(),
    ),
    "closed-connections-not-counted": InjectedBug(
        lambda: around(BoundedHttp, "_count_unsent", _forgets_what_is_closed),
        test_outgoing.test_what_a_connection_that_ends_still_holds_is_counted,
        SMALL,
    ),
}


def passes(bug: InjectedBug) -> None:
    served = Served() if bug.limits is None else Served(limits=bug.limits)
    served.start()
    try:
        bug.test(served)
    finally:
        served.stop()


@pytest.mark.parametrize("name", BUGS)
def test_an_injected_bug_is_noticed(name: str) -> None:
    noticed = (AssertionError, LookupError, pytest.fail.Exception)
    with watched(name, BUGS[name].patch, FILES), pytest.raises(noticed):
        passes(BUGS[name])
