"""The report's section on subscriptions in two regions: how close, duplicates, costs."""

from __future__ import annotations

from bench import schema
from bench.analysis import formats, plots_subscriptions, words_subscriptions
from bench.analysis.conditions import LIMBO_WORDS, condition_line
from bench.analysis.figures import Figures
from bench.analysis.markup import Field, field, figure, findings_list, paragraph, section, table

__all__ = ["subscription_sections"]


def subscription_sections(figures: Figures) -> list[str]:
    """An empty string if they were not measured."""
    rows = figures.rows("subscriptions")
    if not rows:
        return [""]
    under = condition_line(figures.conditions, LIMBO_WORDS)
    found = words_subscriptions.verdict(figures)
    replicated = [row for row in rows if row["mode"] != "off"]
    return [
        section(
            "Replicated subscriptions",
            paragraph(
                "Two regions, each a cluster of its own on this machine; between them every byte "
                "is held back by the delay, in each direction. In the first region messages are "
                "published at a rate, and one consumer acknowledges what it gets. In the other one "
                "the subscription's cursor is watched. Then the consumer leaves while messages "
                "still come, one in the other region takes over as soon as it has closed, "
                "and when all is at rest it goes back."
            ),
            findings_list([found] if found else []),
            "<h3>From an acknowledgement to the other region's cursor</h3>",
            findings_list(words_subscriptions.move_findings(figures)),
            *_pictures(figures, under),
            table(replicated, MOVE_FIELDS, tall=True),
            "<h3>Messages again after a move</h3>",
            findings_list(words_subscriptions.duplicate_findings(figures)),
            table(replicated, AGAIN_FIELDS, tall=True),
            "<h3>Costs of a message</h3>",
            paragraph(
                "Of both regions, from the first message until the consumer left. The ratios are "
                "to a subscription at the same rate that is not replicated, without a distance; "
                "its messages go to the other region all the same. A second of an idle node costs "
                "something too, which few messages a second have to bear."
            ),
            findings_list(words_subscriptions.cost_findings(figures)),
            table(rows, COST_FIELDS, tall=True),
        )
    ]


def _pictures(figures: Figures, under: str) -> list[str]:
    pictures = []
    if picture := plots_subscriptions.moves_plot(figures):
        caption = (
            "From the call of an acknowledgement until the other region's cursor covered its "
            "message: median (above) and 99th percentile (below), by the delay each way."
        )
        pictures.append(figure(picture, "How long a cursor takes to move", caption, under))
    if picture := plots_subscriptions.duplicates_plot(figures):
        caption = (
            "Messages that had been acknowledged and came again to the consumer that took over in "
            "the other region while messages still came."
        )
        pictures.append(figure(picture, "Messages again after a move", caption, under))
    return pictures


_KEYS = (
    field("layout", "each region"),
    Field(
        "mode", "mode", words=lambda value: schema.SUBSCRIPTION_MODES.get(str(value), str(value))
    ),
    field("delay_ms", "delay"),
    field("rate_per_s", "messages"),
)
MOVE_FIELDS = (
    *_KEYS,
    field("acks", "acknowledgements", formats.count),
    *(field(f"{name}_ms") for name in ("p50", "p95", "p99", "longest")),
    field("within_a_second_share", "within a second"),
    field("never_moved", words=formats.count),
)
AGAIN_FIELDS = (
    *_KEYS,
    field("acked", "acknowledged before", formats.count),
    field("received", "got there", formats.count),
    field("again", words=formats.count),
    field("again_quiesced", "again at rest", formats.count),
    field("skipped", words=formats.count),
    field("errors", words=formats.count),
)
COST_FIELDS = (
    *_KEYS,
    field("published", words=formats.count),
    field("messages_per_s", "published"),
    *(
        Field(f"{name}_per_message", title, "for each", formats.number, numeric=True)
        for name, title in (
            ("entries", "log entries"),
            ("commands", "commands"),
            ("link_bytes", "bytes between regions"),
            ("cpu_us", "\N{MICRO SIGN}s of processor"),
        )
    ),
    *(
        Field(f"{name}_ratio", title, "to off", formats.number, numeric=True)
        for name, title in (
            ("entries", "log entries"),
            ("commands", "commands"),
            ("link_bytes", "bytes"),
            ("cpu_us", "processor"),
        )
    ),
)
