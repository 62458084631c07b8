"""What the engine drives: the state machine, as consensus sees it. It knows bytes, not commands.

The replica of a node (raftkv/replica.py) is one; tests have others. Everything is called on the
loop. Whatever is said to be short must be: heartbeats wait behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from raftkv.errors import NodeFault

__all__ = ["Application", "Frozen", "Loading"]


class Frozen(Protocol):
    """A copy-on-write view of the state at one index."""

    def slices(self, rows_max: int, bytes_max: int = ...) -> Iterator[bytes]: ...

    def close(self) -> None: ...


class Loading(Protocol):
    """A state that is being read from a snapshot, chunk by chunk, while the old one stays in use.

    Ends with `adopt` or `discard`.
    """

    def add(self, chunk: bytes) -> None:
        """Take the next chunk. Short. Raises DamagedSnapshot, MissingPlugin."""

    def adopt(self, index: int) -> None:
        """Swap: from now on this is the state, as of `index`. Short. Raises DamagedSnapshot."""

    def discard(self) -> None: ...


class Application(Protocol):
    """What the engine drives. It knows bytes, not commands."""

    def seal(self, commands: Sequence[bytes]) -> bytes:
        """The body of one entry holding these commands, stamped with the log's clock."""

    def frees_room(self, command: bytes) -> bool:
        """Whether a leader with a full disk still takes this command."""

    def estimate(self, command: bytes) -> int:
        """About how many rows a command will look at; for the order of commands only."""

    @property
    def costly_marks(self) -> tuple[tuple[bytes, ...], int]:
        """Marks of which one stands in each command that may be costly, within so many bytes."""

    def apply(self, index: int, body: bytes, term: int) -> Iterator[None] | None:
        """Apply the commands of the entry at `index`, which was appended in `term`.

        None once it is applied. Otherwise a first slice of it is: each step of the iterator applies
        a further one, and its end is that of the entry (applying.py). Until then nothing else is
        applied and `freeze` is not called; a `Loading` may be adopted, which ends it.
        """

    def skip(self, index: int) -> None:
        """The entry at `index` holds no batch."""

    def raise_format(self, index: int, body: bytes) -> None:
        """The entry at `index` raises the core format to the number in `body`."""

    def take_digests(self, index: int) -> None:
        """The entry at `index` holds no batch: all cores digest their state as it is now. Short."""

    @property
    def core_format(self) -> int:
        """The core format of the cluster, as of the last applied entry (raftkv/formats.py)."""

    def freeze(self) -> Frozen: ...

    def loading(self) -> Loading:
        """Begin to read a snapshot, beside the state."""

    def office_changed(self) -> None:
        """Role, term or known leader changed; or nobody took the office that was offered."""

    def progressed(self) -> None:
        """Entries were applied or the commit index moved."""

    def reads_confirmed(self, tokens: Sequence[Any], index: int) -> None: ...

    def reads_failed(self, tokens: Sequence[Any]) -> None: ...

    def faulted(self, fault: NodeFault) -> None:
        """The engine has stopped; nothing that waited for the disk was acknowledged."""
