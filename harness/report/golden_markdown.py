"""Promotions and differences of goldens as Markdown for a pull request."""

from collections.abc import Iterable, Sequence

from harness.analysis.explain.changes import changes
from harness.analysis.explain.contrast import contrast
from harness.analysis.explain.values import Side
from harness.records.golden import GoldenRecord
from harness.report.golden_rows import METRIC_TITLES, departure_rows, metric_rows
from harness.report.html_page import as_markdown


def promotions_markdown(
    promoted: Sequence[tuple[str, GoldenRecord, Side, Side | None]], refused: Sequence[tuple[str, str]]
) -> str:
    """Every promoted golden by name, as it is and as it was; then what was not promoted, with the reason."""
    return "\n".join([*(_promotion(*each) for each in promoted), *([_refusals(refused)] if refused else [])])


def _promotion(name: str, golden: GoldenRecord, after: Side, before: Side | None) -> str:
    runs = ", ".join(f"`{run_id}`" for run_id in golden.run_ids)
    night = f", night `{golden.night_id}`" if golden.night_id else ""
    lines = [
        f"### {as_markdown(name)}",
        "",
        f"Reason: {as_markdown(golden.reason)}",
        "",
        f"Promoted by {as_markdown(golden.promoted_by)}, {golden.promoted_at}, from {runs}{night}.",
        "",
        *_tables(after, before),
        *(f"- Accepted: {as_markdown(why)}" for why in golden.overridden),
    ]
    return "\n".join(lines).rstrip() + "\n"


def difference_markdown(before: Side, after: Side) -> str:
    """What is not the same in two goldens or runs."""
    heading = [f"### {as_markdown(after.name)} against {as_markdown(before.name)}", ""]
    return "\n".join([*heading, *_tables(after, before)]).rstrip() + "\n"


def _refusals(rows: Iterable[tuple[str, str]]) -> str:
    listed = [f"- {as_markdown(name)}: {as_markdown(why)}" for name, why in rows]
    return "\n".join(["### Not promoted", "", *listed]) + "\n"


def _tables(after: Side, before: Side | None) -> list[str]:
    nobody = Side(name="", kind="golden", metrics={}, facts={}, closed=frozenset())
    told = changes(after, before or nobody)
    values = _table(METRIC_TITLES, metric_rows(told, after, before), num_left=1)
    if before is None:
        return [*values, "", "The first golden in this place."]
    rows = departure_rows(contrast(after, before).departures)
    if not rows:
        return [*values, "", "Settings, machine and software are those of before, as far as both are recorded."]
    return [*values, "", *_table(("Changed with it", "Before", "After"), rows, num_left=3), ""]


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]], *, num_left: int) -> list[str]:
    rule = ["---" if column < num_left else "---:" for column in range(len(titles))]
    return [_row(titles), "| " + " | ".join(rule) + " |", *(_row(row) for row in rows)]


def _row(texts: Sequence[str]) -> str:
    return "| " + " | ".join(as_markdown(text) for text in texts) + " |"
