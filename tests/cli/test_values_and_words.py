"""Values and words of the command line: any bytes go in and out, and every message names them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from raftkv.cli import main as cli
from raftkv.cli.saying import ADVICE
from raftkv.cli.txn_grammar import parse
from raftkv.errors import ASK_CLIENT, ASK_NODE, ConfigError, Timeout, without_python
from raftkv.kv.commands import PutOp
from tests.cli.conftest import ROOT
from tests.cli.test_real_commands import Shell, dev, shell

__all__ = ["dev", "shell"]

AT = ("--endpoint", "http://127.0.0.1:1")
ODD = b"k\xff\xe4"


def refusal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a command writes to stderr, by its words."""

    def said(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["raftkv", *words])
        with pytest.raises(SystemExit):
            cli.main()
        return " ".join(capsys.readouterr().err.split())

    return said


said = pytest.fixture(refusal, name="said")


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("put", "k", "--", "-value", *AT), "raftkv put --endpoint ... --"),
        (("del", "--", "-key", "--prefix", *AT), "raftkv del --prefix ... --"),
        (("put", "k", "v", "--", "x", "y"), ""),
        (("put", "k", "v", "x", "y", *AT), ""),
    ],
)
def test_a10_an_option_behind_the_dashes_is_named_by_the_error(
    said: Callable[..., str], words: tuple[str, ...], option: str
) -> None:
    text = said(*words)
    assert "Got unexpected extra argument" in text
    assert option in text
    assert ("Options stand before --" in text) == bool(option)


@pytest.mark.parametrize(
    ("words", "command", "argument"),
    [
        (("put", "k", "-value", *AT), "raftkv put", "-value"),
        (("put", "k", "--5", *AT), "raftkv put", "--5"),
        (("get", "-key", *AT), "raftkv get", "-key"),
        (("del", "-1", *AT), "raftkv del", "-1"),
        (("lease", "revoke", "-x1", *AT), "raftkv lease revoke", "-x1"),
        (("put", "k", "-\udcff", *AT), "raftkv put", "-"),
    ],
)
def test_a_value_that_begins_with_a_dash_is_named_by_the_error(
    said: Callable[..., str], words: tuple[str, ...], command: str, argument: str
) -> None:
    text = said(*words)
    assert "o such option" in text
    assert f"{command} ... -- {argument}" in text


@pytest.mark.parametrize(
    "words",
    [("health", "-value", *AT), ("lock", "-name", *AT), ("lease", "grant", "-5", *AT)],
)
def test_where_it_is_no_remedy_the_error_names_none(
    said: Callable[..., str], words: tuple[str, ...]
) -> None:
    text = said(*words)
    assert "o such option" in text
    assert "-- -" not in text


def test_a_quoted_word_may_hold_ends_of_lines() -> None:
    lines = ['value("k") = "one\n', ' two"\n', "\n", 'put k "first \n', "\n", 'last"\n', "\n"]
    lines += ["put l 'a\n", "b'\n"]
    found = parse(lines)
    assert found.compare[0].operand == b"one\n two"
    assert found.success == (PutOp(b"k", b"first \n\nlast"),)
    assert found.failure == (PutOp(b"l", b"a\nb"),)
    with pytest.raises(ConfigError, match=r"line 2: the closing ' is missing"):
        parse(["\n", "put k 'never closed\n", "more\n"])


def test_an_unknown_outcome_advises_what_a_command_can_do(
    said: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for advice in (ASK_NODE, ASK_CLIENT):
        error = Timeout(f"it may still be applied. {advice}", session=1, seq=2)
        assert without_python(str(error)) == "it may still be applied"

        def fail(*_: object, error: Timeout = error, **__: object) -> Any:
            raise error

        monkeypatch.setattr("raftkv.cli.connecting.run", fail)
        text = said("put", "k", "v", *AT)
        assert text == f"error: it may still be applied. {ADVICE}"


def run(*words: str | bytes, code: int = 0, **environment: str) -> tuple[bytes, bytes]:
    """stdout and stderr of a command in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "raftkv", *words],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        timeout=60,
    )
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


@pytest.mark.cluster
def test_values_come_out_as_lines_or_as_they_are(shell: Shell) -> None:
    run("put", "raw/a", "--dir", shell.directory, "--", "-value")
    shell.run("put", "raw/b", "second")
    assert shell.run("get", "raw/a", "--print-value-only") == "-value\n"
    assert shell.run("get", "raw/a", "--raw") == "-value"
    assert shell.run("get", "raw/", "--prefix", "--raw") == "-valuesecond"
    assert shell.run("get", "raw/", "--prefix", "--print-value-only") == "-value\nsecond\n"
    for more in ("--json", "--hex", "--keys-only", "--count-only"):
        shell.run("get", "raw/a", "--raw", more, code=2)
        assert "--raw prints the values as they are" in shell.err


@pytest.mark.cluster
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_output_that_the_terminal_cannot_show_is_escaped(shell: Shell, encoding: str) -> None:
    at = ("--dir", shell.directory)
    names = {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    key = f"enc/{encoding}/é→"
    run("put", key, "ü", *at, **names)
    out, _ = run("get", key, "--json", *at, **names)
    assert f'"key":"{key}"'.encode() in out, "JSON is UTF-8 always"
    out, _ = run("get", key, *at, **names)
    assert out == f"{key}\nü\n".encode(), "bytes as they are"
    out, _ = run("get", key, "--output", "table", *at, **names)
    arrow = "→".encode() if encoding == "utf-8" else b"\\u2192"
    assert arrow in out
    _, err = run("get", "→", *at, code=1, **names)
    assert err == b"there is no key " + arrow + b"\n"


@pytest.mark.cluster
def test_keys_that_are_not_utf_8_look_the_same_in_every_message(shell: Shell) -> None:
    at = ("--dir", shell.directory)
    _, err = run("get", ODD, *at, code=1)
    assert err == b"there is no key k\\xff\\xe4\n"
    _, err = run("watch", ODD, ODD, *at, code=2)
    assert b"between k\\xff\\xe4 and k\\xff\\xe4" in err
    _, err = run("lease", "revoke", ODD, *at, code=2)
    assert b"k\\xff\\xe4" in err
    _, err = run("put", b"-" + ODD, "v", *at, code=2)
    assert b"-k\\xff\\xe4" in err
    run("put", ODD, "v", *at)
    out, _ = run("get", ODD, "--output", "table", *at)
    assert b"k\\xff\\xe4" in out
