"""`raftkv calls ...` against three real nodes with doors."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import pytest

from raftkv_cluster_call import Calls, FixReport, cli
from tests.plugins.raftkv_cluster_call.shell import Nodes, Shell, Work

pytestmark = pytest.mark.slow

VERBS = (
    "status", "query", "call", "functions", "skip", "fast-forward", "fix", "reset", "leave",
    "rejoin", "force-leave", "acknowledge",
)  # fmt: skip
# An argument of a call: no command may show it where it was not asked for.
SECRET = "s3cret"


@pytest.fixture(scope="module")
def started() -> Iterator[Nodes]:
    nodes = Nodes([Calls()])
    yield nodes
    nodes.stop()


@pytest.fixture
def nodes(started: Nodes) -> Nodes:
    """The three nodes, mended and equal."""
    for shop in started.shops.values():
        shop.broken = False
    started.follow()
    return started


@pytest.fixture
def calls(
    nodes: Nodes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Shell:
    return Shell(nodes, Calls, capsys, monkeypatch)


def stick(nodes: Nodes, name: str, count: int = 1) -> list[int]:
    """Calls on which this node stands and says so; their ids."""
    nodes.shops[name].broken = True
    made = [
        nodes.call(nodes.calls("core1").call("work", Work("k", SECRET), required=1)).id
        for _ in range(count)
    ]
    nodes.until(
        lambda api: (
            any(node.name == name and node.failing == made[0] for node in api.status().nodes)
            and all(node.lag == 0 for node in api.status().nodes if node.name != name)
        )
    )
    return made


def rows(table: str) -> dict[str, list[str]]:
    """Its lines by their first word."""
    return {line.split()[0]: line.split() for line in table.splitlines()[1:] if line}


def test_a_call_is_made_and_shown(calls: Shell, nodes: Nodes) -> None:
    table = rows(calls("call", "work", '{"key": "a", "value": "b"}'))
    assert table["outcome"][1] == "ok"
    assert table["result"][1] == '"b"'
    assert {shop.items["a"] for shop in nodes.shops.values()} == {b"b"}
    done = calls.json("call", "free", "--required", "2", "--version", "1")
    assert done["outcome"] == "ok"
    assert done["result"] == done["id"]
    done = calls.json("call", "free", "--required", "core1,core3")
    assert (done["outcome"], done["nodes"]) == ("ok", [])


def test_a_call_that_fails_where_it_is_made_ends_with_1(calls: Shell, nodes: Nodes) -> None:
    nodes.shops["core1"].broken = True
    before = dict(nodes.shops["core2"].items)
    table = rows(calls("call", "work", '{"key": "c", "value": "d"}', code=1))
    assert table["outcome"][1] == "init_failure"
    assert calls.err == (
        "error: the function failed on its initiator, nobody else runs it: "
        "OSError: no space left for d\n"
    )
    assert nodes.shops["core2"].items == before
    calls("call", "nonsense", code=1)
    assert "UnknownFunction: this node has no function 'nonsense'" in calls.err


def test_nodes_that_lag_or_are_down_end_it_with_3(calls: Shell, nodes: Nodes) -> None:
    nodes.shops["core2"].broken = True
    done = calls.json("call", "work", '{"key": "e"}', "--timeout", "1", code=3)
    assert (done["outcome"], done["nodes"]) == ("peers_lagging", ["core2"])
    assert calls.err == f"error: call {done['id']} is committed, not executed yet by core2\n"


def test_what_is_wrong_with_a_call_is_told_before_or_by_the_cluster(calls: Shell) -> None:
    calls("call", "work", "{key: 1}", code=2)
    assert "the arguments are not JSON" in calls.err
    calls("call", "free", "--required", "core1,,", code=2)
    assert "say all, a number, or names with commas" in calls.err
    calls("call", "work", '{"kee": 1}', code=1)
    assert "args is not what 'work' version 1 takes (Work)" in calls.err
    calls("call", "free", "--required", "4", code=1)
    assert "4 nodes are required, and 3 take part" in calls.err
    calls("call", "free", "--required", "core9", code=1)
    assert "'core9' is no member" in calls.err


def test_status_shows_nodes_calls_and_what_to_do(calls: Shell, nodes: Nodes) -> None:
    [id] = stick(nodes, "core2")
    text = calls("status")
    nodes_part, calls_part = text.split("\n\n")
    assert nodes_part.splitlines()[0].split() == [
        "NODE", "ROLE", "UP", "STATE", "CURSOR", "LAG", "FAILING", "ATTEMPTS", "SKIPPED", "CAUSE",
    ]  # fmt: skip
    lines = rows(nodes_part)
    assert list(lines) == ["core1", "core2", "core3"]
    assert lines["core1"][3:7] == ["following", str(id), "0", "-"]
    assert lines["core2"][3:7] == ["following", str(id - 1), "1", str(id)]
    assert "OSError in" in nodes_part
    assert rows(calls_part)[str(id)][:5] == [str(id), "work", "1", "core1", "committed"]
    assert rows(calls_part)[str(id)][6] == "core2"
    assert f"last id {id}, records from 1; none is running, 0 waiting" in calls.err
    assert f"core2 fails to execute call {id}" in calls.err
    assert "`raftkv calls skip core2`" in calls.err
    assert calls("status", at="core3").splitlines()[1].startswith("core3 ")
    found = calls.json("status", "--limit", "1")
    assert [each["id"] for each in found["calls"]] == [id]
    assert found["alarms"][0]["name"] == "call_failed"
    for shown in (text, calls.err, str(found)):
        assert SECRET not in shown


def test_query_shows_one_call_or_that_there_is_none(calls: Shell, nodes: Nodes) -> None:
    [id] = stick(nodes, "core3")
    table = rows(calls("query", str(id)))
    assert table["function"][1:] == ["work", "version", "1"]
    assert table["pending"][1] == "core3"
    assert calls.json("query", str(id))["pending_nodes"] == ["core3"]
    calls("query", str(id + 1), code=1)
    assert f"there is no call {id + 1}: kept are 1 to {id}" in calls.err
    calls("query", "0", code=2)


def test_skip_and_fast_forward_pass_what_is_stuck(calls: Shell, nodes: Nodes) -> None:
    first, second, third = stick(nodes, "core2", 3)
    table = rows(calls("skip", "core2"))
    assert table[str(first)][:3] == [str(first), "work", "failed"]
    assert calls.err == (
        f"core2 stands at {first}, the last id is {third}\n"
        f"its data may differ now: raftkv calls fix compares the nodes\n"
    )
    report = calls.json("fast-forward", "core2", str(second))
    assert (report["cursor"], len(report["attempts"])) == (second, 1)
    nodes.shops["core2"].broken = False
    nodes.follow()
    assert calls("fast-forward", "core2", "1") == ""
    assert calls.err == f"core2 stands at {third}, the last id is {third}\n"
    calls("skip", "core9", code=1)
    assert "the cluster has no node 'core9'" in calls.err


def test_fix_gives_a_stuck_node_a_copy_and_reports_what_it_must_not_touch(
    calls: Shell, nodes: Nodes
) -> None:
    assert "consistent" in (calls("fix") and calls.err)
    [id] = stick(nodes, "core2")
    nodes.shops["core2"].items["mine"] = SECRET.encode()
    text = calls("fix")
    assert "core2  was behind, has a copy now" in text
    assert "workshop:mine" in text
    assert SECRET not in text + calls.err
    copied = f"core2 has a copy of what these calls did to the states only: {id}\n"
    assert calls.err.endswith(f"fixed: all that was compared stands at {id + 1}\n{copied}")
    assert nodes.shops["core2"].items == nodes.shops["core1"].items
    nodes.shops["core3"].items["mine"] = b"x"
    text = calls("fix", code=1)
    assert rows(text.split("\n\n")[0])["core3"] == ["core3", "differs,", "not", "changed"]
    assert "other data than on core1, and no call is pending: core3" in calls.err
    assert calls.json("fix", code=1)["verdict"] == "differs"
    # What helps, as it says.
    calls("leave", "core3")
    calls("rejoin", "core3")
    nodes.follow()
    assert nodes.shops["core3"].items == nodes.shops["core1"].items
    assert calls.json("fix")["verdict"] == "consistent"


@pytest.mark.parametrize(
    ("verdict", "copying", "expected"),
    [
        ("moved", [], ""),
        ("unreachable", [], ""),
        ("fixed", ["core2"], "fixed: all others that were compared stand at 7\n"),
        ("fixed", [], "fixed: all that was compared stands at 7\n"),
    ],
)
def test_fix_does_not_say_that_all_stand_where_they_do_not(
    verdict: str, copying: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report = FixReport(verdict, "core1", 7, copying=tuple(copying))  # type: ignore[arg-type]
    cli._print_fixed(json.loads(msgspec.json.encode(report)))
    assert capsys.readouterr().err == expected


def test_functions_are_shown_with_who_has_them(calls: Shell, nodes: Nodes) -> None:
    async def register() -> None:
        nodes.calls("core2").function("rare", version=3)(lambda args, call: None)

    with pytest.raises(TypeError):  # a function says what it takes
        nodes.call(register())

    async def typed() -> None:
        nodes.calls("core2").function("rare", version=3, type=int)(lambda args, call: None)

    nodes.call(typed())
    table = calls("functions")
    assert rows(table)["work"][:4] == ["work", "1", "-", "Work"]
    assert rows(table)["work"][4:] == ["all", "Put", "the", "value", "under", "the", "key."]
    assert rows(table)["rare"][:5] == ["rare", "3", "-", "int", "core2"]
    assert [each["endpoint"] for each in calls.json("functions")] == nodes.endpoints
    calls("functions", "--endpoint", "http://127.0.0.1:1", code=3)
    assert "cannot be reached" in calls.err


def test_a_node_leaves_and_rejoins(calls: Shell, nodes: Nodes) -> None:
    assert calls("leave", "core3").startswith("core3: has left the calls, the last id is ")
    assert calls("leave", "core3").startswith("core3: nothing to do")
    assert rows(calls("status"))["core3"][3] == "left"
    calls("skip", "core3", code=1)
    assert "core3 takes no part in the calls" in calls.err
    assert calls("rejoin", "core3").startswith("core3: takes part again")
    nodes.follow()


def test_a_node_that_is_lost_is_forced_out_and_comes_back_as_a_new_one(
    calls: Shell, nodes: Nodes
) -> None:
    for words in ((), ("--yes",)):
        calls("force-leave", "core3", *words, code=1)
        assert "core3 is up: let it leave by itself" in calls.err
        calls("force-leave", "nosuch", *words, code=1)
        assert "core1, core2, core3" in calls.err
        assert "loses its place" not in calls.err
    nodes.kill("core3")
    nodes.until(
        lambda api: any(node.name == "core3" and not node.up for node in api.status().nodes)
    )
    calls("force-leave", "core3", code=2, at="core1")
    assert "this cannot be confirmed here: add --yes" in calls.err
    done = calls.json("call", "work", '{"key": "f", "value": "g"}', code=3, at="core1")
    assert (done["outcome"], done["nodes"]) == ("stopped_nodes", ["core3"])
    for verb in (("skip", "core3"), ("leave", "core3"), ("fast-forward", "core3", "99")):
        # At once, and by the endpoint that knows, though core3's own is asked after it.
        calls(*verb, code=1)
        assert "core3 is down: start it" in calls.err
    assert calls("force-leave", "core3", "--yes", at="core1").startswith(
        "core3: has lost its place"
    )
    assert calls.json("call", "free", at="core1")["outcome"] == "ok"
    nodes.start("core3")
    nodes.follow()
    assert nodes.shops["core3"].items == nodes.shops["core1"].items


def test_reset_forgets_and_goes_on(calls: Shell, nodes: Nodes) -> None:
    [id] = stick(nodes, "core2")
    calls("reset", code=2)
    assert "core2 will never execute what is pending" in calls.err
    assert calls("reset", "--yes") == (
        f"the records are forgotten, all nodes follow, the last id is {id}\n"
    )
    nodes.shops["core2"].broken = False
    assert calls.json("call", "free")["id"] == id + 1
    assert [each["id"] for each in calls.json("status")["calls"]] == [id + 1]


def test_acknowledge_names_what_waits_for_it(calls: Shell) -> None:
    calls("acknowledge", "1", code=1)
    assert "call 1 waits for no acknowledgement; those that do: none" in calls.err


def test_nobody_answers(calls: Shell) -> None:
    nowhere = ("--endpoint", "http://127.0.0.1:1", "--timeout", "0.1")
    for words in (("status",), ("query", "1"), ("reset", "--yes"), ("leave", "core1")):
        calls(*words, *nowhere, code=3, connected=False)
        assert "cannot be reached" in calls.err


def test_a_node_does_not_import_the_commands() -> None:
    check = (
        "import sys, raftkv_cluster_call.public, raftkv_conf.public; "
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


def test_help_has_examples(calls: Shell) -> None:
    for verb in VERBS:
        assert f"raftkv calls {verb}" in calls(verb, "--help", connected=False)


def test_settings_are_shown_and_changed(calls: Shell) -> None:
    assert "history_max" in calls("setting")
    assert "200" in calls("setting", "history_max", "200")
    calls("setting", "history_max", "0", code=1)
    assert "100" in calls("setting", "history_max", "default")
