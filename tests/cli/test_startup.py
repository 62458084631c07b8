"""What a command imports: a shell loop of them must not pay for the engine of a node."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.cli.conftest import ROOT

# rich draws, pydantic comes with some versions of typer itself.
ENGINE = ("raftkv.node", "raftkv.raft", "raftkv.server", "raftkv.testing", "pysyncobj", "uvicorn")
# What decides on commands, and what serves the keyspace: a client needs the words of both only.
DECIDING = ("raftkv.state.machine", "raftkv.state.core", "raftkv.state.snapshot", "raftkv.kv.api")
DECIDING += (
    "raftkv.kv.keyspace",
    "raftkv.kv.history",
    "raftkv.kv.lessor",
    "raftkv.kv.transactions",
)
DRAWING = ("rich",)
CLIENT = ("raftkv.client", "raftkv.kv", "msgspec", "asyncio", "ssl", "http.client")

PROBE = """
import sys
sys.argv = ["raftkv", *{arguments!r}]
from raftkv.cli.main import main
try:
    main()
except SystemExit:
    pass
sys.stderr.write("\\n".join(sorted(sys.modules)))
"""


def imported(*arguments: str) -> set[str]:
    """The modules that are loaded at the end of a command in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(arguments=arguments)],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'plugins'}", "PATH": ""},
    )
    return set(done.stderr.split())


def within(modules: set[str], packages: tuple[str, ...]) -> set[str]:
    return {name for name in modules if any(f"{name}.".startswith(f"{p}.") for p in packages)}


@pytest.mark.parametrize("arguments", [("get", "--help"), ("lock", "--help")])
def test_help_imports_neither_engine_nor_client(arguments: tuple[str, ...]) -> None:
    assert not within(imported(*arguments), ENGINE + DRAWING + CLIENT)


def test_a_read_imports_no_engine_and_draws_nothing() -> None:
    modules = imported("get", "k", "--endpoint", "http://127.0.0.1:1", "--timeout", "0.1")
    assert "raftkv.client" in modules
    assert not within(modules, (*ENGINE, *DECIDING, *DRAWING, "http.client"))


PLUGINS = (
    "raftkv_cluster_call",
    "raftkv_conf",
    "raftkv_lcr",
    "raftkv_limbo",
    "raftkv_subscriptions",
    "raftkv_txqueue",
)
AT = ("--endpoint", "http://127.0.0.1:1", "--timeout", "0.1")


# What the modules of commands are made of.
PARTS = ("cli", "cli_common", "cli_regions", "cli_subs", "asked", "sheets", "xa")


@pytest.mark.parametrize(
    ("arguments", "package"),
    [
        (("lcr", "lookup", "client"), "raftkv_lcr"),
        (("calls", "status"), "raftkv_cluster_call"),
        (("conf", "list"), "raftkv_conf"),
        (("limbo", "status"), "raftkv_limbo"),
        (("queue", "list"), "raftkv_txqueue"),
        (("dtx", "list"), "raftkv_txqueue"),
        (("topic", "list"), "raftkv_subscriptions"),
    ],
)
def test_a_plugins_command_imports_its_commands_and_no_plugin(
    arguments: tuple[str, ...], package: str
) -> None:
    modules = imported(*arguments, *AT)
    assert f"{package}.cli" in modules
    assert within(modules, PLUGINS) <= {package, *(f"{package}.{part}" for part in PARTS)}
    unused = ("raftkv.plugin", "raftkv.state", "raftkv.kv", "raftkv.client", "asyncio")
    assert not within(modules, (*unused, *ENGINE, *DRAWING))


def test_the_probe_sees_what_is_imported() -> None:
    assert within(imported("recover", "--dir", "x", "--dry-run"), ENGINE)
