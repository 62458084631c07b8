"""Proposals of a link: again and again until there is a verdict.

Every command of a link may be applied twice: the log compares what it brings with what is here. So
one without an answer is simply proposed again, and a verdict never is.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from raftkv.errors import NotApplied, OutcomeUnknown, Stopped, TooLarge
from raftkv.plugin import AGAIN, Host

__all__ = ["Proposals"]

# Proposals of one link at once.
PROPOSALS_MAX: Final = 16
# One without a verdict is repeated after the first, and then ever more rarely.
RETRY_FIRST_S: Final = 0.02
RETRY_MAX_S: Final = 1.0


class Proposals:
    """Of one link."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._at_once = asyncio.Semaphore(PROPOSALS_MAX)

    async def until_verdict(self, command: msgspec.Struct) -> Any:
        """The result. Raises `Refused` kinds, TooLarge, Stopped."""
        delay_s = RETRY_FIRST_S
        while True:
            try:
                async with self._at_once:
                    return await self._host.propose(command)
            except (Stopped, TooLarge):
                raise
            except (NotApplied, OutcomeUnknown, *AGAIN) as error:
                self._host.log.debug("a link waits for its own region: %s", type(error).__name__)
            await self._host.runtime.sleep(delay_s)
            delay_s = min(2 * delay_s, RETRY_MAX_S)
