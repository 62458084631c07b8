"""Every exception that a user of raftkv can catch, in one tree.

The tree is split by what the caller may do next, not by where the error arose:

    RaftkvError
    |-- NotApplied            nothing happened and nothing will: safe to try again
    |   |-- Overloaded            the outbox is full; wait, then retry
    |   |-- NoLeader              no leader is known, or a leader lost its office before it accepted
    |   |-- TooLarge              the command exceeds a limit; make it smaller
    |   |-- Stopped               this node is stopping or was never started
    |   |-- ReadTimeout           a read was not confirmed in time (reads change nothing)
    |   |-- MembershipRefused     the cores cannot be changed like this, or not now
    |   |-- FormatRefused         the core format cannot be raised, or something needs a newer one
    |   |-- NotPermitted            this node may not propose that; another one may
    |   `-- PeerUnreachable       a call to another node was never delivered
    |-- OutcomeUnknown        the command may or may not have been applied: ask `node.outcome`
    |   `-- Timeout               the deadline passed while the command was on its way
    |       `-- ChangePending         a change of the members is in the log and not committed yet
    |-- Refused               a verdict of the replicated state machine, the same on every node
    |   |-- SessionExpired        the exactly-once session is gone; open a new one
    |   |-- OutcomeExpired        the answer to this sequence number is no longer kept
    |   |-- SequenceTooFar        the sequence number lies beyond the session's window
    |   |-- NumberReused          a client used one sequence number for two commands
    |   |-- PluginFault           a plugin raised an unexpected exception; its command was undone
    |   |-- UnknownPlugin         the command names a plugin that the cluster does not run
    |   |-- UnknownCommand        the plugin does not know this command
    |   |-- InvalidSetting        a replicated setting was refused by its own check
    |   |-- StaleIncarnation      the command was written by an earlier life of its node
    |   |-- NoSpace               a plugin's quota of logical bytes is used up (alarm NOSPACE)
    |   `-- (each plugin's own)
    |-- RemoteFailed          another node's handler raised; its own state is its own affair
    |-- WatchCancelled        a watch has ended; it says why, and from where to watch again
    |-- LockLost              a lock, an office or a place is held no more: its lease is gone
    |-- NodeFault             this node stopped itself; its data needs an operator
    |   |-- DamagedLog            the write-ahead log is damaged beyond a torn tail
    |   |-- DamagedSnapshot       a snapshot file does not match its checksums
    |   |-- NewerFormat           a file was written by a newer version of raftkv
    |   |-- DiskFailed            a write or fsync failed, or the disk is full
    |   |-- TooManyOpenFiles      the start found no file descriptor left
    |   |-- InternalFault         an unexpected exception inside the node: a defect of raftkv
    |   |-- Diverged              this node's log or state contradicts what was committed
    |   |-- WrongDataDirectory    the directory belongs to another node
    |   |-- WrongCluster          the directory or the peer belongs to another cluster
    |   |-- DirectoryLocked       another process uses the directory
    |   |-- WipedNode             this name is a member under another data directory
    |   |-- RemovedNode           the cluster has removed this node
    |   |-- CorruptState          a majority of the voters holds another state than this node
    |   |-- OutdatedData          the directory is from before a forced recovery of the cluster
    |   `-- MissingPlugin         the cluster runs a plugin that this node lacks
    `-- ConfigError           the configuration is wrong; nothing was started
        |-- AddressInUse          the address to listen on is taken
        `-- CertificateError      a certificate, key or authority is missing, wrong or expired

`NotApplied` may be retried at once with a new call. `OutcomeUnknown` must not be retried blindly.
`Refused` will be refused again. `NodeFault` ends the node: nothing is retried, nothing was lost
that had been acknowledged.
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar, TypeVar

#: What a Python program does about an unknown outcome. Other readers of the text cannot.
ASK_NODE = "Ask node.outcome(error.session, error.seq)"
ASK_CLIENT = "Ask client.outcome(error.session, error.seq)"


def without_python(text: str) -> str:
    """The text of an error without advice that only a Python program can follow."""
    for advice in (ASK_NODE, ASK_CLIENT):
        text = text.replace(f". {advice}", "")
    return text


class RaftkvError(Exception):
    """The root. `code` is a stable short name for logs, metrics and the HTTP API.

    Every error can be pickled and copied, also by a process pool: its arguments and attributes
    are carried, and its constructor is not called again.
    """

    code: ClassVar[str] = "error"
    #: Attributes that are of use in this process only: None in a copy.
    local: ClassVar[frozenset[str]] = frozenset()

    def __reduce__(self) -> tuple[Any, ...]:
        state = {key: None if key in self.local else kept for key, kept in vars(self).items()}
        return _rebuilt, (type(self), self.args, state)


_Error = TypeVar("_Error", bound=RaftkvError)


def _rebuilt(kind: type[_Error], args: tuple[Any, ...], state: dict[str, Any]) -> _Error:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


def again(error: _Error) -> _Error:
    """A copy of a kept error, to be raised: with `error` as its cause and a traceback of its own.

    Every raise adds to an exception's traceback, whose frames hold the values of the callers. An
    error that is raised more than once must therefore never be raised itself.
    """
    fresh = copy.copy(error)
    fresh.__cause__ = error
    return fresh


def cut_off(fault: RaftkvError | None) -> RaftkvError:
    """The error of a call that the end of its node cuts off, and of which nothing was sent.

    `fault` is why the node has stopped itself; None if it was stopped.
    """
    return Stopped("this node stops") if fault is None else again(fault)


def cut_off_unknown(fault: RaftkvError | None, rest: str = "", **more: Any) -> Timeout:
    """As `cut_off`, of a command that was sent: its outcome is unknown, and the fault its cause."""
    text = "this node stops" if fault is None else f"this node has stopped itself ({fault})"
    error = Timeout(f"{text}{rest}", **more)
    error.__cause__ = fault
    return error


class NotApplied(RaftkvError):
    """Nothing was changed and nothing will be: the call may be made again."""

    code = "not_applied"


class Overloaded(NotApplied):
    """The node's bounded outbox is full. Wait for earlier calls to finish, then retry."""

    code = "overloaded"


class NoLeader(NotApplied):
    """No leader could take the call. Retry; if it lasts, the cluster has lost its quorum."""

    code = "no_leader"


class TooLarge(NotApplied):
    """The command exceeds a configured limit, which the message names."""

    code = "too_large"


class Stopped(NotApplied):
    """The node is stopping, has stopped, or was not started."""

    code = "stopped"


class ReadTimeout(NotApplied):
    """A read could not be confirmed before its deadline; nothing was changed."""

    code = "read_timeout"


class MembershipRefused(NotApplied):
    """The cores of the cluster cannot be changed like this, or not now; the message says why."""

    code = "membership_refused"


class FormatRefused(NotApplied):
    """The core format cannot be raised, or a request needs a newer one; the message has why."""

    code = "format_refused"


class NotPermitted(NotApplied):
    """This node may not propose the command, and nothing was proposed; the message has who may."""

    code = "not_permitted"


class PeerUnreachable(NotApplied):
    """A call to another node was never delivered: no such member, or no connection to it.

    `refused`: connections are refused at each of its addresses, so no process listens there.
    """

    code = "peer_unreachable"
    refused: bool = False


class RemoteFailed(RaftkvError):
    """The handler of a call on another node raised; the text names its exception."""

    code = "remote_failed"


class WatchCancelled(RaftkvError):
    """A watch has ended before its user ended it.

    `reason`: "slow" (its user did not take the events quickly enough), "stopped" (the node stops),
    "compacted" (the history that it still needed was compacted), "given_up" (the cluster was
    recovered by force, and what this node had shown is its history no more).

    After "slow" and "stopped", watch again from `resume_revision`, on any node: nothing is missed
    and nothing comes twice. After the others it is 0, for there is no such revision: read the keys
    anew, and watch from behind the revision of that read. `compact_revision` is the lowest that
    can be watched from; 0 unless the reason is "compacted".
    """

    code = "watch_cancelled"

    def __init__(self, reason: str, *, resume_revision: int = 0, compact_revision: int = 0) -> None:
        super().__init__(_WATCH_ENDS.get(reason, reason))
        self.reason = reason
        self.resume_revision = resume_revision
        self.compact_revision = compact_revision


_WATCH_ENDS: dict[str, str] = {
    "slow": "the watch was ended because its events were not taken: watch again from "
    "resume_revision",
    "stopped": "the watch has ended with its node: watch again on another, from resume_revision",
    "compacted": "the watch needs revisions that were compacted: read the keys anew, and watch "
    "from behind the revision of that read",
    "given_up": "the cluster was recovered by force, and what was watched is its history no "
    "more: read the keys anew, and watch from behind the revision of that read",
}


class LockLost(RaftkvError):
    """What a recipe held (a lock, an office, a place in a queue) is held no more.

    Its session's lease has ended, or somebody deleted its key: another may hold it by now. Open a
    new session and acquire anew; what was guarded by the fencing token has not been written since.
    """

    code = "lock_lost"


class OutcomeUnknown(RaftkvError):
    """The command may have been applied. `session` and `seq` name it for `node.outcome`."""

    code = "outcome_unknown"

    def __init__(self, message: str, *, session: int = 0, seq: int = 0) -> None:
        super().__init__(message)
        self.session = session
        self.seq = seq


class Timeout(OutcomeUnknown):
    """The deadline passed while the command was on its way; it may still be applied."""

    code = "timeout"


class ChangePending(Timeout):
    """A change of the members stands in the leader's log and was not committed in time.

    It may still be committed, or be rolled back by another leader. Until the same verb, repeated,
    returns without an error, no member may be switched off or wiped because of it.
    """

    code = "change_pending"


class Refused(RaftkvError):
    """A verdict of the replicated state machine: every node decided the same.

    Subclasses declare a unique `code`. Their arguments must be plain values that msgpack can
    carry (str, int, bytes, bool, None, lists and dicts of these), because the exactly-once table
    keeps refusals: `type(r)(*r.args)` must rebuild the refusal.

    What is kept is the code and the arguments. A class whose first argument is a text for people,
    as that of `Refused` itself is, sets `has_text`: from core format 2 on the text is no part of
    the state, so two versions may word it differently, and a command that is repeated after a
    restart may be answered with the first paragraph of the class's docstring instead. A class with
    texts at other places names these in `text_places`; there is "" in their place then.
    """

    code = "refused"
    has_text: ClassVar[bool] = False
    text_places: ClassVar[tuple[int, ...]] = ()

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)

    @classmethod
    def keeps_text_apart(cls) -> bool:
        """Whether the first argument is a text, which is no part of the state."""
        return cls.has_text or cls is Refused

    def state_args(self, *, texts: bool) -> tuple[Any, ...]:
        """The arguments that are kept: all, or without `texts`, as from core format 2 on."""
        places = (0,) if self.keeps_text_apart() else self.text_places
        if texts or not places:
            return self.args
        return tuple("" if place in places else each for place, each in enumerate(self.args))

    def __str__(self) -> str:
        if not self.keeps_text_apart():
            return super().__str__()
        if self.args and self.args[0] != "":
            return str(self.args[0])
        return " ".join((type(self).__doc__ or self.code).split("\n\n")[0].split())


class SessionExpired(Refused):
    """The session is unknown: it ended with its node's incarnation or expired."""

    code = "session_expired"
    has_text = True


class TooManySessions(Refused):
    """All client sessions of the cluster are in use: open one again in a while.

    A session that has written is kept for ten minutes after its last write, so that no other client
    ends what it retries.
    """

    code = "too_many_sessions"
    has_text = True


class OutcomeExpired(Refused):
    """The sequence number lies below the session's floor: its answer is no longer kept."""

    code = "outcome_expired"
    has_text = True


class SequenceTooFar(Refused):
    """The sequence number lies beyond the session's window of unanswered commands."""

    code = "sequence_too_far"
    has_text = True


class NumberReused(Refused):
    """The sequence number was used for another command before: a mistake of the client.

    That command's outcome stands; this one was not applied and will not be under this number.
    """

    code = "number_reused"
    has_text = True


class PluginFault(Refused):
    """A plugin's `apply` raised an exception that is not a `Refused`; the command was undone.

    Arguments: the plugin, and the name of the exception's class, which is no part of the state from
    core format 2 on: the exception depends on the version of the plugin, and of Python.
    """

    code = "plugin_fault"
    text_places = (1,)

    def __str__(self) -> str:
        if len(self.args) != 2:
            return super().__str__()
        plugin, what = self.args
        return f"the plugin {plugin} has raised {what or 'an exception'}; the command was undone"


class UnknownPlugin(Refused):
    """The command names a plugin that this cluster does not run."""

    code = "unknown_plugin"
    has_text = True


class UnknownCommand(Refused):
    """The plugin could not decode the command: unknown tag, or fields of the wrong type."""

    code = "unknown_command"
    has_text = True


class InvalidSetting(Refused):
    """The setting does not exist, or its own check refused the value."""

    code = "invalid_setting"
    has_text = True


class StaleIncarnation(Refused):
    """The command belongs to an earlier life of its node, which the cluster has ended."""

    code = "stale_incarnation"
    has_text = True


class NoSpace(Refused):
    """The quota of a plugin's user data is used up. Argument: the plugin.

    What adds data is refused until the alarm NOSPACE is disarmed; deletions, acknowledgements,
    commits and whatever ends something work.
    """

    code = "no_space"

    def __str__(self) -> str:
        plugin = self.args[0] if self.args else "kv"
        return (
            f"the quota of {plugin} is used up ({plugin}.quota_bytes): delete data (of the "
            f"keyspace: and compact its history) or raise the setting, then raftkv alarm disarm"
        )


class NodeFault(RaftkvError):
    """The node stopped itself rather than risk wrong answers. Not to be retried."""

    code = "node_fault"


class DamagedLog(NodeFault):
    """The write-ahead log is damaged in a place that a crash cannot explain."""

    code = "damaged_log"

    def __init__(self, file: str, offset: int, reason: str) -> None:
        super().__init__(
            f"{file} is damaged at byte {offset}: {reason}. This is not the torn tail of a crash, "
            f"so the node stops. Keep a copy of the directory for inspection, then start the node "
            f"with an empty data directory as a new node: remove the old member, add this one."
        )
        self.file = file
        self.offset = offset
        self.reason = reason


class DamagedSnapshot(NodeFault):
    """A snapshot file does not match its checksums."""

    code = "damaged_snapshot"

    def __init__(self, file: str, offset: int, reason: str) -> None:
        super().__init__(
            f"{file} is damaged at byte {offset}: {reason}. Keep a copy of the directory for "
            f"inspection, then start the node with an empty data directory as a new node: remove "
            f"the old member, add this one."
        )
        self.file = file
        self.offset = offset
        self.reason = reason


class NewerFormat(NodeFault):
    """A file of the data directory has a format that only a newer version of raftkv knows."""

    code = "newer_format"

    def __init__(self, file: str, version: int, known: int) -> None:
        super().__init__(
            f"{file} has format version {version}, this version of raftkv reads up to {known}. "
            f"Nothing was changed: start the node with the version that wrote it, or a later one."
        )
        self.file = file
        self.version = version


class DiskFailed(NodeFault):
    """A write or fsync failed (full disk, I/O error). What waited for it was not acknowledged."""

    code = "disk_failed"


class TooManyOpenFiles(NodeFault):
    """No file descriptor is left to the process or the system. Only a start ends with it."""

    code = "too_many_open_files"


class Diverged(NodeFault):
    """This node's log or state contradicts what the cluster has committed."""

    code = "diverged"


class CorruptState(NodeFault):
    """A majority of the voters holds another state than this node, at the same index."""

    code = "corrupt_state"


class InternalFault(NodeFault):
    """An exception that should not be: the node stops rather than go on half alive. Report it."""

    code = "internal_fault"


class WrongDataDirectory(NodeFault):
    """The data directory was made by a node of another name."""

    code = "wrong_data_directory"


class WrongCluster(NodeFault):
    """The data directory, or the peer that answered, belongs to another cluster."""

    code = "wrong_cluster"


class DirectoryLocked(NodeFault):
    """Another process holds the lock of the data directory."""

    code = "directory_locked"


class WipedNode(NodeFault):
    """The cluster knows this node's name under another data directory."""

    code = "wiped_node"


class RemovedNode(NodeFault):
    """The cluster has removed this node. Its data directory is of no use any more."""

    code = "removed_node"


class OutdatedData(NodeFault):
    """The data directory is from before a forced recovery: its log is the cluster's no more."""

    code = "outdated_data"


class MissingPlugin(NodeFault):
    """The replicated state contains a plugin, or a version of it, that this node lacks."""

    code = "missing_plugin"


class ConfigError(RaftkvError):
    """The configuration is wrong. The message names the key and what it should be."""

    code = "config_error"


class AddressInUse(ConfigError):
    """The address to listen on is already taken by another process."""

    code = "address_in_use"


class CertificateError(ConfigError):
    """A certificate, its key or the file of authorities is missing, damaged, wrong or expired."""

    code = "certificate_error"
