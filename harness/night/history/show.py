"""History at a terminal: the list of cases, and one case night by night."""

from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from harness.judging.metrics import Metric
from harness.night.history.cases import CaseHistory, CaseSummary, LevelChange
from harness.night.history.changes import Change, Trend, changes, notable
from harness.night.history.files import started
from harness.night.history.series import Night
from harness.showing.figures import ABSENT, figure, sparkline
from harness.showing.printing import Console, plain_table, print_hanging, print_lines, show
from harness.units import counted, format_percent

_STYLES = {"pass": "green", "ok": "green", "improvement": "green", "better": "green", "regression": "red",
           "failed": "red", "oom": "red", "worse": "red", "other": "red", "steady": "", "new": ""}  # fmt: skip
_INDENT = 2
_MOST_REASONS = 3
_DIRECTIONS = {"higher": "higher is better", "lower": "lower is better", "equal": "should stay equal"}


def print_cases(console: Console, cases: Sequence[CaseSummary], metric: Metric, results: Path) -> None:
    """A line per case; what is to be done where there are none."""
    if not cases:
        print_lines(console, [f"No history in {results}: `mbr-perf nightly` and `mbr-perf history add RUN` write it"])
        return
    table = plain_table("Case", "Nights", "Runs", "Last night", metric.title, "Trend", "Last outcome",
                        right=("Nights", "Runs", metric.title))  # fmt: skip
    for case in cases:
        table.add_row(
            Text(case.series.title), str(len(case.series.nights)), _of_all(case), _when(case.series.nights[-1]),
            figure(metric, case.value), _trend(case.trend), _styled(case.last_outcome),
        )  # fmt: skip
    show(console, table)
    others = sum(case.num_others for case in cases)
    left_out = f"Left out for other settings than their case's newest run: {counted(others, 'run')}; `mbr-perf history CASE` says how to see them"
    print_lines(
        console,
        [
            *([left_out] if others else []),
            f"{counted(len(cases), 'case')}. Trend: the newest night against the twenty before it, and what their noise explains.",
        ],
    )


def _of_all(case: CaseSummary) -> str:
    return f"{case.num_runs} of {case.num_runs + case.num_others}" if case.num_others else str(case.num_runs)


def print_case(console: Console, history: CaseHistory) -> None:
    """The nights as a table, a line of bars, where the level changed and with what, and the newest night."""
    print_lines(console, [history.series.title, *_headline(history), ""])
    _print_nights(console, history)
    for line in _not_counted(history):
        print_hanging(console, Text(line), _INDENT)
    print_lines(console, ["", *_bars(console, history)])
    for found in history.level_changes:
        print_hanging(console, level_change_text(history, found), _INDENT)
    if not history.level_changes:
        print_lines(console, [history.no_points or "No change points in these nights."])
    print_hanging(console, _newest(history), _INDENT)
    print_lines(console, [f"Note: {note}" for note in history.series.notes])


def _headline(history: CaseHistory) -> list[str]:
    nights, metric, golden = history.series.nights, history.metric, history.golden
    num_runs = sum(len(night.records) for night in nights)
    held = f"Golden: {figure(metric, golden.value)} ± {golden.threshold * 100:g} %" if golden else history.no_golden
    told = f"{metric.title} ({_DIRECTIONS[metric.better]}), {counted(len(nights), 'night')}, {counted(num_runs, 'run')}"
    return [told, held[0].upper() + held[1:]]


def _print_nights(console: Console, history: CaseHistory) -> None:
    metric, nights = history.metric, history.series.nights
    table = plain_table("Night", metric.title, "Spread", "Runs", "Outcome", "Id", "Changed",
                        right=(metric.title, "Spread", "Runs"))  # fmt: skip
    for number, night in enumerate(nights):
        news = notable(changes(nights[number - 1], night)) if number else ()
        spread = night.spread(metric.name)
        table.add_row(
            _when(night), figure(metric, night.value(metric.name)),
            ABSENT if spread is None else f"{spread * 100:.1f} %", _runs(night), _styled(night.outcome),
            Text(night.id.rpartition("-")[2]), Text(_listed(news)),
        )  # fmt: skip
    show(console, table)


def _when(night: Night) -> str:
    return started(night.records[0]).strftime("%Y-%m-%dT%H:%MZ") + ("" if night.is_start_known else "?")


def _runs(night: Night) -> str:
    counted, made = len(night.counted), len(night.records)
    return str(made) if counted == made else f"{counted} of {made}"


def _not_counted(history: CaseHistory) -> list[str]:
    """Why the newest of the runs that do not count are out."""
    out = [record for night in history.series.nights for record in night.records if record not in night.counted]
    told = [f"Not counted: {record.run_id}: {record.failure or '; '.join(record.suspect) or record.status}"
            for record in out[-_MOST_REASONS:]]  # fmt: skip
    rest = len(out) - len(told)
    return [*told, f"and {counted(rest, 'run')} before them (--json has all)"] if rest else told


def _bars(console: Console, history: CaseHistory) -> list[str]:
    """Nothing where the output cannot hold bars."""
    if not console.encoding.lower().startswith("utf"):
        return []
    values = [night.value(history.metric.name) for night in history.series.nights]
    bars = sparkline(values, max(20, min(console.width, 120)))
    present = [value for value in values if value is not None]
    if len(present) < 2:
        return []
    low, high = (figure(history.metric, value) for value in (min(present), max(present)))
    return [bars, f"from {low} to {high}", ""]


def level_change_text(history: CaseHistory, found: LevelChange) -> Text:
    """When the level changed, from where to where, how surely, and what else changed there."""
    point, metric = found.point, history.metric
    welcome = history.is_better(point.fraction)
    word = "changed" if welcome is None else "better" if welcome else "worse"
    with_what = f"{f' ({found.where})' if found.where else ''}: {_listed(found.changed)}" if found.changed else (
        ": nothing that is recorded changed there"
    )  # fmt: skip
    return Text.assemble(
        f"Change point {_when(found.night)}: {figure(metric, point.before)} -> {figure(metric, point.after)}, ",
        (f"{format_percent(point.fraction)} ({word})", _STYLES.get(word, "red")),
        f", p {point.p_value:.1g}{with_what}",
    )


def _newest(history: CaseHistory) -> Text:
    night, metric, trend = history.series.nights[-1], history.metric, history.trend
    value = night.value(metric.name)
    told = Text.assemble(f"Newest night {_when(night)}: ", _styled(night.outcome))
    if value is None or trend is None:
        return told.append(f", no {metric.name}")
    told.append(f", {figure(metric, value)}, ")
    if trend.level is None or trend.change is None or trend.allowed is None:
        return told.append("too few nights before it to say more")
    allowed = f"noise explains {trend.allowed * 100:.1f} %"
    return told.append(
        f"{format_percent(trend.change)} against the nights before it ({figure(metric, trend.level)}): {trend.word}, {allowed}"
    )


def _trend(trend: Trend | None) -> Text:
    if trend is None:
        return Text(ABSENT)
    change = "" if trend.change is None or trend.word == "steady" else f" {format_percent(trend.change)}"
    return Text(f"{trend.word}{change}", style=_STYLES[trend.word])


def _styled(word: str) -> Text:
    return Text(word, style=_STYLES.get(word, "yellow"))


def _listed(found: Sequence[Change]) -> str:
    return "; ".join(change.text for change in found)
