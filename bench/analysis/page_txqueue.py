"""The report's sections on the queues: speed, costs, and whether nodes have what was committed."""

from __future__ import annotations

from bench import schema
from bench.analysis import formats, plots_txqueue, words_txqueue
from bench.analysis.conditions import LIMBO_WORDS, condition_line
from bench.analysis.figures import Figures
from bench.analysis.markup import Field, field, figure, findings_list, paragraph, section, table

__all__ = ["txqueue_sections"]


def txqueue_sections(figures: Figures) -> list[str]:
    """Empty strings if they were not measured."""
    under = condition_line(figures.conditions, LIMBO_WORDS)
    return [_speed(figures, under), _checked(figures)]


def _speed(figures: Figures, under: str) -> str:
    rows = figures.rows("txqueue")
    if not rows:
        return ""
    return section(
        "Transactions of the queues",
        paragraph(
            "Producers inside the leader's node publish a batch of messages to two queues in turns "
            "and commit, each with a session and a transaction of its own. A TX whose operations "
            "fit is one command. A branch (DTX) is started, ended and committed by commands of "
            "their own, with two phases prepared, too. What producers ask for at the same time "
            "goes into one entry of the log, so the log costs less for each the more there are."
        ),
        findings_list(words_txqueue.speed_findings(figures)),
        *_pictures(figures, under),
        "<h3>Speed</h3>",
        table(rows, SPEED_FIELDS, tall=True),
        "<h3>Costs of a transaction</h3>",
        paragraph(
            "All entries, commands and messages between nodes of a load until all nodes had "
            "applied it, divided by the transactions that were committed. Beside them what an idle "
            "cluster sends in the same time."
        ),
        findings_list(words_txqueue.cost_findings(figures)),
        table(rows, COST_FIELDS, tall=True),
    )


def _pictures(figures: Figures, under: str) -> list[str]:
    pictures = []
    if picture := plots_txqueue.producers_plot(figures):
        caption = (
            "Messages of committed transactions per second (above) and the median time of a commit "
            "(below) by the number of producers: a line for each kind and size of transaction."
        )
        pictures.append(figure(picture, "Committed messages by producers", caption, under))
    if picture := plots_txqueue.entries_plot(figures):
        caption = (
            "Entries of the log (above) and bytes between nodes (below) for each committed "
            "transaction."
        )
        pictures.append(figure(picture, "What a transaction of the queues costs", caption, under))
    return pictures


def _checked(figures: Figures) -> str:
    rows = [row for row in figures.rows("txqueue_verdicts") if row["layout"] != "all"]
    if not rows:
        return ""
    outcomes = table(figures.rows("txqueue_outcomes"), OUTCOME_FIELDS, tall=True)
    found = words_txqueue.verdict(figures)
    return section(
        "What the queues committed",
        paragraph(
            "No two messages of a load had the same body. When a load was over, the queues of "
            "every node, replicants too, were compared with what producers had been told: of a "
            "committed transaction every message had to be there once, side by side, and a "
            "producer's transactions in their order; of all others there had to be nothing, and "
            "never a part."
        ),
        findings_list([found] if found else []),
        table(rows, WRONG_FIELDS),
        "<details><summary>Every load by its outcomes</summary>",
        outcomes,
        "</details>",
    )


_KEYS = (
    field("layout"),
    Field(
        "way",
        "transaction",
        words=lambda value: schema.TXQUEUE_WAYS.get(str(value), str(value)),
    ),
    field("batch", "messages", formats.count),
    field("producers", words=formats.count),
)
SPEED_FIELDS = (
    *_KEYS,
    field("ok", "committed", formats.count),
    *(field(name, words=formats.count) for name in ("rolled_back", "unknown")),
    field("error", "errors", formats.count),
    field("committed_per_s", "committed"),
    field("messages_per_s", "messages"),
    *(field(f"{name}_ms") for name in ("p50", "p95", "p99", "longest")),
    field("wrong", words=formats.count),
)
COST_FIELDS = (
    *_KEYS,
    Field("transactions_per_entry", "transactions", "per entry", formats.number, numeric=True),
    *(
        Field(f"{name}_per_transaction", title, "for each", formats.number, numeric=True)
        for name, title in (
            ("entries", "log entries"),
            ("commands", "commands"),
            ("sent", "messages between nodes"),
            ("raft", "between cores"),
            ("feed", "to and from replicants"),
            ("call", "of RPC"),
            ("idle", "when idle"),
            ("bytes", "bytes"),
        )
    ),
)
WRONG_FIELDS = (
    field("layout"),
    field("loads", words=formats.count),
    field("committed", words=formats.count),
    field("checked", "messages looked for", formats.count),
    field("missing", words=formats.count),
    field("strays", "of nobody", formats.count),
    field("torn", "in part", formats.count),
    field("displaced", "out of order", formats.count),
    field("wrong", "in all", formats.count),
)
OUTCOME_FIELDS = (*_KEYS, field("outcome"), field("count", words=formats.count))
