"""What all checks of the log have in common: who may speak for a session, and true refusals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .storm_ledger import Ledger, Step

__all__ = ["DECIDES", "Found", "owner_errors", "refused"]

#: (check, what is wrong)
Found = tuple[str, str]

DECIDES = "the log decides rightly"


def owner_errors(step: Step, ledger: Ledger, session: int) -> list[str]:
    """Why the sender may not use the session."""
    life = ledger.sessions.get(session)
    if life is None or not step.live(life):
        found = ["SessionEnded"]
        if life is not None and step.origin != (life.node, life.incarnation):
            found.append("NotYourSession")
        return found
    if step.origin != (life.node, life.incarnation):
        return ["NotYourSession"]
    return []


def refused(step: Step, must: Iterable[str], may: Iterable[str] = ()) -> Iterator[Found]:
    """It is refused if and only if one of `must` holds, by a name of `must` or `may`."""
    must, refusal = list(must), step.refusal
    if refusal is None:
        if must:
            yield DECIDES, f"{step.command} is not refused, although {must}: {step.result}"
    elif type(refusal).__name__ not in [*must, *may]:
        yield DECIDES, f"{step.command} is refused as {refusal!r}, and only {must} is true"
