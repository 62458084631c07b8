"""Which worker runs what, when the tests are spread over several.

A file stays on one worker, and so do all files that start Spark in their own process: its virtual
machine stays for the next one and is warm by then, and two of them do not compete for the memory.
"""

from __future__ import annotations

from typing import Any

import pytest

SPARK = ("tests/bench/test_analysis", "tests/bench/test_check.py")


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
