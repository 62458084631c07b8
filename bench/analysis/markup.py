"""Pieces of HTML: paragraphs, tables, figures. Everything that comes from data is escaped here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from bench import schema
from bench.analysis import formats
from bench.analysis.figures import Rows
from bench.analysis.words import KIND_WORDS, REGISTRY_WORDS, ROLE_WORDS, Finding

__all__ = [
    "Field",
    "definition_list",
    "field",
    "figure",
    "findings_list",
    "paragraph",
    "section",
    "table",
]

Words = Callable[[Any], str]

_COLOURED = ("lcr", "legacy", *schema.SESSION_MODES)

_NAMES: Mapping[str, Mapping[str, str]] = {
    "layout": {**schema.LAYOUT_WORDS, "all": "all layouts"},
    "base": schema.LAYOUT_WORDS,
    "scenario": {**schema.SCENARIO_WORDS, "same_client": "same client id", "all": "all scenarios"},
    "registry": {**REGISTRY_WORDS, "none": formats.NOTHING},
    "role": ROLE_WORDS,
    "kind": KIND_WORDS,
    "consistency": {"none": formats.NOTHING},
}


@dataclass(frozen=True)
class Field:
    """A column of an HTML table: where its value comes from and how it is written."""

    column: str
    title: str
    unit: str = ""
    words: Words = str
    numeric: bool = False
    wide: bool = False


def field(column: str, title: str | None = None, words: Words | None = None) -> Field:
    """A field whose unit and wording follow from its name, as the tables name columns."""
    name = title if title is not None else column.replace("_", " ")
    if words is not None:
        return Field(column, name.replace("_", " "), "", words, numeric=True)
    if column in _NAMES:
        names = _NAMES[column]
        return Field(column, name, words=lambda value: names.get(value, str(value)))
    for suffix, unit, wording in (
        ("_per_s", "per second", formats.number),
        ("per_s", "per second", formats.number),
        ("_ms", "ms", formats.number),
        ("_us", "\N{MICRO SIGN}s", formats.number),
        ("_s", "s", formats.number),
        ("_share", "", formats.percent),
        ("_ratio", "", formats.number),
    ):
        if column.endswith(suffix):
            shown = title if title is not None else column.removesuffix(suffix).replace("_", " ")
            return Field(column, shown, unit, wording, numeric=True)
    return Field(column, name)


def section(title: str, *parts: str) -> str:
    """A part of the page with its heading; `parts` are HTML already."""
    return f"<section><h2>{escape(title)}</h2>{''.join(parts)}</section>"


def paragraph(text: str, kind: str = "") -> str:
    attribute = f' class="{kind}"' if kind else ""
    return f"<p{attribute}>{escape(text)}</p>"


def findings_list(findings: Iterable[Finding]) -> str:
    items = []
    for finding in findings:
        attribute = "" if finding.tone == "plain" else f' class="{finding.tone}"'
        items.append(f"<li{attribute}>{escape(finding.text)}</li>")
    return f"<ul>{''.join(items)}</ul>" if items else ""


def definition_list(pairs: Iterable[tuple[str, str]], kind: str = "") -> str:
    items = [f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in pairs]
    attribute = f' class="{kind}"' if kind else ""
    return f"<dl{attribute}>{''.join(items)}</dl>" if items else ""


def figure(picture: str, label: str, caption: str, conditions: str) -> str:
    """A picture with its caption and, below, the conditions that its figures hold under."""
    below = f"<small>{escape(conditions)}</small>" if conditions else ""
    return (
        f'<figure><div class="picture" role="img" aria-label="{escape(label)}">{picture}</div>'
        f"<figcaption>{escape(caption)}{below}</figcaption></figure>"
    )


def table(rows: Rows, fields: Sequence[Field], *, tall: bool = False) -> str:
    """A table; an empty string when there are no rows."""
    if not rows:
        return ""
    head = "".join(_head(one) for one in fields)
    body = "".join(f"<tr>{''.join(_cell(row, one) for one in fields)}</tr>" for row in rows)
    return (
        f'<div class="scroll{" tall" if tall else ""}"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _head(one: Field) -> str:
    unit = f"<small>{escape(one.unit)}</small>" if one.unit else ""
    attribute = ' class="n"' if one.numeric else ""
    return f"<th{attribute}>{escape(one.title)}{unit}</th>"


def _cell(row: Mapping[str, Any], one: Field) -> str:
    value = row[one.column]
    text = formats.NOTHING if value is None else one.words(value)
    if one.column == "registry" and value in _COLOURED:
        dot = f'<span class="dot" style="--dot:var(--{value})">{escape(text)}</span>'
        return f"<td>{dot}</td>"
    kind = "n" if one.numeric else "wide" if one.wide else ""
    attribute = f' class="{kind}"' if kind else ""
    return f"<td{attribute}>{escape(text)}</td>"
