"""Time-outs that pass when a test wants it, and not when the machine is slow.

For what runs on asyncio's own loop and asks it for the time: clients, fakes, the HTTP server. Nodes
have clocks of their own; where they are simulated, `raftkv.testing.clock` is the loop.
"""

from __future__ import annotations

import asyncio

# A time-out that no machine is too slow for.
LONG_S = 30.0


def skip(seconds: float) -> None:
    """Move the clock of the running loop: what waits for a time until then is due at once."""
    loop = asyncio.get_running_loop()
    before = loop.time
    loop.time = lambda: before() + seconds  # type: ignore[method-assign]
