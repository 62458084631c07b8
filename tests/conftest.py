"""What holds for all tests: which worker runs what, and that no property is judged by a clock.

When the tests are spread over several workers, a file stays on one, and so do all files that start
Spark in their own process: its virtual machine stays for the next one and is warm by then, and two
of them do not compete for the memory. The longest files begin. Processes that the tests of a folder
share end with its last test on a worker, or they would take processor time from all that follow.

A virtual machine of Java lives for a minute or two here, which is too short for its second
compiler: that would take more processor time than it saves. Neither does Spark compile its plans.

The collected tests and their modules live as long as the worker. Its garbage collector leaves them
alone and runs seldom: the simulations make millions of tuples that none of its rounds could free.

A suite behind nohup or in the background ignores some signals, and so would all processes that it
starts: they are as in a shell again.

hypothesis would fail an example that takes longer than 200 ms, and a test whose examples are made
slowly. Both say something of the machine, and nothing of the property.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("raftkv", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("raftkv")

os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1")
os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parent / "bench" / "spark"))

for number, usual in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
    (signal.SIGQUIT, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)

SPARK = ("tests/bench/test_analysis", "tests/bench/test_check.py")
# Each takes one worker a minute or more, and they are the last to be collected.
LONG = ("tests/testing/test_conformance.py", "tests/upgrade/")


_folder_ends: dict[Path, list[Callable[[], object]]] = {}


@pytest.fixture(scope="session")
def at_folder_end() -> Callable[[Path, Callable[[], object]], None]:
    """Registers a call for the time after the last test of a folder; the folder may begin again."""

    def register(folder: Path, end: Callable[[], object]) -> None:
        _folder_ends.setdefault(folder, []).append(end)

    return register


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    # All ends are called, even if the teardown of the test or one of them raises.
    with contextlib.ExitStack() as ends:
        if nextitem is not None and nextitem.path.parent != item.path.parent:
            for end in reversed(_folder_ends.get(item.path.parent, ())):
                ends.callback(end)
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the long files: at the end one worker would run them while the others wait."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """As `--dist loadfile`, but for Spark; None leaves any other distribution as it is."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "spark" if nodeid.startswith(SPARK) else str(super()._split_scope(nodeid))

    return Scheduling(config, log)
