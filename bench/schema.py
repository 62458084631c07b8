"""The benchmark log: a row for each operation of a run. The only place that knows its columns.

The driver (`bench run`) writes rows through `RowWriter`; the Spark job (`bench analyse`) reads
them. Both derive their schema from the annotations of `Row`, so that a column cannot be added on
one side only. A row is never changed after it was written and says nothing that can be worked out
from other rows: the Spark job alone decides, for instance, what counts as an anomaly.

Rules of the format:

- Times are microseconds. `start_us` is wall-clock time since the epoch in UTC, so that rows of
  several processes can be laid over each other; `duration_us` comes from a monotonic clock.
- A file appears under its final name only when it is complete (temporary name, then rename), so a
  driver that was killed leaves no half file. Pages carry checksums, so that damage is found.
- Readers ignore columns that they do not know; a column that they know may not change its type. A
  column that was added later is not required, and a file without it is read as if it were null.
"""

from __future__ import annotations

import os
import re
import threading
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

__all__ = [
    "ANOMALIES",
    "AUDIT_ANOMALIES",
    "CALL_RESULTS",
    "CLUSTER_CALL_FUNCTIONS",
    "CLUSTER_CALL_OPS",
    "CLUSTER_CALL_PARTICIPANTS",
    "CLUSTER_CALL_PLACES",
    "CLUSTER_CALL_SCENARIOS",
    "COLUMNS",
    "CONSISTENCIES",
    "ERRORS",
    "LAYOUTS",
    "LAYOUT_WORDS",
    "LIMBO_OPS",
    "LIMBO_QUORUMS",
    "LIMBO_RESULTS",
    "LIMBO_SCENARIO",
    "OPS",
    "PHASES",
    "PHASE_OF_CALLS",
    "REFUSALS",
    "REGISTRIES",
    "ROLES",
    "SCENARIOS",
    "SCENARIO_WORDS",
    "SESSION_MODES",
    "SUBSCRIPTION_MODES",
    "SUBSCRIPTION_OPS",
    "SUBSCRIPTION_RESULTS",
    "SUBSCRIPTION_SCENARIO",
    "TXQUEUE_OPS",
    "TXQUEUE_RESULTS",
    "TXQUEUE_SCENARIO",
    "TXQUEUE_WAYS",
    "Column",
    "Row",
    "RowWriter",
    "SessionMode",
    "arrow_schema",
    "columns_of",
    "spark_schema",
]

LAYOUT_WORDS: Mapping[str, str] = types.MappingProxyType(
    {"1": "1 core", "3": "3 cores", "5": "5 cores", "3+3": "3 cores + 3 replicants"}
)
LAYOUTS: tuple[str, ...] = tuple(LAYOUT_WORDS)

SCENARIO_WORDS: Mapping[str, str] = types.MappingProxyType(
    {
        "initial": "initial connections",
        "reconnect": "reconnections",
        "same_client": "all clients with the same client id",
        "lagging": "reconnections while one replicant lags",
        "leader_dies": "reconnections while the leader is killed",
        "puts": "puts",
        "gets": "gets",
        "mixed": "nine gets to one put",
        "cluster_calls": "cluster calls",
        "cluster_calls_lagging": "cluster calls while one replicant lags",
        "cluster_calls_leader_dies": "cluster calls while the leader is killed",
        "limbo": "transactions of the limbo",
        "txqueue": "transactions of the queues",
        "subscriptions": "subscriptions replicated between regions",
    }
)
SCENARIOS: tuple[str, ...] = tuple(SCENARIO_WORDS)

PHASES = ("warmup", "load", "quiesce", "audit")
PHASE_OF_CALLS = "c[1-9][0-9]*"
"""The phase of `puts`, `gets` and `mixed` names the number of calls in flight: c1, c16, c64."""

SessionMode = typing.Literal["enabled", "dual", "disabled"]
SESSION_MODES: Mapping[str, SessionMode] = types.MappingProxyType(
    {"session-on": "enabled", "session-both": "dual", "session-off": "disabled"}
)
"""Sessions opened by a broker through the product's whole flow, and the replicated mode in force.

`lcr` and `legacy` are bare calls of one registry or the other, without a broker and its sessions.
"""
REGISTRIES = ("lcr", "legacy", *SESSION_MODES, "none")
ROLES = (
    *("leader", "follower", "replicant", "lagging"),
    *("http", "http_follower", "http_replicant"),
)
"""Inside a node of that kind, or outside and over HTTP: to the leader (http), or to another.

`lagging` is the one replicant that lags on purpose, while the others do not.
"""

CLUSTER_CALL_SCENARIOS = ("cluster_calls", "cluster_calls_lagging", "cluster_calls_leader_dies")
"""Calls of the plugin `calls`, which every node executes. Their loads have a file of facts each."""

CLUSTER_CALL_FUNCTIONS: Mapping[str, str] = types.MappingProxyType(
    {
        "nothing": "a function without effect",
        "keyspace": "a function with an effect on the keyspace",
        "outside": "a function that sleeps 1 ms",
    }
)
CLUSTER_CALL_PLACES: Mapping[str, str] = types.MappingProxyType(
    {
        "leader": "in the leader",
        "replicant": "in one replicant",
        "everywhere": "spread over all nodes",
    }
)
CLUSTER_CALL_PARTICIPANTS: Mapping[str, str] = types.MappingProxyType(
    {"cores": "the cores execute", "all": "replicants execute too"}
)
"""Who executes the calls: the replicated setting `replicants_take_part`."""

CLUSTER_CALL_OPS = ("call", "initiate", "replicate", "effects")
"""`call`: a caller's, from its first line to its answer. `initiate` and `replicate`: one run of the
function on one node. `effects`: how often the node `client` wrote into the keyspace (`index`), as
the log counts it."""

LIMBO_SCENARIO = "limbo"
"""Transactions of the plugin `limbo`, from writers in its owner. Each load has a file of facts."""

LIMBO_QUORUMS: Mapping[str, str] = types.MappingProxyType(
    {
        "majority": "a majority of the cores",
        "cores": "all cores",
        "members": "all cores and replicants",
    }
)
"""Who must hold a transaction before it is confirmed: the replicated setting of a load."""

LIMBO_OPS = ("submit", "rows", "strays")
"""`submit`: a writer's transaction, from its first line to its answer; `index` is its position.
`rows`: how many (`index`) of those that writers were told are confirmed the node `client` has, with
their values and positions. `strays`: how many rows of the load it has besides."""

TXQUEUE_SCENARIO = "txqueue"
"""Transactions of the plugin `txqueue`, from producers in the leader. Each load has a file of
facts."""

TXQUEUE_WAYS: Mapping[str, str] = types.MappingProxyType(
    {"tx": "TX", "dtx1": "one-phase DTX", "dtx2": "two-phase DTX"}
)
"""How a producer commits: a transaction of its session; a branch, at once; or prepared first."""

TXQUEUE_OPS = ("commit", "messages", "surplus", "torn", "displaced")
"""`commit`: a producer's transaction, from its first publication to the answer of its commit;
`index` is its log entry, where it was told. The others count (`index`) what the node `client` has
of the load: messages of committed transactions that are there once; other messages; transactions of
which a part is there; messages out of their order."""

SUBSCRIPTION_SCENARIO = "subscriptions"
"""Topics and subscriptions of the plugin `subscriptions` in two regions, with a distance between
them. Each load has a file of facts."""

SUBSCRIPTION_MODES: Mapping[str, str] = types.MappingProxyType(
    {"off": "not replicated", "vector": "vector mode", "snapshot": "snapshot mode"}
)
"""How a subscription's state goes to the other region, if it does."""

SUBSCRIPTION_OPS = ("moved", "received", "again", "again_quiesced", "skipped")
"""`moved`: from a consumer's acknowledgement in one region until the cursor in the other one
covered the message. The others count (`index`) messages after a load: those that a consumer in the
other region got, or, in `again`, had been acknowledged in the first one before it took over; in
`again_quiesced`, the same for one that went back after everything had come to rest; in `skipped`,
that nobody got although nobody had acknowledged them."""

SUBSCRIPTION_RESULTS = ("never_moved",)
"""The cursor in the other region did not get there while it was waited for."""

OPS = (
    *("connect", "disconnect", "lookup", "put", "get", "audit"),
    *(*CLUSTER_CALL_OPS, *LIMBO_OPS, *TXQUEUE_OPS, *SUBSCRIPTION_OPS),
)

CONSISTENCIES = ("linearizable", "lease", "local")
"""What a get asked for. Rows of other operations have none."""

REFUSALS = ("restart", "outdated_early", "outdated_late", "ahead", "in_progress")
"""The registry's verdict against a caller: a correct answer, but not the one it hoped for."""

CALL_RESULTS = ("init_failure", "peers_lagging", "stopped_nodes")
"""What a cluster call may answer besides `ok`: it was not committed, or is not yet executed by all
nodes that were asked for (they are late, or down)."""

LIMBO_RESULTS = ("rolled_back", "still_pending", "submit_unknown", "not_submitted")
"""What a transaction of the limbo may be answered besides `ok`: a verdict against it; not decided
in time; nobody knows whether it is in the queue; its time was over before it was written."""

TXQUEUE_RESULTS = ("transaction_aborted", "transaction_unknown", "rolled_back")
"""What a transaction of the queues may be answered besides `ok`: surely not applied; not known when
its time was over; a branch that was rolled back."""

ERRORS = ("retries_exhausted", "timeout", "no_leader", "overloaded")
"""No answer. Besides these, `error:<code>` carries the code of any other raftkv error."""

ERROR_CODE = "error:[A-Za-z0-9_.-]+"

AUDIT_ANOMALIES = ("duplicate_session", "lost_registration", "wrong_owner", "leaked_registration")
"""What the audit after quiescence may find for one client id instead of `ok`."""

WRONG_PRESENT = "wrong_session_present"
"""A connect answered with another `session_present` than the driver's own history demands."""

ANOMALIES = (WRONG_PRESENT, *AUDIT_ANOMALIES)


class Row(msgspec.Struct, frozen=True, gc=False):
    """One operation. Each annotation holds the type on disk and the column's meaning."""

    run: Annotated[str, "string", "names the run; the same for all files of one run"]
    layout: Annotated[str, "string", "processes of the cluster: one of LAYOUTS"]
    scenario: Annotated[str, "string", "what the clients did: one of SCENARIOS"]
    phase: Annotated[str, "string", "part of the run: one of PHASES, or c<calls in flight>"]
    registry: Annotated[str, "string", "one of REGISTRIES; none: not involved"]
    node: Annotated[str, "string", "name of the node that served the call"]
    role: Annotated[str, "string", "where the caller sat: one of ROLES"]
    op: Annotated[str, "string", "the operation: one of OPS"]
    client: Annotated[str, "string", "client id (MQTT), or the caller's name for puts"]
    attempt: Annotated[int, "int32", "attempts used, 1 when the first one settled it"]
    start_us: Annotated[int, "int64", "start, microseconds since the epoch, UTC"]
    duration_us: Annotated[int, "int64", "from call to answer, microseconds, monotonic clock"]
    outcome: Annotated[
        str,
        "string",
        "ok, one of REFUSALS, CALL_RESULTS, LIMBO_RESULTS, TXQUEUE_RESULTS, "
        "SUBSCRIPTION_RESULTS, ERRORS, AUDIT_ANOMALIES, error:<code>",
    ]
    session_present: Annotated[bool | None, "bool", "connect: the flag the client got"] = None
    expected_present: Annotated[bool | None, "bool", "connect: the flag it had to get"] = None
    index: Annotated[
        int | None,
        "int64",
        "log index of the answer, where there is one; a call's id, a transaction's position",
    ] = None
    consistency: Annotated[str | None, "string", "get: one of CONSISTENCIES"] = None
    load: Annotated[str | None, "string", "the load, as in its facts, where it has a name"] = None
    life: Annotated[int | None, "int32", "a function's run: its process since the first, 0"] = None


@dataclass(frozen=True)
class Column:
    """A column of the log: `type` is one of string, int32, int64, double, bool."""

    name: str
    type: str
    required: bool
    meaning: str


def columns_of(kind: type[msgspec.Struct]) -> tuple[Column, ...]:
    """The columns that a struct's annotations declare, in their order."""
    columns = []
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        value_type, stored_type, meaning = typing.get_args(hint)
        required = type(None) not in typing.get_args(value_type)
        columns.append(Column(name, stored_type, required, meaning))
    return tuple(columns)


COLUMNS: tuple[Column, ...] = columns_of(Row)


def arrow_schema() -> pyarrow.Schema:
    """The columns as pyarrow writes them; required ones are not nullable."""
    import pyarrow

    kinds: dict[str, Any] = {
        "string": pyarrow.string(),
        "int32": pyarrow.int32(),
        "int64": pyarrow.int64(),
        "bool": pyarrow.bool_(),
    }
    return pyarrow.schema(
        [
            pyarrow.field(
                column.name,
                kinds[column.type],
                nullable=not column.required,
                metadata={"meaning": column.meaning},
            )
            for column in COLUMNS
        ]
    )


def spark_schema(columns: tuple[Column, ...] = COLUMNS) -> StructType:
    """The columns as Spark reads them. All nullable: whether nulls are there is what it checks."""
    from pyspark.sql import types as t

    kinds: dict[str, type[t.DataType]] = {
        "string": t.StringType,
        "int32": t.IntegerType,
        "int64": t.LongType,
        "double": t.DoubleType,
        "bool": t.BooleanType,
    }
    return t.StructType(
        [t.StructField(column.name, kinds[column.type](), nullable=True) for column in columns]
    )


ROWS_MAX = 200_000
"""Rows kept in memory before `add` writes them by itself: about 60 MB, ten seconds of full load."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")


class RowWriter:
    """Collects rows in memory and writes them to `directory/log/<run>-<node>-<n>.parquet`.

    `add` costs a list append. It writes only when `rows_max` rows have gathered; a driver that
    measures latencies calls `flush` between its phases, or in a thread: `add` and `flush` may run
    in different threads. `close` (or leaving the `with` block) writes the rest.

    Raises ValueError for a run or node name that cannot be part of a file name, and OSError when a
    file cannot be written; then the rows are still in memory and `flush` may be called again.
    """

    def __init__(self, directory: Path, run: str, node: str, *, rows_max: int = ROWS_MAX) -> None:
        for name in (run, node):
            if not _NAME.fullmatch(name):
                raise ValueError(
                    f"{name!r} cannot name a log file: use letters, digits, '_', '.', '+' and '-'"
                )
        if rows_max < 1:
            raise ValueError(f"rows_max must be at least 1, not {rows_max}")
        self._directory = directory / "log"
        self._directory.mkdir(parents=True, exist_ok=True)
        self._stem = f"{run}-{node}"
        self._rows_max = rows_max
        self._rows: list[Row] = []
        self._files = 0
        self._writing = threading.Lock()

    def add(self, row: Row) -> None:
        """Keeps a row; writes all rows when `rows_max` of them have gathered."""
        self._rows.append(row)
        if len(self._rows) >= self._rows_max:
            self.flush()

    def flush(self) -> Path | None:
        """Writes what has gathered as one file. Returns its path, None if there was nothing."""
        with self._writing:
            rows, self._rows = self._rows, []
            if not rows:
                return None
            try:
                return self._write(rows)
            except BaseException:
                self._rows = rows + self._rows
                raise

    def close(self) -> None:
        """Writes the rest. The writer may be used again afterwards."""
        self.flush()

    def __enter__(self) -> RowWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _write(self, rows: list[Row]) -> Path:
        import pyarrow
        from pyarrow import parquet

        schema = arrow_schema()
        arrays = [
            pyarrow.array([getattr(row, field.name) for row in rows], type=field.type)
            for field in schema
        ]
        path = self._next_path()
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            parquet.write_table(
                pyarrow.Table.from_arrays(arrays, schema=schema),
                temporary,
                compression="zstd",
                write_page_checksum=True,
            )
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        return path

    def _next_path(self) -> Path:
        # A driver that was started again under the same names must not overwrite its first files.
        while True:
            path = self._directory / f"{self._stem}-{self._files}.parquet"
            self._files += 1
            if not path.exists():
                return path
