"""Shows history, for people and as JSON: the list of cases, and one case night by night."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from urllib.parse import quote

from harness.history.cases import CaseHistory, CaseSummary, LevelChange
from harness.history.changes import ChangeRow, Trend, change_text, changes, notable, word_of
from harness.history.record import started
from harness.history.series import Night, Series
from harness.history.store import Addition
from harness.records.golden import Difference
from harness.records.metrics import Metric
from harness.show.figures import ABSENT, figure
from harness.show.json import Document
from harness.show.page import GAP, Column, Line, Page, Span, Table, Words, answer_line, listing, style_of, table, tabled
from harness.units import counted, format_percent, utc_time

_MINUTE = "%Y-%m-%dT%H:%MZ"
_DIRECTIONS = {"higher": "higher is better", "lower": "lower is better", "equal": "should stay equal"}


def page_name(series: Series) -> str:
    """Return the name of the case's page beside an index."""
    return f"{series.case.replace('/', '.')}.html"


def cases_page(cases: Sequence[CaseSummary], metric: Metric, results: Path, *, is_linked: bool = False) -> Page:
    """Return a line per case; what is to be done where there are none."""
    if not cases:
        return Page((), answer=f"No history in {results}: `mbr-perf nightly` and `mbr-perf history add RUN` write it")
    others = sum(case.num_others for case in cases)
    left_out = (
        f"{counted(others, 'run')} with other settings than the newest of their case: history CASE --fingerprint."
    )
    about = "Trend compares the newest night with the 20 before it, beyond their noise."
    counts = (f"{num} {word}" for word, num in Counter(case.last_outcome for case in cases).items())
    # fmt: off
    columns: list[tuple[Column, Callable[[CaseSummary], Words]]] = [
        (Column("Case"),
         lambda case: Span(case.case, link=quote(page_name(case.series)) if is_linked else "")),
        (Column("Nights", right=True, drop=2), lambda case: str(case.num_nights)),
        (Column("Runs", right=True, drop=4), lambda case: str(case.num_runs)),
        (Column("Last night", drop=3), lambda case: _when(case.series.nights[-1])),
        (Column(metric.title, right=True), lambda case: figure(metric, case.last_value)),
        (Column("Trend"), lambda case: _trend(case.trend)),
        (Column("Last outcome", drop=1), lambda case: _styled(case.last_outcome)),
    ]
    # fmt: on
    listed = tabled(cases, columns)
    answer = f"{counted(len(cases), 'case')}; last night: {', '.join(counts)}."
    return Page((listed, *([f"Left out: {left_out}"] if others else []), about), answer=answer)


def case_page(history: CaseHistory) -> Page:
    """Return the nights as a table, where the level changed and with what, and the newest night."""
    metric, band, golden = history.metric, history.golden, history.no_golden
    if band:
        golden = f"{figure(metric, band.value)}, allowed ± {band.threshold * 100:.3g} % by {band.allowed_by}"
    edges = [level_change_text(metric, found) for found in history.change_points]
    return Page(
        (
            f"{metric.title}: {_DIRECTIONS[metric.better]}. Golden: {golden}",
            GAP,
            _nights(history),
            listing(_not_counted(history)),
            GAP,
            *(Line(words, hang=2) for words in edges or [history.no_change_points or "No change points."]),
            listing(f"Note: {note}" for note in history.series.notes),
        ),
        answer=_newest(history),
    )


def _nights(history: CaseHistory) -> Table:
    metric, nights, rows = history.metric, history.nights, []
    for number, night in enumerate(nights):
        news = notable(changes(nights[number - 1], night)) if number else ()
        spread = night.spread(metric.name)
        rows.append(
            (
                _when(night),
                figure(metric, night.value(metric.name)),
                ABSENT if spread is None else f"{spread * 100:.1f} %",
                f"{len(night.counted)} of {len(night.records)}",
                _styled(night.outcome),
                night.id.rpartition("-")[2],
                _listed(news),
            )
        )
    right = (metric.title, "Spread", "Runs")
    return table(("Night", *right, "Outcome", "Id", Column("Changed", long=True, optional=True)), rows, right=right)


def _when(night: Night) -> str:
    return started(night.records[0]).strftime(_MINUTE) + ("" if night.is_start_known else "?")


def _not_counted(history: CaseHistory) -> list[str]:
    out = [record for night in history.nights for record in night.records if record not in night.counted]
    reasons = (f"{each.run_id}: {each.failure or '; '.join(each.suspect) or each.status}" for each in out[-1:])
    return [f"Not counted: {counted(len(out), 'run')}, the last {reason}" for reason in reasons]


def level_change_text(metric: Metric, found: LevelChange) -> Words:
    """Describe a change of level: its night, both levels, its p-value, and other changes of that night."""
    word = word_of(found.change, 0.0, metric.better)
    where = f" ({found.changed_where})" * bool(found.changed_where)
    changed = _listed(found.changed) or "no recorded change of software or machine"
    levels = f"{figure(metric, found.before)} -> {figure(metric, found.after)}"
    return (
        f"Change point {utc_time(found.started_at):{_MINUTE}}: {levels}, ",
        Span(f"{format_percent(found.change)} ({word})", style_of(word, "bad")),
        f", p {found.p_value:.1g}{where}: {changed}",
    )


def _newest(history: CaseHistory) -> Line:
    night, metric, trend = history.nights[-1], history.metric, history.trend
    value, shown = night.value(metric.name), ""
    if trend and trend.level is not None and trend.change is not None and trend.allowed is not None:
        against = f"{format_percent(trend.change)} against the nights before it ({figure(metric, trend.level)})"
        shown = f", {against}: {trend.word}, noise explains {trend.allowed * 100:.1f} %"
    said = f", {metric.title} {figure(metric, value)}{shown}"
    return answer_line((f"{history.series.case}, {_when(night)}: ", _styled(night.outcome), said))


def _trend(trend: Trend | None) -> Words:
    if trend is None:
        return ABSENT
    change = "" if trend.change is None else f" {format_percent(trend.change)}"
    return Span(f"{trend.word}{change}", "bad" if trend.word == "other" else style_of(trend.word))


def _styled(word: str) -> Span:
    return Span(word, "expected" if word.endswith("(expected)") else style_of(word, "doubt"))


def _listed(found: Iterable[Difference | ChangeRow]) -> str:
    return "; ".join(map(change_text, found))


def added_page(rows: Sequence[Addition]) -> Page:
    """Return how many runs are new, and a line per run."""
    columns: list[tuple[Column, Callable[[Addition], Words]]] = [
        (Column("Run", whole=True), lambda addition: addition.run_id),
        (Column("Case", drop=1), lambda addition: addition.case),
        (Column("Status"), lambda each: each.status + ", suspect" * bool(each.suspect)),
        (Column("In history"), lambda addition: "added" if addition.added else "already there"),
    ]
    num_new = sum(addition.added for addition in rows)
    return Page((tabled(rows, columns),), answer=f"{num_new} of {counted(len(rows), 'run')} added.")


class HistoryDocument(Document):
    """``mbr-perf history --json``."""

    results_dir: Path
    metric: str
    unit: str
    cases: tuple[CaseSummary, ...]
    notes: tuple[str, ...]


class AddedDocument(Document):
    """``mbr-perf history add --json``."""

    runs: tuple[Addition, ...]
