"""`raftkv conf ...` against three real nodes with doors."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator

import pytest

from raftkv.testing.local_cluster import LocalCluster
from raftkv_cluster_call import Calls
from raftkv_conf import Conf
from tests.plugins.raftkv_cluster_call.shell import Nodes, Shell

pytestmark = pytest.mark.slow

SECRET = "s3cret"


class Mail:
    """What the values do at one node."""

    def __init__(self) -> None:
        self.port: int | None = None
        self.broken = False

    def set_port(self, port: int) -> None:
        if self.broken:
            raise OSError(f"cannot listen on {port}")
        self.port = port


@pytest.fixture(scope="module")
def mails() -> dict[str, Mail]:
    return {f"core{number}": Mail() for number in (1, 2, 3)}


@pytest.fixture(scope="module")
def started(mails: dict[str, Mail]) -> Iterator[Nodes]:
    before = logging.getLogger("raftkv").level

    def register(cluster: LocalCluster) -> None:
        for node in cluster.nodes:
            conf = node.plugin(Conf)
            conf.handler(
                "mail.port",
                int,
                default=25,
                validate=lambda port: None if 0 < port < 65_536 else "must be 1 to 65535",
                apply=mails[node.name].set_port,
                doc="Where mail goes.",
            )
            conf.handler("mail.password", str, secret=True)

    local = {"core3": {"conf": {"local": {"user.site": "attic"}}}}
    nodes = Nodes([Calls(), Conf()], local, register)
    yield nodes
    nodes.stop()
    logging.getLogger("raftkv").setLevel(before)


@pytest.fixture
def nodes(started: Nodes, mails: dict[str, Mail]) -> Nodes:
    for mail in mails.values():
        mail.broken = False
    started.follow()
    return started


@pytest.fixture
def conf(
    nodes: Nodes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Shell:
    return Shell(nodes, Conf, capsys, monkeypatch)


def test_a_value_is_set_everywhere_shown_and_unset(conf: Shell, mails: dict[str, Mail]) -> None:
    assert conf("set", "mail.port", "587") == "OK\n"
    assert {mail.port for mail in mails.values()} == {587}
    assert conf("get", "mail.port", at="core2") == "587\n"
    found = conf.json("get", "mail.port", at="core3")
    assert (found["node"], found["value"], found["source"]) == ("core3", 587, "set")
    done = conf.json("unset", "mail.port", "--required", "core1,core2,core3")
    assert (done["outcome"], done["nodes"]) == ("ok", [])
    assert conf("get", "mail.port") == "25\n"
    assert {mail.port for mail in mails.values()} == {25}


def test_the_built_in_level_takes_a_word(conf: Shell) -> None:
    conf("set", "log.level", "warning")
    assert logging.getLogger("raftkv").level == logging.WARNING
    conf("set", "log.level", "loud", code=1)
    assert "not one of the values that are allowed" in conf.err
    conf("unset", "log.level")


def test_values_are_json_or_words_or_text(
    conf: Shell, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for word, value in (
        ("587", "587"),
        ("007", '"007"'),
        ("NaN", '"NaN"'),
        ("two words", '"two words"'),
        ('{"a": [1, null]}', '{"a": [1, null]}'),
        ("true", "true"),
        ("", '""'),
        ("ä", '"ä"'),
        (str(10**40), str(10**40)),
        ("1e999", '"1e999"'),
    ):
        conf("set", "user.any", word)
        assert conf("get", "user.any") == f"{value}\n"
    conf("set", "user.any", "587", "--string")
    assert conf("get", "user.any") == '"587"\n'
    conf("set", "user.any", '{"a": 1', code=2)
    assert "begins like JSON and is none" in conf.err
    monkeypatch.setattr(sys, "stdin", io.StringIO("from stdin\n"))
    conf("set", "user.any", "-")
    assert conf("get", "user.any") == '"from stdin"\n'
    # A number with a sign is no option, behind --.
    place = ("--endpoint", ",".join(nodes.endpoints))
    conf("set", *place, "--", "user.any", "-5", connected=False)
    assert conf("get", "user.any") == "-5\n"
    conf("set", "user.any", "")
    assert ["user.any", '""', "set", "-"] in [line.split() for line in conf("list").splitlines()]
    conf("unset", "user.any")


def test_what_is_refused_ends_with_1_and_changes_nothing(conf: Shell) -> None:
    conf("set", "mail.port", "70000", code=1)
    assert "must be 1 to 65535" in conf.err
    assert "70000" not in conf.err
    conf("set", "mail.prot", "25", code=1)
    assert "did you mean mail.port" in conf.err
    conf("get", "mail.prot", code=1)
    conf("unset", "mail.prot", code=1)
    conf("get", "", code=2)
    conf("set", "mail.port", "25", "--required", ",", code=2)
    assert "say all, a number, or names with commas" in conf.err
    assert conf.json("get", "mail.port")["source"] == "default"


def test_a_secret_is_shown_by_no_command(conf: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(SECRET))
    assert conf("set", "mail.password", "-", "--string") == "OK\n"
    shown = conf("get", "mail.password") + conf("list") + conf("diff", code=1) + conf("sync")
    assert '"***"' in shown
    assert SECRET not in shown + conf.err
    conf("unset", "mail.password")


def test_list_says_what_there_is_and_where_it_comes_from(conf: Shell) -> None:
    conf("set", "user.long", "x" * 100)
    lines = {line.split()[0]: line.split() for line in conf("list", at="core3").splitlines()[1:]}
    assert lines["mail.port"] == ["mail.port", "25", "default", "Where", "mail", "goes."]
    assert lines["mail.password"][:3] == ["mail.password", "-", "default"]
    assert lines["user.site"][:3] == ["user.site", '"attic"', "local"]
    assert lines["user.long"][1].endswith("...")
    assert len(conf.json("list")["values"]) == len(lines) - 1
    conf("unset", "user.long")


def test_diff_ends_with_1_and_names_the_local_value(conf: Shell) -> None:
    table = conf("diff", code=1).splitlines()
    assert table[0].split() == ["PATH", "CAUSE", "NODE", "VALUE", "FROM"]
    assert table[3].split() == ["user.site", "local", "core3", '"attic"', "local"]
    assert conf.err == "error: differing paths: 1\n"
    assert conf.json("diff", code=1)["rows"][0]["path"] == "user.site"
    conf("get", "user.site", at="core3")
    assert "a local value of core3" in conf.err


def test_a_node_that_lags_is_named_and_mended(
    conf: Shell, nodes: Nodes, mails: dict[str, Mail]
) -> None:
    mails["core2"].broken = True
    conf("set", "mail.port", "587", "--timeout", "1", code=3)
    assert conf.err == "error: mail.port is changed, but not in effect yet on core2\n"
    # It has said so, and stands.
    nodes.until(lambda calls: any(node.failing for node in calls.status().nodes))
    text = conf("diff", code=1)
    assert "mail.port" in text
    assert "stored" in text
    assert "raftkv conf sync" in conf.err
    # The copy brings a value that cannot be brought about there either; it goes on trying.
    text = conf("sync", "--timeout", "2", code=3)
    assert text.startswith("fixed, by core1 as of ")
    assert "copied to core2" in text
    assert "core2 had other values of conf:mail.port" in text
    assert conf.err.endswith("error: still copying: core2\n")
    mails["core2"].broken = False
    nodes.follow()
    assert mails["core2"].port == 587
    assert conf("sync").startswith("consistent, by core1 as of ")
    conf("unset", "mail.port")


def test_a_node_that_is_down_is_told(conf: Shell, nodes: Nodes, mails: dict[str, Mail]) -> None:
    nodes.kill("core3")
    nodes.until(lambda calls: any(not node.up for node in calls.status().nodes))
    conf("set", "mail.port", "2525", code=3, at="core1")
    assert conf.err == "error: mail.port is changed; down, and without it, are core3\n"
    conf("diff", code=3, at="core1")
    assert "not compared: core3 (it is down)" in conf.err
    nodes.start("core3")
    nodes.call(nodes.cluster.wait_ready())
    nodes.follow()
    assert conf("get", "mail.port", at="core3") == "2525\n"


def test_nobody_answers(conf: Shell) -> None:
    nowhere = ("--endpoint", "http://127.0.0.1:1", "--timeout", "0.1")
    for words in (("get", "a.b"), ("list",), ("diff",)):
        conf(*words, *nowhere, code=3, connected=False)
        assert "cannot be reached" in conf.err


def test_help_has_examples(conf: Shell) -> None:
    for verb in ("get", "list", "set", "unset", "diff", "sync"):
        assert f"raftkv conf {verb}" in conf(verb, "--help", connected=False)
