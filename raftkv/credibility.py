"""Whether a claim that would stop this node, or reset its state, is believed.

A handshake with a newer epoch does that, and so do some refusals. They are acted on only if a core
of this cluster stands behind them: one that the configuration file or the log knows, and that has
proved its name with a certificate that is not for a replicant only, or, without certificates, that
this node dialled itself at an address of the configuration file or the log.

Any other claim of a newer epoch raises the alarm EPOCH on the node that refuses it, until none has
come for ALARM_S.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from .addresses import AddressBook
from .config import NodeConfig
from .raft import wire
from .raft.epoch import Epoch
from .raft.membership import Configuration, name_of
from .repeats import Repeats
from .security.proof import Kind, Proof

__all__ = ["ALARM_S", "EPOCH", "UNPROVED", "Credibility"]

log = logging.getLogger("raftkv.peering")

# The code of a refusal that asks for a proof: no node stops for it.
UNPROVED: Final = "unproved_epoch"
#: The name of the alarm.
EPOCH: Final = "EPOCH"
#: How long the alarm outlasts the last claim, in seconds. A core that was recovered by force dials
#: every half second; one attempt of a stranger is to be seen by what looks every few minutes.
ALARM_S: Final = 600.0


class Credibility:
    """What one node believes. `configuration` is that of its log, None as long as it has none."""

    def __init__(
        self,
        config: NodeConfig,
        addresses: AddressBook,
        configuration: Callable[[], Configuration | None],
        repeats: Repeats,
        monotonic: Callable[[], float],
    ) -> None:
        self._config = config
        self._addresses = addresses
        self._configuration = configuration
        self._repeats = repeats
        self._monotonic = monotonic
        # Handshakes with a newer epoch that were not believed, and the last one, for operators.
        self.unproved_epochs = 0
        self.unproved_epoch: str | None = None
        self._unproved_at = 0.0

    def is_core(self, name: str) -> bool:
        """Whether the configuration file or the log knows a core of this name.

        By name: after a forced recovery the raft ids are new.
        """
        member = self._addresses.members().get(name)
        if name in self._config.cores or name in self._addresses.remembered:
            return True
        if member is not None and member.role == "core":
            return True
        configuration = self._configuration()
        return configuration is not None and configuration.raft_id_of(name) is not None

    def believes(self, name: str, proof: Proof) -> bool:
        """Whether what the node of this name claims may stop this node or reset its state."""
        if not self.is_core(name):
            return False
        if proof.kind is Kind.NONE:
            return proof.wanted == name and proof.dialled in self._addresses.vouched(name)
        return proof.kind is Kind.CORE and proof.name == name

    @property
    def alarm(self) -> bool:
        """Whether the alarm EPOCH of this node is on: `unproved_epoch` tells what it is about."""
        claimed = self.unproved_epoch is not None
        return claimed and self._monotonic() - self._unproved_at < ALARM_S

    def unproved(self, hello: wire.Hello, mine: Epoch, proof: Proof) -> wire.Refusal:
        """A newer epoch that no core of this cluster stands behind: an alarm, nothing else."""
        name = name_of(hello.raft_id)
        text = (
            f"{name} at {proof.dialled or hello.peer_address} claims epoch {hello.epoch} of this "
            f"cluster, whose epoch is {mine} here, and does not prove to be one of its cores: it "
            f"is not believed. If the cluster was recovered by force, see to it that this node "
            f"reaches the recovered core at an address of its configuration file; if not, find out "
            f"what runs there, and keep it from this node's port"
        )
        self.unproved_epochs += 1
        self.unproved_epoch, self._unproved_at = text, self._monotonic()
        # One line a minute for all of them: names, addresses and epochs can be made up.
        if self._repeats.left_out(UNPROVED, UNPROVED) is not None:
            log.error("alarm %s: %s", EPOCH, text)
        return wire.Refusal(
            UNPROVED,
            f"epoch {hello.epoch} is not proved: this node dials the cores that it knows itself",
        )
