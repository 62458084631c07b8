"""docs/ and the code name the same things: settings, commands, routes, errors, alarms, figures.

The lists are taken from the code; what a page lacks or has too much is named by the failing test.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer

from raftkv import permissions
from raftkv.cli.groups import add_plugin_groups
from raftkv.cli.main import app
from raftkv.config import HttpLimits, HttpTls, Limits, NodeConfig, RaftTimes, TlsFiles
from raftkv.corruption_check import CORRUPT
from raftkv.credibility import EPOCH
from raftkv.errors import NodeFault, RaftkvError
from raftkv.kv import KV
from raftkv.plugin_door import Route
from raftkv.quotas import NOSPACE
from raftkv.raft.free_space import DISK
from raftkv.server.format_routes import format_routes
from raftkv.server.members import member_routes
from raftkv.server.quota_routes import quota_routes
from raftkv.server.sessions import Sessions
from raftkv.status import Status
from raftkv.twins import IDENTITY

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in sorted([*DOCS.glob("*.md"), *DOCS.glob("internals/*.md"), *ROOT.glob("*.md")])
}
KIB, MIB = 1024, 1024 * 1024


def page(name: str) -> str:
    return PAGES[f"docs/{name}"]


def section(text: str, heading: str) -> str:
    """What stands below a heading, up to the next one of the same level."""
    level = heading.split(" ")[0]
    found = re.search(rf"^{re.escape(heading)}$(.*?)(?=^{level} |\Z)", text, re.M | re.S)
    assert found is not None, f"there is no {heading!r}"
    return found[1]


def test_every_page_is_in_the_index() -> None:
    linked = set(re.findall(r"\]\(([^)#]+)[^)]*\)", page("index.md")))
    listed = {str((DOCS / link).resolve().relative_to(ROOT)) for link in linked}
    assert set(PAGES) - {"docs/index.md"} <= listed


# Settings -----------------------------------------------------------------------------------------

STRUCTS: dict[str, type[msgspec.Struct]] = {
    "## The node": NodeConfig,
    "## `[raft]`": RaftTimes,
    "## `[limits]`": Limits,
    "## `[http]`": HttpLimits,
    "## `[tls]`": TlsFiles,
    "## `[http_tls]`": HttpTls,
}
UNITS = {"_ms": " ms", "_s": " s", "_percent": " %", "_permille": " per thousand"}


def shown(name: str, value: Any) -> str:
    """A default as the page has it."""
    if value is msgspec.NODEFAULT:
        return "required"
    if value is None or value in ((), {}):
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "all six" if len(value) == 6 else ", ".join(value)
    if isinstance(value, str):
        return value
    if "_bytes" in name:
        number, unit = (value / MIB, "MiB") if value >= MIB else (value / KIB, "KiB")
        return f"{number:,g} {unit}" + ("/s" if name.endswith("_per_s") else "")
    ending = next((unit for end, unit in UNITS.items() if name.endswith(end)), "")
    return f"{value:,g}{ending}" if isinstance(value, float) else f"{value:,}{ending}"


def default_of(field: msgspec.structs.FieldInfo) -> Any:
    made = field.default_factory
    return field.default if made is msgspec.NODEFAULT else made()


@pytest.mark.parametrize("heading", STRUCTS)
def test_settings_has_every_key_with_its_default(heading: str) -> None:
    fields = msgspec.structs.fields(STRUCTS[heading])
    expected = {
        field.name: shown(field.name, default_of(field))
        for field in fields
        # Tables of the file, with sections of their own on the page.
        if field.name not in {"raft", "limits", "http"}
    }
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \|", section(page("settings.md"), heading), re.M)
    assert dict(rows) == expected
    assert len(rows) == len(expected)


PLUGINS = {
    "kv": "internals/keyspace.md",
    "calls": "cluster-calls.md",
    "lcr": "lcr.md",
    "limbo": "limbo.md",
    "txqueue": "txqueue.md",
    "subscriptions": "subscriptions.md",
}


@pytest.mark.parametrize("plugin", PLUGINS)
def test_the_page_of_a_plugin_has_each_of_its_replicated_settings(plugin: str) -> None:
    made = KV() if plugin == "kv" else plugin_named(plugin)
    keys = {setting.key for setting in made.settings}
    keys |= set() if made.quota is None else {"quota_bytes"}
    text = page(PLUGINS[plugin])
    assert not sorted(key for key in keys if f"`{key}`" not in text)


def plugin_named(name: str) -> Any:
    (point,) = entry_points(group="raftkv.plugins", name=name)
    return point.load()()


# Commands -----------------------------------------------------------------------------------------


def commands(command: Any, *before: str) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield " ".join(before), command
        return
    for name, each in inner.items():
        yield from commands(each, *before, name)


def whole_command() -> Any:
    """`raftkv` with the commands of its plugins."""
    whole = typer.Typer()
    whole.registered_commands += app.registered_commands
    whole.registered_groups += app.registered_groups
    add_plugin_groups(whole)
    return typer.main.get_command(whole)


def test_cli_lists_every_command() -> None:
    table = page("cli.md").partition("| command | what it does |")[2].partition("\n\n")[0]
    listed = []
    for cell in re.findall(r"^\| (`.+?) \|", table, re.M):
        names = re.findall(r"`([^`]+)`", cell)
        group = names[0].rpartition(" ")[0]
        listed += [names[0], *(f"{group} {name}".strip() for name in names[1:])]
    assert sorted(listed) == sorted(name for name, _ in commands(whole_command()))


def test_every_option_of_a_command_that_a_page_shows_exists() -> None:
    known = {
        name: {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
        for name, command in commands(whole_command())
    }
    unknown, shown_lines = [], 0
    for name, text in PAGES.items():
        for line in re.findall(r"(?:^ {4}|`|\$ |\| )raftkv ([^`\n#]+)", text, re.M):
            words = re.findall(r"[^\s\[\]]+", line.partition(" -- ")[0])
            of = next(
                (" ".join(words[:n]) for n in (3, 2, 1) if " ".join(words[:n]) in known), None
            )
            if of is None or name == "CHANGELOG.md":
                continue  # a group, or several commands in one
            shown_lines += 1
            options = [word for word in words if re.fullmatch(r"--?[a-z][a-z-]*", word)]
            unknown += [f"{name}: {of} {o}" for o in options if o not in {*known[of], "--help"}]
    assert not unknown
    assert shown_lines > 150


# The HTTP API -------------------------------------------------------------------------------------


def own_routes() -> Iterator[tuple[str, Route]]:
    node: Any = object()  # the routes are listed and not called
    yield from (("members", route) for route in member_routes(node))
    yield from (("format", route) for route in format_routes(node))
    yield from (("quotas", route) for route in quota_routes(node))
    for name, routes in Sessions(node, timeout_s=1.0).routes().items():
        yield from ((name, route) for route in routes)


def test_every_route_of_raftkv_itself_is_described() -> None:
    served = section(page("http-api.md"), "## Routes")
    expected = {
        f"{route.method} /v1/{name}" + (f"/{route.path}" if route.path else "")
        for name, route in own_routes()
    }
    assert expected <= set(re.findall(r"`((?:GET|POST|PUT) /v1/[\w/{}]+)`", served))


# What a node tells --------------------------------------------------------------------------------


def test_operations_has_every_field_of_the_status() -> None:
    table = section(page("operations.md"), "## Status")
    listed = [
        name
        for cell in re.findall(r"^\| (`.+?) \|", table, re.M)
        for name in re.findall(r"`(\w+)`", cell)
    ]
    assert sorted(listed) == sorted(Status.__struct_fields__)


def errors(base: type[RaftkvError]) -> Iterator[type[RaftkvError]]:
    for error in base.__subclasses__():
        if error.__module__ == RaftkvError.__module__:
            yield error
            yield from errors(error)


def test_operations_has_every_error_that_raftkv_raises() -> None:
    text = page("operations.md")
    callers = section(text, "## Errors")
    lacking = [
        error.__name__
        for error in errors(RaftkvError)
        if f"`{error.__name__}`" not in (text if issubclass(error, NodeFault) else callers)
        and not error.__subclasses__()
    ]
    assert not lacking


@pytest.mark.parametrize("alarm", [DISK, CORRUPT, IDENTITY, EPOCH, NOSPACE])
def test_operations_says_what_to_do_about_each_alarm(alarm: str) -> None:
    assert re.search(rf"\*\* \(alarm `{alarm}`", section(page("operations.md"), "## Faults"))


def test_every_figure_that_a_page_names_is_on_the_page_of_figures() -> None:
    cells = re.findall(r"^\| (`raftkv_.+?) \|", page("metrics.md"), re.M)
    known = {figure for cell in cells for figure in re.findall(r"`(raftkv_\w+)`", cell)}
    unknown = []
    for name, text in PAGES.items():
        for figure in re.findall(r"`(raftkv_[a-z0-9_]+_[a-z0-9]+)[`{]", text):
            package = (ROOT / "plugins" / figure).is_dir()
            if figure not in known and not package and name != "CHANGELOG.md":
                unknown.append(f"{name}: {figure}")
    assert not unknown


# What a node may do to another one ----------------------------------------------------------------


def test_security_has_every_message_call_and_command_of_the_table() -> None:
    text = section(page("internals/security.md"), "## What a node may do to another one")
    named = set(re.findall(r"`([\w.]+)`", text))
    consensus = {"Vote", "VoteReply", "Append", "AppendReply", "SnapshotChunk", "SnapshotReply"}
    messages = {kind.__name__ for kind in permissions.MESSAGES} - consensus - {"Hello"}
    expected = messages | set(permissions.CALLS)
    expected |= {command.__name__ for command in permissions.COMMANDS}
    assert expected <= named


# What a page refers to ----------------------------------------------------------------------------


def test_every_source_file_that_a_page_names_exists() -> None:
    folders = ("raftkv", "plugins", "bench", "tests", "tools", "docs")
    files = {
        f"/{path.relative_to(ROOT)}" for each in folders for path in (ROOT / each).rglob("*.py")
    }
    missing = [
        f"{name}: {file}"
        for name, text in PAGES.items()
        if name != "CHANGELOG.md"
        for file in re.findall(r"`([\w/-]+\.py)`", text)
        if not any(known.endswith(f"/{file}") for known in files)
    ]
    assert not missing
