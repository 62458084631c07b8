"""Tests whose verdict hangs on the speed of the machine: what a program can find of them.

A test waits for the event that it means, with a limit of tens of seconds that only ends a hang. So
outside of simulated time these are found: a pause below a second that is not the pause of a loop
which waits for a condition, a time-out below a second, and an assertion that something took less
than ten seconds. What stays all the same is in `EXCEPTIONS`, with the reason why a slow machine
cannot make it fail.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tests.guards.sources import paths, without_collector

__all__ = ["EXCEPTIONS", "Finding", "Module", "findings", "modules", "on_a_real_clock", "unused"]

ROOT = Path(__file__).resolve().parents[2]
# Shorter is a guess about the machine.
SHORT_S = 1.0
TOOK_S_MIN = 10.0
# Who imports one of these runs on a clock that the test moves.
SIMULATED = {
    "raftkv.testing.clock",
    "raftkv.testing.plugin_cluster",
    "raftkv.testing.runtime",
    "raftkv.testing.simulated",
    "raftkv.testing.storm_worlds",
    "raftkv.testing.storms",
    "raftkv.testing.world",
    "tests.fakes",
}
# What a module on a simulated clock uses if it has tests on the real one, too.
REAL = ("asyncio.run(", "LocalCluster", "time.sleep(")
CLOCKS = ("monotonic()", "perf_counter()", ".time()")

# Why a slow machine cannot make it fail -> the files, and the outermost functions in them.
_REASONS = {
    "lets come what may come; nothing hangs on how much that is": """
        tests/bench/test_chaos_network.py
            turns
        tests/server/test_hot.py
            test_what_comes_while_an_answer_is_under_way_waits_for_it
    """,
    "a timer behind one that was due before it": """
        tests/bench/test_loopwatch.py
            watched
    """,
    "it ends in the time-out, because nothing can ever come": """
        tests/blocking/test_blocking.py
            test_a_node_that_cannot_start_leaves_nothing
        tests/blocking/test_blocking_recipes.py
            test_an_election_and_who_looks_on
        tests/cli/test_devcluster.py
            test_a_node_that_hangs_is_shown_as_running_without_an_answer
            test_down_ends_nodes_that_do_not_listen
        tests/cli/test_kit.py
            test_a_condition_is_looked_at_until_it_holds_or_the_time_is_up
            test_the_time_is_up
        tests/plugins/raftkv_cluster_call/test_concurrency.py
            test_who_gives_up_in_the_queue_has_not_run_anywhere
        tests/plugins/raftkv_subscriptions/test_scenarios.py
            test_12_a_reader_sees_messages_only
        tests/server/test_door.py
            test_the_door_looks_at_its_connections_by_itself
        tests/server/test_tls.py
            test_a_handshake_has_a_time
        tests/test_membership.py
            test_what_cannot_be_done_says_so
            test_what_would_lose_the_quorum_is_refused_unless_it_is_forced
        tests/test_twins.py
            test_a_core_with_an_old_copy_of_its_directory_tells_so_itself
        tests/testing/test_distance.py
            test_a_muted_way_is_silent_and_loses_nothing
    """,
    "how long giving back takes; any length is right": """
        tests/blocking/test_blocking_recipes.py
            test_control_c_waits_until_what_was_taken_is_back
    """,
    "a put that comes too late is not counted": """
        tests/cluster/test_bad_input.py
            test_a_leader_on_a_full_disk_gives_way
    """,
    "asserted is that nothing has happened, of which a slow machine only shows less": """
        tests/cluster/test_paused_leader.py
            one_round
        tests/plugins/raftkv_subscriptions/test_scenarios_safety.py
            test_13_an_excluded_region_is_not_waited_for
            test_13_m1_b
        tests/server/test_outgoing.py
            test_over_tls_they_are_counted_as_well
        tests/test_core_format.py
            test_the_leader_raises_it_by_itself_after_the_named_time
    """,
    "simulated time, in a module that also has tests on a real clock": """
        tests/plugins/raftkv_subscriptions/test_links_parts.py
            test_a_feed_has_no_gap_whatever_is_asked
            test_who_puts_waits_for_room
        tests/testing/test_identities.py
            test_a_copy_owes_only_what_was_acknowledged_when_it_was_made
        tests/testing/test_runtime.py
            test_offloaded_work_takes_time_and_keeps_its_order
    """,
    "how long an injected fault lasts; any length is right": """
        tests/plugins/raftkv_subscriptions/test_scenarios_links.py
            test_a_way_breaks_again_and_again
        tests/plugins/raftkv_txqueue/test_door_soak.py
            kill
    """,
    "the period of a keep-alive, a quarter of its lease": """
        tests/recipes/test_recipes_cluster.py
            test_leases_over_all_nodes_and_a_change_of_leader
    """,
}


def _places(text: str) -> Iterator[str]:
    path = ""
    for word in text.split():
        if word.endswith(".py"):
            path = word
        else:
            yield f"{path}::{word}"


EXCEPTIONS = {place: reason for reason, text in _REASONS.items() for place in _places(text)}


class Module(NamedTuple):
    """A Python file of the tests: its path from the root, and its text."""

    path: str
    text: str

    @property
    def name(self) -> str:
        return self.path.removesuffix(".py").replace("/", ".")


class Finding(NamedTuple):
    """What was found, and the outermost function that holds it."""

    path: str
    line: int
    function: str
    what: str

    @property
    def place(self) -> str:
        return f"{self.path}::{self.function}"

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what} in {self.function}"


def modules(root: Path = ROOT) -> list[Module]:
    """All files of the tests."""
    return [
        Module(path, (root / path).read_text(encoding="utf-8"))
        for path in paths(root)
        if path.startswith("tests/") and path.endswith(".py") and (root / path).is_file()
    ]


def on_a_real_clock(among: Iterable[Module]) -> list[Module]:
    """Those that do not run in simulated time, or not only."""
    among = list(among)
    imported = {module.name: set(_imported(module)) for module in among}
    simulated = {name for name, names in imported.items() if names & SIMULATED}
    while more := {
        name
        for name, names in imported.items()
        if name not in simulated and not names.isdisjoint(simulated)
    }:
        simulated |= more
    return [
        module
        for module in among
        if module.name not in simulated or any(word in module.text for word in REAL)
    ]


def findings(module: Module) -> list[Finding]:
    """Every place of a module that depends on the machine's speed, exceptions included."""
    reader = _Reader(module.path)
    reader.visit(_parsed(module.text))
    return reader.found


def unused(found: Iterable[Finding]) -> list[str]:
    """Exceptions that nothing needs any more."""
    return sorted(set(EXCEPTIONS) - {each.place for each in found})


def _parsed(text: str) -> ast.Module:
    with without_collector():
        return ast.parse(text)


def _imported(module: Module) -> Iterator[str]:
    for node in ast.walk(_parsed(module.text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = module.name.split(".")[: -node.level] if node.level else []
            base = ".".join([*parts, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


class _Reader(ast.NodeVisitor):
    def __init__(self, path: str) -> None:
        self.found: list[Finding] = []
        self._path = path
        self._functions: list[str] = []
        self._waiting = 0

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._functions.append(node.name)
        waiting, self._waiting = self._waiting, 0
        self.generic_visit(node)
        self._waiting = waiting
        self._functions.pop()

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_While(self, node: ast.While | ast.ExceptHandler) -> None:
        self._waiting += 1
        self.generic_visit(node)
        self._waiting -= 1

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        # The pause before another try.
        self.visit_While(node)

    def visit_Call(self, node: ast.Call) -> None:
        called = ast.unparse(node.func)
        first = _seconds(node.args[0]) if node.args else None
        if called in ("asyncio.sleep", "time.sleep") and _short(first) and not self._waiting:
            self._add(node, f"a pause of {first:g} s")
        if called.endswith(("asyncio.timeout", "wait_for")):
            for limit in map(_seconds, node.args):
                if _short(limit):
                    self._add(node, f"a time-out of {limit:g} s")
        for keyword in node.keywords:
            name, limit = keyword.arg or "", _seconds(keyword.value)
            if (name == "timeout" or name.endswith("timeout_s")) and _short(limit):
                self._add(node, f"{name}={limit:g}")
        self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> None:
        for compared in ast.walk(node.test):
            if isinstance(compared, ast.Compare):
                sides = [compared.left, *compared.comparators]
                for pair, operator in zip(pairwise(sides), compared.ops, strict=True):
                    turned = isinstance(operator, ast.Gt | ast.GtE)
                    lower, upper = reversed(pair) if turned else pair
                    limit = _seconds(upper)
                    if _is_measured(lower) and limit is not None and limit < TOOK_S_MIN:
                        self._add(node, f"it must take less than {limit:g} s")
        self.generic_visit(node)

    def _add(self, node: ast.Call | ast.Assert, what: str) -> None:
        function = self._functions[0] if self._functions else "the module"
        self.found.append(Finding(self._path, node.lineno, function, what))


def _short(seconds: float | None) -> bool:
    return seconds is not None and 0 < seconds < SHORT_S


def _seconds(node: ast.expr) -> float | None:
    """The value of a number, or of a product of numbers."""
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _is_measured(node: ast.expr) -> bool:
    """Return whether it is a difference of clock readings."""
    return any(
        isinstance(each, ast.BinOp)
        and isinstance(each.op, ast.Sub)
        and any(clock in ast.unparse(each) for clock in CLOCKS)
        for each in ast.walk(node)
    )
