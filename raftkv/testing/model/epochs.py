"""Forced recoveries, and which claims of a newer epoch a core acts upon.

Three cores of one cluster, each recovered by force at most once, and a stranger that reaches their
ports. Steps: an operator recovers a core, a core dials another one at the address of its
configuration file, the stranger dials a core and claims an epoch and the name of a core.

Checked: a core stops only if a core of its cluster went through a newer recovery; a link is up only
between cores of one epoch. Compared by the project's own `standing`. The rule of
raftkv/peering.py, without certificates: the acceptor does not believe a newer epoch, the dialler
does if the answer comes from where it dialled.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import permutations
from typing import Final, NamedTuple

from raftkv.raft.epoch import FOUNDED, Epoch, Standing, standing
from raftkv.security.proof import Kind, Proof

__all__ = ["BUGS", "Epochs", "EpochsState"]

BUGS: Final = {
    "believe-acceptor": "a core stops for a newer epoch in a handshake that it accepted",
    "rivals-talk": "cores of two recoveries with one number exchange entries",
}

CORES: Final = 3
ADDRESSES: Final = tuple(f"core{number + 1}:7000" for number in range(CORES))


class EpochsState(NamedTuple):
    """`links`: pairs of cores that exchange entries now."""

    epochs: tuple[Epoch, ...] = (FOUNDED,) * CORES
    stopped: tuple[bool, ...] = (False,) * CORES
    links: tuple[tuple[int, int], ...] = ()
    recoveries: int = 0


def _believes(claimed: int, proof: Proof) -> bool:
    """Without certificates: only what was dialled at the address of the core that it claims."""
    return proof.kind is Kind.NONE and proof.dialled == ADDRESSES[claimed]


class Epochs:
    """See the module's text. `bug` is one of BUGS."""

    def __init__(self, bug: str = "") -> None:
        assert not bug or bug in BUGS, bug
        self.bug = bug

    def first(self) -> EpochsState:
        return EpochsState()

    def steps(self, state: EpochsState) -> Iterator[tuple[str, EpochsState]]:
        for me in range(CORES):
            if state.recoveries < CORES:
                yield f"{me + 1} is recovered by force", self._recovered(state, me)
            if state.stopped[me]:
                continue
            for other in range(CORES):
                if other != me and not state.stopped[other]:
                    yield f"{me + 1} dials {other + 1}", self._dialled(state, me, other)
            for claim in (Epoch(1, "forged"), Epoch(9, "forged")):
                for name in range(CORES):
                    if name != me:
                        after = self._heard(state, me, claim, name, Proof(Kind.NONE, "", None, ""))
                        yield f"a stranger tells {me + 1} that {name + 1} is in {claim}", after

    def broken(self, state: EpochsState) -> str:
        newest = max(epoch.number for epoch in state.epochs)
        for me in range(CORES):
            if state.stopped[me] and newest <= state.epochs[me].number:
                return f"a core stops for a reason: {me + 1} stops in the newest epoch"
        for one, other in state.links:
            if standing(state.epochs[one], state.epochs[other]) is not Standing.SAME:
                return f"one history for each link: {one + 1} and {other + 1} exchange entries"
        return ""

    def canonical(self, state: EpochsState) -> Hashable:
        """The cores are alike, so one of all orders of their names."""
        return min(_plain(state, order) for order in permutations(range(CORES)))

    def _recovered(self, state: EpochsState, me: int) -> EpochsState:
        """A recovery needs a core that is stopped, so its links end, and it runs again."""
        number = state.epochs[me].number + 1
        epochs, stopped = list(state.epochs), list(state.stopped)
        epochs[me], stopped[me] = Epoch(number, f"t{state.recoveries}"), False
        links = tuple(link for link in state.links if me not in link)
        return EpochsState(tuple(epochs), tuple(stopped), links, state.recoveries + 1)

    def _dialled(self, state: EpochsState, me: int, other: int) -> EpochsState:
        """Both read the other's handshake: the acceptor first."""
        accepted = Proof(Kind.NONE, "", None, "")
        dialled = Proof(Kind.NONE, "", ADDRESSES[other], f"core{other + 1}")
        epochs = state.epochs
        state = self._heard(state, other, epochs[me], me, accepted)
        state = self._heard(state, me, epochs[other], other, dialled)
        allowed = {Standing.SAME}
        if self.bug == "rivals-talk":
            allowed.add(Standing.RIVAL)
        up = not state.stopped[me] and not state.stopped[other]
        if up and standing(epochs[me], epochs[other]) in allowed:
            link = (min(me, other), max(me, other))
            state = state._replace(links=tuple(sorted({*state.links, link})))
        return state

    def _heard(
        self, state: EpochsState, me: int, claim: Epoch, name: int, proof: Proof
    ) -> EpochsState:
        """Core `me` reads a handshake in the name of another one."""
        if standing(state.epochs[me], claim) is not Standing.NEWER:
            return state
        if not _believes(name, proof) and self.bug != "believe-acceptor":
            return state
        stopped = list(state.stopped)
        stopped[me] = True
        links = tuple(link for link in state.links if me not in link)
        return state._replace(stopped=tuple(stopped), links=links)


def _plain(state: EpochsState, order: tuple[int, ...]) -> tuple[object, ...]:
    place = {old: new for new, old in enumerate(order)}
    links = sorted(tuple(sorted((place[one], place[other]))) for one, other in state.links)
    return (
        tuple((state.epochs[old].number, state.epochs[old].token) for old in order),
        tuple(state.stopped[old] for old in order),
        tuple(links),
        state.recoveries,
    )
