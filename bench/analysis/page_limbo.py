"""The report's sections on the limbo: speed, costs, and whether nodes have what was confirmed."""

from __future__ import annotations

from bench import schema
from bench.analysis import formats, plots_limbo, words_limbo
from bench.analysis.conditions import LIMBO_WORDS, condition_line
from bench.analysis.figures import Figures
from bench.analysis.markup import Field, field, figure, findings_list, paragraph, section, table

__all__ = ["limbo_sections"]


def limbo_sections(figures: Figures) -> list[str]:
    """Empty strings if it was not measured."""
    under = condition_line(figures.conditions, LIMBO_WORDS)
    return [_speed(figures, under), _checked(figures)]


def _speed(figures: Figures, under: str) -> str:
    rows = figures.rows("limbo")
    if not rows:
        return ""
    return section(
        "Transactions of the limbo",
        paragraph(
            "Writers inside the owner of the limbo, which is the leader, write one key each in a "
            "transaction and wait until it is confirmed: until a quorum of the application's "
            "choice has it. A majority of the cores is what the log needs anyhow, so the entry "
            "that carries a transaction confirms it, and nobody acknowledges anything. With all "
            "cores, or all members, every node acknowledges in the log what it has applied, many "
            "transactions at once, and the acknowledgement that completes the quorum confirms "
            "them. What writers submit at the same time goes into one entry, so the log costs "
            "less for each the more there are."
        ),
        findings_list(words_limbo.speed_findings(figures)),
        *_pictures(figures, under),
        "<h3>Speed</h3>",
        table(rows, SPEED_FIELDS, tall=True),
        "<h3>Costs of a transaction</h3>",
        paragraph(
            "All entries, commands, acknowledgements and messages of a load until all nodes had "
            "applied and acknowledged it, divided by the transactions that were confirmed. Beside "
            "them what an idle cluster sends in the same time."
        ),
        findings_list(words_limbo.cost_findings(figures)),
        table(rows, COST_FIELDS, tall=True),
    )


def _pictures(figures: Figures, under: str) -> list[str]:
    pictures = []
    if picture := plots_limbo.writers_plot(figures):
        caption = (
            "Confirmed transactions per second (above) and their median time (below) by the number "
            "of writers, one line for each quorum."
        )
        pictures.append(figure(picture, "Confirmed transactions by writers", caption, under))
    if picture := plots_limbo.costs_plot(figures):
        caption = (
            "Entries of the log (above) and acknowledgements of all nodes (below) for each "
            "confirmed transaction. A majority of the cores needs no acknowledgement: no line."
        )
        pictures.append(figure(picture, "What a transaction of the limbo costs", caption, under))
    return pictures


def _checked(figures: Figures) -> str:
    rows = [row for row in figures.rows("limbo_verdicts") if row["layout"] != "all"]
    if not rows:
        return ""
    outcomes = table(figures.rows("limbo_outcomes"), OUTCOME_FIELDS, tall=True)
    found = words_limbo.verdict(figures)
    return section(
        "What the limbo confirmed",
        paragraph(
            "No two transactions of a load wrote the same key. When a load was over, every node, "
            "replicants too, was asked for each transaction that a writer had been told is "
            "confirmed: its value and its position had to be in the confirmed rows of that node. "
            "A row that nobody was told of may be there only for a transaction whose outcome its "
            "writer did not learn."
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
        "quorum",
        "quorum",
        words=lambda value: schema.LIMBO_QUORUMS.get(str(value), str(value)),
    ),
    field("writers", words=formats.count),
)
SPEED_FIELDS = (
    *_KEYS,
    field("ok", "confirmed", formats.count),
    *(field(name, words=formats.count) for name in ("rolled_back", "unknown")),
    field("error", "errors", formats.count),
    field("confirmed_per_s", "confirmed"),
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
            ("acks", "acknowledgements"),
            ("messages", "messages"),
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
    field("confirmed", words=formats.count),
    field("checked", "looked for on nodes", formats.count),
    field("missing", words=formats.count),
    field("strays", "of nobody", formats.count),
    field("double_positions", "positions twice", formats.count),
    field("out_of_order", words=formats.count),
    field("wrong", "in all", formats.count),
)
OUTCOME_FIELDS = (*_KEYS, field("outcome"), field("count", words=formats.count))
