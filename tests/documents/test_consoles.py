"""What docs/ shows as typed at a shell is typed, and answered as shown; see consoles.py.

A command behind a `$` that is not run, and is not named in NOT_RUN with the reason, is a failure.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.documents.consoles import Shell, Typed, typed
from tests.documents.snippets import ROOT
from tests.documents.test_snippets import pages

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(600)]

WAIT_S = 60.0
CALLS = "a function of a program; tests/plugins/raftkv_cluster_call/test_calls_cli.py types them"
NOT_RUN = {
    "docs/cluster-calls.md: raftkv calls": CALLS,
    "docs/subscriptions.md: raftkv region add": "a chain of regions; test_scenarios_layouts.py",
    "docs/subscriptions.md: raftkv region exclude c --dir a": "part of the story further down",
    "docs/cli.md: raftkv lock report": "it holds the lock until it is ended; tests/cli",
}


def is_left_out(each: Typed) -> bool:
    return any(each.name.startswith(name) for name in NOT_RUN)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    try:
        yield made
    finally:
        made("raftkv region down --dir demo || raftkv cluster down --dir demo || true")


def start(shell: Shell, *, cores: int = 3) -> None:
    shell(f"raftkv cluster up --cores {cores} --replicants 0 --dir demo --detach")


def endpoint_of(shell: Shell, directory: str) -> str:
    """The first node's."""
    status = json.loads(shell(f"raftkv cluster status --dir {directory} --json 2>/dev/null"))
    return str(status["nodes"][0]["endpoint"])


def wait_for(shell: Shell, command: str, holds: Callable[[str], bool]) -> None:
    """Type it again and again, until its answer is as wanted."""
    until_s = time.monotonic() + WAIT_S
    while not holds(said := shell(command)):
        assert time.monotonic() < until_s, said


def play(shell: Shell, commands: list[Typed], directory: str = "demo") -> None:
    endpoint = endpoint_of(shell, directory)
    for each in commands:
        shell.play(each, endpoint)


def commands(page: str, *starts: str) -> list[Typed]:
    """Those of a page that begin so; the others are played elsewhere."""
    found = [each for each in typed(page) if not is_left_out(each)]
    return [each for each in found if each.command.startswith(starts)]


def test_every_command_is_typed_or_named_with_a_reason() -> None:
    found = [each for page in pages() for each in typed(page)]
    left = [each.name for each in found if each.page not in PLAYED and not is_left_out(each)]
    assert left == []
    unused = [name for name in NOT_RUN if not any(each.name.startswith(name) for each in found)]
    assert unused == [], "these are not there any more"


def test_the_commands_of_the_configuration(shell: Shell) -> None:
    start(shell)
    config = shell.directory / "demo" / "core3" / "node.toml"
    shell("raftkv cluster down --dir demo")
    config.write_text(f'{config.read_text()}\n[options.conf.local]\n"log.level" = "debug"\n')
    shell("raftkv cluster up --dir demo --detach")
    play(shell, commands("docs/conf.md", ""))


def test_the_commands_of_the_limbo(shell: Shell) -> None:
    start(shell)
    shell("raftkv limbo space create accounts --sync --dir demo")
    shell("raftkv limbo promote core1 --dir demo")
    shell("raftkv limbo quorum N --dir demo")
    shell("raftkv limbo submit accounts/ann=70 accounts/bob=30 --dir demo")
    shell("kill -9 $(cat demo/core3/pid)")
    # It is declared down, which takes a while.
    status = "raftkv limbo status --dir demo"
    wait_for(shell, status, lambda said: "core3 core no" in re.sub(" +", " ", said))
    play(shell, commands("docs/limbo.md", "raftkv"))
    play(shell, commands("docs/limbo.md", "curl"))


def test_the_commands_of_the_queues(shell: Shell) -> None:
    start(shell)
    at = endpoint_of(shell, "demo")
    for queue in ("orders", "invoices", "dead"):
        shell(f"raftkv queue declare {queue} --dir demo")
    shell("raftkv queue publish orders '17 apples' --dir demo")
    play(shell, commands("docs/txqueue.md", "curl"))
    for queue in ("orders", "invoices", "dead"):
        shell(f"raftkv queue delete {queue} --yes --dir demo")
    play(shell, commands("docs/txqueue.md", "raftkv queue"))
    shell("raftkv queue declare invoices --dir demo")
    # A branch that a coordinator has prepared, and left.
    route, xid = f"{at}/v1/txqueue", "1:6f72646572:"
    session = json.loads(shell(f'curl -s {route}/sessions -d \'{{"kind": "dtx"}}\''))["session"]
    given = json.dumps({"session": session})
    message = {"publish": "invoices", "messages": [{"body": "MyBwZWFycw=="}]}
    staged = json.dumps({"session": session, "operations": [message], "at": 0})
    for verb, body in (("start", given), ("stage", staged), ("end", given), ("prepare", "{}")):
        shell(f"curl -sf {route}/dtx/{xid}/{verb} -d '{body}'")
    play(shell, commands("docs/txqueue.md", "raftkv dtx"))


def test_the_commands_of_the_regions(shell: Shell) -> None:
    *story, down = commands("docs/subscriptions.md", "raftkv")
    shell.play(story[0], "")
    play(shell, story[1:], "demo/a")
    play(shell, commands("docs/subscriptions.md", "curl"), "demo/a")
    shell.play(down, "")


def test_the_commands_of_the_keyspace(shell: Shell) -> None:
    start(shell)
    put = re.search(
        r"raftkv put \w+ hello --dir demo", (ROOT / "docs" / "cli.md").read_text("utf-8")
    )
    assert put is not None
    shell(put[0])
    shell("raftkv put owner me --dir demo")
    play(shell, commands("docs/cli.md", "raftkv txn"))
    grant, *rest = commands("docs/cli.md", "raftkv lease")
    play(shell, [grant])
    lease = shell("raftkv lease list --dir demo").split()[-1]
    shell(f"raftkv put worker alive --lease {lease} --dir demo")
    play(shell, rest)


PLAYED = {
    "docs/cli.md": test_the_commands_of_the_keyspace,
    "docs/subscriptions.md": test_the_commands_of_the_regions,
    "docs/txqueue.md": test_the_commands_of_the_queues,
    "docs/conf.md": test_the_commands_of_the_configuration,
    "docs/limbo.md": test_the_commands_of_the_limbo,
}
