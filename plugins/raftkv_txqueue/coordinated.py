"""What a coordinator gives and raises.

NotApplied       GlobalRolledBack    nothing of it is visible anywhere: do it again
OutcomeUnknown   GlobalInDoubt       not known yet: `Coordinator.recover` finishes it
RaftkvError      GlobalHazard        operators have decided branches otherwise: people must look
"""

from __future__ import annotations

from typing import Literal

import msgspec

from raftkv.errors import NotApplied, OutcomeUnknown, RaftkvError

__all__ = [
    "GlobalCommitted",
    "GlobalHazard",
    "GlobalInDoubt",
    "GlobalRolledBack",
    "Recovered",
]


class GlobalCommitted(msgspec.Struct, frozen=True):
    """It is committed. `left`: resources that have not heard yet; `Coordinator.recover` tells them.

    What they hold of it stays promised, and invisible there, until then.
    """

    gtrid: bytes
    left: tuple[str, ...] = ()


class Recovered(msgspec.Struct, frozen=True):
    """What a recovery did: global transactions whose branches were committed or rolled back.

    `hazards`: (resource, status) of branches that an operator had decided otherwise; they are
    forgotten there. `left`: resources that could not be asked, or have branches that could not be
    told: call `recover` again.
    """

    committed: tuple[bytes, ...] = ()
    rolled_back: tuple[bytes, ...] = ()
    hazards: tuple[tuple[str, str], ...] = ()
    left: tuple[str, ...] = ()


class GlobalRolledBack(NotApplied):
    """Nothing of the global transaction is visible in any resource, nor will be.

    A resource that could not be reached hears of it later, from `Coordinator.recover`, or its
    branch's time-out ends it.
    """

    code = "txqueue_global_rolled_back"

    def __init__(self, gtrid: bytes, why: str) -> None:
        super().__init__(gtrid, why)
        self.gtrid = gtrid
        self.why = why

    def __str__(self) -> str:
        return f"the global transaction {self.gtrid.hex()} was rolled back ({self.why}): try again"


class GlobalInDoubt(OutcomeUnknown):
    """Whether it is committed is not known here: the journal or its only resource did not answer.

    Nothing is lost: start the coordinator anew and call `recover`; of a transaction with one
    resource, that resource knows the outcome.
    """

    code = "txqueue_global_in_doubt"

    def __init__(self, gtrid: bytes, why: str) -> None:
        super().__init__(
            f"whether the global transaction {gtrid.hex()} is committed is not known ({why}): "
            f"start the coordinator anew, and let it recover"
        )
        self.gtrid = gtrid
        self.why = why


class GlobalHazard(RaftkvError):
    """Decided, but some branches had been decided otherwise by operators: the data disagree.

    `verdict`: of the global transaction. `hazards`: (resource, status) of those branches; all
    others have the verdict. The branches are forgotten in their resources.
    """

    code = "txqueue_global_hazard"

    def __init__(
        self,
        gtrid: bytes,
        verdict: Literal["committed", "rolled back"],
        hazards: tuple[tuple[str, str], ...],
    ) -> None:
        super().__init__(gtrid, verdict, hazards)
        self.gtrid = gtrid
        self.verdict = verdict
        self.hazards = hazards

    def __str__(self) -> str:
        named = ", ".join(f"{name} ({status})" for name, status in self.hazards)
        return (
            f"the global transaction {self.gtrid.hex()} was {self.verdict}, but operators had "
            f"decided otherwise in {named}: put the data right by hand"
        )
