"""What docs/ shows as typed at a shell is typed, and answered as shown; see consoles.py.

A command behind a `$` that is not run, and is not named in NOT_RUN with the reason, is a failure.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from raftkv.cli.door_client import DoorClient
from tests.documents.consoles import Shell, Typed, typed
from tests.documents.snippets import ROOT
from tests.documents.test_snippets import pages

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(600)]

WAIT_S = 60.0
CALLS = "a function of a program; tests/plugins/raftkv_cluster_call/test_calls_cli.py types them"
NOT_RUN = {
    "docs/cluster-calls.md: raftkv calls": CALLS,
    "docs/subscriptions.md: raftkv region add": "a chain of regions; test_scenarios_layouts.py",
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
        made("raftkv cluster down --dir dev || true")


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
    hangs = ("raftkv queue browse orders --all", "raftkv queue end-session")
    told = commands("docs/txqueue.md", "raftkv queue")
    play(shell, [each for each in told if not each.command.startswith(hangs)])
    # A consumer that holds a message, and is ended; the page has another number of its session.
    opened = json.loads(shell(f"curl -s {at}/v1/txqueue/sessions -d '{{}}'"))["session"]
    shell(f'curl -sf {at}/v1/txqueue/sessions/{opened}/get -d \'{{"queue": "orders"}}\'')
    number = opened.partition("-")[0]
    for each in commands("docs/txqueue.md", *hangs):
        play(shell, [each._replace(command=each.command.replace("1207", number))])
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


# Commands without an answer -----------------------------------------------------------------------

ENDLESS = "it goes on until it is ended; tests/cli/test_real_commands.py"
PLAIN_NOT_RUN = {
    "raftkv watch": ENDLESS,
    "raftkv elect": ENDLESS,
    "raftkv lock": ENDLESS,
    "raftkv check perf": "ten seconds of load; tests/cli/test_measuring.py",
    "raftkv recover": "of a data directory; tests/cli/test_recover.py",
    "raftkv member forget": "for a member that is gone for good; tests/cluster/test_members.py",
    "raftkv lcr": "about the clients of a broker; tests/plugins/raftkv_lcr/test_lcr_cli.py",
}


PLAIN_PAGES = ("README.md", "docs/cli.md", "docs/conf.md", "docs/http-api.md", "docs/operations.md")


class Plain(NamedTuple):
    """A command of a page that stands there without an answer."""

    page: str
    line: int
    command: str


def plain(page: str) -> list[Plain]:
    found = []
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        if re.match(r" {4}(?:echo [^|]*\| )?raftkv ", line):
            command = re.sub(r" [\[(].*| {2,}#.*$", "", line.strip())
            found.append(Plain(page, number, command))
    return found


def is_to_run(command: str) -> bool:
    """Whether it names a directory here, and not a machine elsewhere or several commands in one."""
    if command.startswith(tuple(PLAIN_NOT_RUN)) or "--dir" not in command:
        return False
    return "--endpoint" not in command and not re.search(r"\w\|\w", command)


@pytest.mark.parametrize("page", PLAIN_PAGES)
def test_the_commands_without_an_answer_succeed(shell: Shell, page: str) -> None:
    todo = [each for each in plain(page) if is_to_run(each.command)]
    if not any("certs init --dir certs" in each.command for each in todo):
        shell("raftkv certs init --dir certs --cluster orders")
    revision = 0
    if any("--dir demo" in each.command for each in todo):
        start(shell)
        for lease in ("694d8a1b", "694d8a1c"):
            shell(f"raftkv lease grant 600 --id {lease} --dir demo")
        shell(next((each.command for each in todo if " put " in each.command), "true"))
        shell("raftkv put picture PNG --dir demo")
        client = DoorClient([endpoint_of(shell, "demo")])
        for number in range(10):
            revision = client.put(f"jobs/{number}".encode(), b"x")
    for each in todo:
        # The revisions of the page are not those of a cluster that has just begun.
        command = each.command.replace("compact 1000", "compact 5")
        shell(command.replace("--rev 7", f"--rev {revision}"))
    assert len(todo) >= 2


def test_commands_without_an_answer_stand_on_pages_that_are_typed() -> None:
    left = [
        f"{each.page}:{each.line}: {each.command}"
        for page in set(pages()) - set(PLAIN_PAGES)
        for each in plain(page)
        if is_to_run(each.command)
    ]
    assert left == []
