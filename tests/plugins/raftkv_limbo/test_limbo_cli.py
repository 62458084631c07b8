"""`raftkv limbo ...` against three real nodes with doors."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from raftkv.errors import ConfigError
from raftkv_cluster_call import Calls
from raftkv_limbo import Limbo
from raftkv_limbo.asked import base64_of, longer_s, named_counts, submit_body
from raftkv_limbo.sheets import lack_words, quorum_words
from tests.plugins.raftkv_cluster_call.shell import Nodes, Shell

pytestmark = pytest.mark.slow

VERBS = (
    "status", "queue", "verdicts", "promote", "demote", "rollback", "quorum", "setting",
    "space list", "space create", "space alter", "space drop", "submit", "get", "range", "flush",
)  # fmt: skip
TIMEOUT_S = 30.0


@pytest.fixture(scope="module")
def started() -> Iterator[Nodes]:
    nodes = Nodes([Calls(), Limbo()])
    yield nodes
    nodes.stop()


@pytest.fixture
def limbo(
    started: Nodes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Shell:
    """Owned by core2, with the spaces "accounts" (sync) and "notes" (async), nothing pending."""
    shell = Shell(started, Limbo, capsys, monkeypatch)
    shell("quorum", "N / 2 + 1", "--over", "cores", "--clear-zones", "--clear-validators")
    names = [space["name"] for space in shell.json("space", "list")["spaces"]]
    for name, kind in (("accounts", "--sync"), ("notes", "--async")):
        if name not in names:
            shell("space", "create", name, kind)
    shell("promote", "core2")
    return shell


@pytest.fixture
def unreachable(limbo: Shell) -> Shell:
    """The same with a quorum that cannot be had: what is submitted stays pending."""
    limbo("quorum", "4")
    return limbo


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.02)


def rows(table: str) -> dict[str, list[str]]:
    """Its lines by their first word."""
    return {line.split()[0]: line.split() for line in table.splitlines()[1:] if line}


def pending(limbo: Shell) -> int:
    count: int = limbo.json("status")["queue"]["len"]
    return count


# --- data -----------------------------------------------------------------------------------------


def test_a_transaction_is_submitted_at_the_owner_and_read(limbo: Shell) -> None:
    said = limbo("submit", "accounts/ann=70", "accounts/bob=30", "notes/last=x=y")
    assert said.startswith("position ")
    assert said.endswith(": confirmed\n")
    until(lambda: limbo("get", "accounts", "ann", "--view", "linearizable") == "70\n")
    assert limbo("get", "notes", "last", "--view", "linearizable") == "x=y\n"
    done = limbo.json("submit", "accounts/ann=60", "accounts/bob=40", "--expect", "accounts/ann=70")
    assert done["state"] == "confirmed"
    limbo("submit", "accounts/ann=1", "--expect", "accounts/ann=70", code=1)
    assert "a condition on a key of 'accounts' found a value of position" in limbo.err
    position = str(done["position"])
    limbo("submit", "accounts/ann=50", "--expect-position", f"accounts/ann={position}")
    limbo("submit", "--delete", "accounts/bob", "--expect-some", "accounts/bob")
    limbo("submit", "accounts/eve=1", "--expect-none", "accounts/bob")
    found = rows(limbo("range", "accounts", "--view", "linearizable"))
    assert {key: row[1] for key, row in found.items()} == {"ann": "50", "eve": "1"}
    limbo("range", "accounts", "--limit", "1", "--reverse")
    assert limbo.err == "there are more: go on before eve\n"
    assert list(rows(limbo("range", "accounts", "b", "f"))) == ["eve"]
    limbo("get", "accounts", "bob", "--view", "linearizable", code=1)
    assert limbo.err == "error: there is no such key in accounts\n"
    limbo("get", "nowhere", "bob", code=1)
    assert "there is no space 'nowhere': create it first" in limbo.err
    assert limbo("flush") == "core2: flushed\n"


def test_what_the_shell_cannot_say_comes_from_stdin(
    limbo: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"writes": [{"space": "notes", "key": "AP8=", "value": "/w=="}]}
    stdin = io.TextIOWrapper(io.BytesIO(json.dumps(body).encode()))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert limbo.json("submit", "-")["state"] == "confirmed"
    # Both cannot be printed as they are.
    assert r"\x00\xff  \xff" in limbo("range", "notes", "--view", "linearizable")


# --- the queue ------------------------------------------------------------------------------------


def test_what_is_pending_is_shown_and_rolled_back(unreachable: Shell) -> None:
    limbo = unreachable
    done = limbo.json("submit", "accounts/ann=0", "--wait", "submit")
    head = done["position"]
    assert done["state"] == "pending"
    limbo("submit", "notes/n=1", "--timeout", "0.5", code=3)
    assert f"position {head + 1} is not decided yet" in limbo.err
    table = rows(limbo("queue"))
    assert table[str(head)][1:4] == ["sync", "accounts", "1"]
    assert table[str(head + 1)][1:3] == ["async", "notes"]
    assert f"position {head} has " in limbo.err
    assert "of 4 acknowledgements" in limbo.err
    assert "there are more" in (limbo("queue", "--limit", "1") and limbo.err)
    assert list(rows(limbo("queue", "--from", str(head + 1)))) == [str(head + 1)]

    limbo("verdicts", str(head), code=3)
    assert limbo.err == f"error: position {head}: pending\n"
    limbo("verdicts", str(head), "--wait", "0.3", code=3)
    limbo("verdicts", str(head + 9), code=1)
    limbo("verdicts", "--wait", "1", code=2)

    limbo("rollback", str(head), code=2)
    assert f"what is pending from {head} to {head + 1} is undone" in limbo.err
    assert "add --yes" in limbo.err
    words = ("rollback", str(head), "--reason", "n4 never came", "--yes")
    assert limbo(*words) == f"rolled back 2, from {head} to {head + 1}\n"
    limbo(*words, code=1)
    assert "is rolled back already" in limbo.err
    assert limbo("verdicts", str(head), code=1).startswith(f"position {head}: rolled back by core")
    assert "n4 never came" in limbo.err
    table = limbo("verdicts", "--limit", "2").splitlines()
    assert table[1].split()[:4] == ["rolled", "back", str(head), str(head + 1)]
    assert table[1].endswith("n4 never came")
    assert limbo("queue") == ""
    assert limbo.err == "nothing is pending\n"


def test_who_waits_for_a_verdict_in_vain_is_told_so(unreachable: Shell) -> None:
    limbo = unreachable
    head = limbo.json("submit", "accounts/ann=1", "--wait", "submit")["position"]
    began = time.monotonic()
    limbo("verdicts", str(head), "--wait", "0.2", "--timeout", "60", code=3)
    assert f"position {head} is not decided yet" in limbo.err
    limbo("verdicts", str(head + 9), "--wait", "0.2", "--timeout", "60", code=3)
    assert f"position {head + 9} is not decided yet" in limbo.err
    # Not once more at each endpoint, until the command's own time is up.
    assert time.monotonic() - began < 40
    limbo("rollback", str(head), "--yes")


def test_nothing_to_roll_back_is_not_asked_about(limbo: Shell) -> None:
    limbo("rollback", "99999", code=1)
    assert limbo.err == "error: nothing is pending from 99999 on\n"


def test_a_smaller_quorum_confirms_what_waits(unreachable: Shell) -> None:
    limbo = unreachable
    done = limbo.json("submit", "accounts/ann=5", "--wait", "submit")
    limbo("quorum", "N")
    told = limbo("verdicts", str(done["position"]), "--wait", "20")
    assert told.startswith(f"position {done['position']}: confirmed at log index ")
    assert told.endswith(" by the setting quorum\n")
    assert pending(limbo) == 0


# --- the owner ------------------------------------------------------------------------------------


def test_a_node_is_promoted_by_its_own_endpoint(limbo: Shell) -> None:
    assert limbo("promote", "core3").startswith("core3 owns the queue in term ")
    assert limbo.json("status")["owner"] == "core3"
    limbo("promote", "core9", code=2)
    assert "core9 has to be asked itself" in limbo.err
    limbo("promote", "core2", code=2, at="core1")
    assert "name its endpoint with --endpoint" in limbo.err
    assert limbo("demote").startswith("nobody owns the queue in term ")
    limbo("demote", code=1)
    assert "nobody owns the queue: there is nothing to do" in limbo.err
    limbo("submit", "accounts/ann=1", code=1)
    assert "nobody owns the queue: promote a node, then submit there" in limbo.err
    assert limbo.json("submit", "notes/free=1")["state"] == "confirmed"


def test_what_is_pending_holds_a_promotion_up_unless_it_is_given_up(unreachable: Shell) -> None:
    limbo = unreachable
    limbo("submit", "accounts/ann=1", "--wait", "submit")
    limbo("promote", "core1", "--timeout", "0.5", code=3)
    assert "is still pending in term" in limbo.err
    assert limbo.json("status")["owner"] == "core2"
    assert limbo("promote", "core1", "--roll-back").endswith(", 1 rolled back\n")
    assert pending(limbo) == 0


# --- looking and setting --------------------------------------------------------------------------


def test_status_shows_the_nodes_the_spaces_and_what_is_wrong(unreachable: Shell) -> None:
    limbo = unreachable
    limbo("submit", "accounts/ann=1", "--wait", "submit")
    text = limbo("status", "--local")
    nodes, spaces = text.split("\n\n")
    assert nodes.splitlines()[0].split() == [
        "NODE", "ROLE", "UP", "OWNER", "COUNTS", "ACKED", "LAG", "ZONE", "VALIDATORS",
    ]  # fmt: skip
    assert rows(nodes)["core2"][1:5] == ["core", "yes", "yes", "yes"]
    assert rows(nodes)["core1"][3] == "no"
    assert rows(spaces)["accounts"][1:2] == ["yes"]
    assert rows(spaces)["accounts"][3] == "1"
    assert "owned by core2 in term " in limbo.err
    assert "quorum 4 of 3 cores (4)" in limbo.err
    assert "1 pending (" in limbo.err
    assert "4 cores are needed, and there are 3: nothing gets its quorum" in limbo.err
    assert limbo.json("status")["quorum"]["possible"] is False
    limbo("promote", "core1", "--roll-back")


def test_the_quorum_is_shown_changed_and_warned_of(limbo: Shell) -> None:
    table = limbo("quorum").splitlines()
    assert table[0].split() == ["N", "NEEDED", "NOW"]
    assert ["3", "2", "yes"] in [line.split() for line in table]
    assert limbo.err == "quorum 2 of 3 cores (N / 2 + 1): Raft's own commit is enough\n"
    limbo("quorum", "N", "--over", "members", "--zone", "eu=1", "--validator", "audit=1")
    assert "quorum 3 of 3 members (N), and 1 of zone eu, 1 approvals of audit\n" in limbo.err
    assert "warning: 1 nodes of zone eu are needed, and there are 0" in limbo.err
    found = limbo.json("quorum", "--zone", "us=2", "--zone", "eu=0", "--clear-validators")
    assert (found["quorum"]["zones"], found["quorum"]["validators"]) == ([["us", 2]], [])
    limbo("quorum", "N - 1", code=1)
    assert "is 0 for 1 nodes" in limbo.err
    limbo("quorum", "--zone", "eu", code=2)
    assert "--zone is 'eu': say NAME=N, as in eu=1" in limbo.err


def test_settings_are_shown_and_changed(limbo: Shell) -> None:
    assert rows(limbo("setting"))["entries_kept"] == ["entries_kept", "100"]
    assert limbo.json("setting", "entries_kept", "50") == {"entries_kept": 50}
    assert limbo.json("setting", "entries_kept", "default") == {"entries_kept": 100}
    assert limbo.json("setting", "quorum_over") == {"quorum_over": "cores"}
    limbo("setting", "colour", code=2)
    limbo("setting", "colour", "red", code=1)
    limbo("setting", "entries_kept", "many", code=1)


def test_spaces_are_made_altered_and_dropped(limbo: Shell) -> None:
    limbo("space", "create", "extra", code=2)
    assert "say --sync" in limbo.err
    assert limbo("space", "create", "extra", "--async") == "extra: created\n"
    limbo("space", "create", "extra", "--async", code=1)
    limbo("space", "alter", "extra", code=2)
    assert limbo("space", "alter", "extra", "--sync") == "extra: changed\n"
    assert rows(limbo("space", "list"))["extra"] == ["extra", "yes", "0", "0"]
    limbo("space", "drop", "extra", code=2)
    assert "0 keys of extra go" in limbo.err
    assert limbo("space", "drop", "extra", "--yes") == "extra: dropped\n"
    limbo("space", "drop", "extra", "--yes", code=1)
    limbo("space", "drop", "extra", code=1)
    assert "there is no space extra: the spaces are " in limbo.err


def test_nobody_answers(limbo: Shell) -> None:
    nowhere = ("--endpoint", "http://127.0.0.1:1", "--timeout", "0.1")
    for words in (("status",), ("queue",), ("promote", "core1"), ("submit", "a/b=1"), ("quorum",)):
        limbo(*words, *nowhere, code=3, connected=False)


def test_help_has_examples(limbo: Shell) -> None:
    for verb in VERBS:
        assert f"raftkv limbo {verb}" in limbo(*verb.split(), "--help", connected=False)


# --- pure parts -----------------------------------------------------------------------------------


def body(*writes: str, **words: Any) -> dict[str, Any]:
    parts = {name: words.get(name, ()) for name in ("deletes", "values", "some", "none")}
    return submit_body(writes, **parts, positions=words.get("positions", ()))


def test_words_become_a_transaction() -> None:
    assert body("s/a/b=c=d", deletes=["s/x=y"]) == {
        "writes": [
            {"space": "s", "key": base64_of("a/b"), "value": base64_of("c=d")},
            {"space": "s", "key": base64_of("x=y"), "value": None},
        ],
        "conditions": [],
    }
    assert body("s/a=", positions=["s/a=17"])["conditions"] == [
        {"space": "s", "key": base64_of("a"), "position": 17}
    ]
    # What the shell gave that is no UTF-8 stays what it was.
    assert base64_of(b"\xff".decode("utf-8", "surrogateescape")) == "/w=="


@pytest.mark.parametrize(
    ("writes", "words"),
    [
        ([], {}),
        (["s"], {}),
        (["s/a"], {}),
        (["/a=1"], {}),
        (["s/=1"], {}),
        (["s/a=1"], {"positions": ["s/a=x"]}),
        (["s/a=1"], {"some": ["s"]}),
        (["-", "s/a=1"], {}),
    ],
)
def test_words_that_are_none_are_refused_without_quoting_them(
    writes: list[str], words: dict[str, list[str]]
) -> None:
    with pytest.raises(ConfigError) as caught:
        body(*writes, **words)
    assert "s/a" not in str(caught.value).lower().replace("space/key", "")


def test_counts_are_added_replaced_and_taken_out() -> None:
    present = [["eu", 1], ["us", 2]]
    assert named_counts("--zone", present, ["us=3", "eu=0", "ap=1"], clear=False) == {
        "us": 3,
        "ap": 1,
    }
    assert named_counts("--zone", present, ["ap=1"], clear=True) == {"ap": 1}


def test_a_transaction_from_stdin_says_how_long_it_waits() -> None:
    assert longer_s({"timeout_s": 60}, 15.0) == 45.0
    assert longer_s({"timeout_s": 1.5}, 15.0) == 0.0
    assert longer_s({"timeout_s": 1e300}, 15.0) == 585.0
    for wrong in ({}, {"timeout_s": "60"}, {"timeout_s": None}):
        assert longer_s(wrong, 15.0) == 0.0


def test_sentences() -> None:
    need = {"quorum": 3, "n": 3, "over": "cores", "text": "N", "zones": [], "validators": []}
    assert quorum_words({**need, "fast": False}) == "quorum 3 of 3 cores (N)"
    lack = {"what": "validator", "name": "audit", "needed": 2, "have": 1, "missing": ["n2"]}
    assert lack_words([lack], 7) == ["position 7 has 1 of 2 approvals of audit; missing: n2"]


def test_a_node_does_not_import_the_commands() -> None:
    check = (
        "import sys, raftkv_limbo.public; "
        "print([m for m in sys.modules if m.split('.')[0] == 'typer'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", check],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"
