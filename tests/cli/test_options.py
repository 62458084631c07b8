"""Bad input: every option says in one line what is wrong with it, and the code is 2."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftkv.cli import main as cli
from raftkv.cli.options import ENDPOINTS_VARIABLE, At, connected
from raftkv.cli.requests import lease_id, lease_text
from raftkv.errors import ConfigError

AT = ("--endpoint", "http://127.0.0.1:1")


def invoke(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str
) -> tuple[int, str, str]:
    """Run the command in this process: exit code, stdout, stderr."""
    monkeypatch.setattr(sys, "argv", ["raftkv", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    sys.stdout.flush()
    out, err = capfd.readouterr()
    code = ended.value.code
    assert isinstance(code, int)
    return code, out, err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("get", "k", *AT, "--output", "xml"), "xml is not one of simple, table, json, fields"),
        (("get", "k", *AT, "--output", "table", "--json"), "--json and --output table"),
        (("del", "k", *AT, "-w", "table"), "table is not one of simple, json, fields"),
        (("get", "k", *AT, "--dir", "d"), "either --dir DIR or --endpoint"),
        (("get", "k"), "say which cluster"),
        (("get", "k", "--endpoint", ","), "say which cluster"),
        (("get", "k", "--endpoint", "127.0.0.1:1"), "is not an endpoint"),
        (("get", "k", "--endpoint", "http://[::1"), "is not an endpoint"),
        (("get", "k", "--endpoint", "http://u:p@127.0.0.1:1"), "is not an endpoint"),
        (("get", "k", *AT, "--key", "x.key"), "--key belongs to a certificate"),
        (("get", "k", *AT, "--cert", "x.pem"), "give both"),
        (("get", "k", *AT, "--cacert", "absent.pem"), "absent.pem cannot be used for TLS"),
        (("get", "k", "z", *AT, "--prefix"), "one KEY and no RANGE_END"),
        (("get", "k", *AT, "--prefix", "--from-key"), "cannot both be given"),
        (("get", "k", *AT, "--limit", "-1"), "--limit -1 is negative"),
        (("get", "k", *AT, "--rev", "-1"), "--rev -1 is negative"),
        (("get", "k", *AT, "--sort-by", "colour"), "--sort-by colour is not one of"),
        (("get", "k", *AT, "--order", "up"), "--order up is neither"),
        (("get", "k", *AT, "--keys-only", "--count-only"), "cannot both be given"),
        (("get", "k", *AT, "--keys-only", "--print-value-only"), "--print-value-only leaves"),
        (("get", "k", *AT, "--consistency", "best"), "--consistency best is not one of"),
        (("put", "k", "v", *AT, "--lease", "zz"), "'zz' is not the id of a lease"),
        (("put", "k", "v", *AT, "--lease", "0"), "'0' is not the id of a lease"),
        (("put", "k", "v", *AT, "--lease", "1", "--ignore-lease"), "cannot both be given"),
        (("put", "k", "v", *AT, "--ignore-value"), "leave VALUE out"),
        (("del", "k", "z", *AT, "--from-key"), "one KEY and no RANGE_END"),
        (("watch", "k", *AT, "--filter", "all"), "--filter all is neither"),
        (("watch", "z", "a", *AT), "there is no key between z and a"),
        (("watch", "k", *AT, "--"), "a command must follow the --"),
        (("lock", "", *AT), "the lock needs a NAME"),
        (("lock", "n", *AT, "--"), "a command must follow the --"),
        (("elect", "n", *AT), "say with VALUE"),
        (("elect", "", "v", *AT), "the election needs a NAME"),
        (("elect", "n", "v", "--listen", *AT), "leave VALUE out"),
        (("lease", "revoke", "xyz", *AT), "'xyz' is not the id of a lease"),
        (("lease", "timetolive", "1" + "0" * 16, *AT), "is not the id of a lease"),
        (("lease", "keep-alive", "-0x1", *AT), "No such option"),
        (("lease", "grant", "60", "--id", "", *AT), "'' is not the id of a lease"),
        (("check", "perf", *AT, "--load", "xxl"), "--load xxl is not one of s, m, l, xl"),
        (("check", "perf", *AT, "--prefix", ""), "--prefix must not be empty"),
    ],
)
def test_bad_input_is_one_line_and_code_2(
    arguments: tuple[str, ...],
    problem: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(ENDPOINTS_VARIABLE, raising=False)
    code, out, err = invoke(capfd, monkeypatch, *arguments)
    assert (code, out) == (2, ""), err
    assert problem in err
    if err.startswith("error: "):
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("get", "k", *AT, "--timeout", "0"),
        ("get", "k", *AT, "--timeout", "soon"),
        ("get", "k", *AT, "--timeout", "nan"),
        ("get", "k", *AT, "--limit", "few"),
        ("get", *AT),
        ("get", "a", "b", "c", *AT),
        ("get", "k", *AT, "--colour", "red"),
        ("compact", "0", *AT),
        ("compact", "now", *AT),
        ("watch", "k", *AT, "--rev", "-1"),
        ("watch", "--", "echo"),
        ("lease", "grant", "0", *AT),
        ("lease", "grant", "soon", *AT),
        ("lock", *AT),
        ("lock", "n", "--ttl", "0", *AT),
        ("check", "perf", *AT, "--duration", "0"),
        ("endpoint", "status", "extra", *AT),
        ("paint",),
        ("lease", "paint"),
    ],
)
def test_wrong_usage_is_plain_text_and_code_2(
    arguments: tuple[str, ...],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code, out, err = invoke(capfd, monkeypatch, *arguments)
    assert (code, out) == (2, "")
    assert re.search(r"^Error: ", err, re.M)
    assert not re.search("[╭│╰\x1b]|Traceback", err)


def options_of(monkeypatch: pytest.MonkeyPatch, **given: object) -> At:
    """The `At` that a command gets."""
    seen: list[At] = []

    @connected("simple", "json")
    def command(at: At) -> None:
        seen.append(at)

    nothing = dict.fromkeys(("directory", "endpoint", "cacert", "cert", "key_file", "output"))
    command(**{**nothing, "timeout_s": 5.0, "as_json": False, **given})
    (at,) = seen
    return at


def test_endpoints_come_from_options_or_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(ENDPOINTS_VARIABLE, "http://e:1, http://e:2")
    assert options_of(monkeypatch).endpoints == ("http://e:1", "http://e:2")
    given = options_of(monkeypatch, endpoint=["http://a:1,http://b:1", "http://c:1"])
    assert given.endpoints == ("http://a:1", "http://b:1", "http://c:1")
    assert options_of(monkeypatch, directory="d").endpoints == ()
    monkeypatch.setenv(ENDPOINTS_VARIABLE, "")
    with pytest.raises(ConfigError, match=ENDPOINTS_VARIABLE):
        options_of(monkeypatch)


def test_json_is_an_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINTS_VARIABLE, "http://e:1")
    assert options_of(monkeypatch).output == "simple"
    assert options_of(monkeypatch, as_json=True).output == "json"
    assert options_of(monkeypatch, as_json=True, output="json").output == "json"


@given(st.integers(1, 2**63 - 1))
def test_the_id_of_a_lease_is_read_as_it_is_written(number: int) -> None:
    assert lease_id(lease_text(number)) == number
    assert lease_id(f"0x{number:X}") == number


def test_a_directory_that_is_no_cluster_is_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for command in (("get", "k"), ("endpoint", "status"), ("lease", "list"), ("member", "list")):
        code, _, err = invoke(capfd, monkeypatch, *command, "--dir", os.fspath(tmp_path))
        assert code == 2
        assert "there is no cluster in" in err
        assert err.count("\n") == 1


def every_command() -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = [(str(each.name),) for each in cli.app.registered_commands]
    for group in cli.app.registered_groups:
        assert group.typer_instance is not None
        for command in group.typer_instance.registered_commands:
            name = command.name or getattr(command.callback, "__name__", "")
            found.append((str(group.name), name))
    return found


@pytest.mark.parametrize("command", every_command(), ids=" ".join)
def test_every_command_has_help_with_an_example_and_no_junk(
    command: tuple[str, ...],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code, out, err = invoke(capfd, monkeypatch, *command, "--help")
    assert (code, err) == (0, "")
    example = out.partition("Example")[2].partition("\n")[2]
    assert f"raftkv {' '.join(command)}" in example
    assert not re.search("[╭│╰\x1b\b]|\\[/", out)
    if command[0] not in ("serve",) and command != ("cluster", "up"):
        assert "--json" in out
        assert "--output" in out


def test_the_help_of_all_names_every_command(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = invoke(capfd, monkeypatch, "--help")
    assert code == 0
    for name in {command[0] for command in every_command()}:
        assert re.search(rf"^  {name} ", out, re.M), name
    assert out.count("...") == 1, "a summary does not fit into its line"
