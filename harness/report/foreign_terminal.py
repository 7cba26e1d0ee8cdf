"""A training log against golden values, for people at a terminal."""

from collections.abc import Iterable, Sequence

from rich.text import Text

from harness.analysis.foreign.values import METRIC, ForeignComparison
from harness.analysis.gate import Finding, Verdict
from harness.analysis.outcome import Outcome
from harness.errors import ExitCode
from harness.records.foreign.values import ForeignLog
from harness.report.console import Console
from harness.report.foreign_rows import cells, title
from harness.report.printing import plain_table, print_lines, show
from harness.units import counted, format_bytes

_NAMES = {
    "bridge": "Megatron-Bridge",
    "megatron-lm": "Megatron-LM",
    None: "neither Megatron-Bridge nor Megatron-LM for sure",
}
_STYLES = {
    "pass": "green", "improvement": "cyan", "regression": "bold red", "inconclusive": "yellow", "not_gated": "dim",
}  # fmt: skip
_RIGHT = ("Log", "Golden", "Change", "Allowed")
_MOST_SOURCES = 3


def print_foreign(
    console: Console, log: ForeignLog, judged: ForeignComparison | None, verdict: tuple[Outcome, ExitCode]
) -> None:
    """What was read, the findings, the reasons, what is worth knowing, and the verdict last."""
    print_lines(console, [_log_line(log)])
    if judged is None:
        print_lines(console, [f"Note: {note}" for note in log.notes])
        print_lines(console, [f"In doubt: {log.truncated}"] if log.truncated else [], style="yellow")
        print_lines(console, ["Not compared: no golden was named"])
        return
    print_lines(console, [_golden_line(judged)])
    table = plain_table("Metric", *_RIGHT, "Verdict", right=_RIGHT)
    for finding in judged.comparison.findings:
        word = finding.verdict.value
        table.add_row(*cells(finding), Text(word.replace("_", " "), style=_STYLES[word]))
    show(console, table)
    print_lines(console, _reasons(judged.comparison.findings))
    told = " ".join(finding.reason for finding in judged.comparison.findings)
    print_lines(console, [f"In doubt: {doubt}" for doubt in judged.doubts if doubt not in told], style="yellow")
    print_lines(console, _worst(judged))
    print_lines(console, [f"Note: {note}" for note in judged.notes])
    outcome, exit_code = verdict
    if outcome == "improvement":
        print_lines(
            console, ["Note: the golden may be due for renewal; --actuals FILE writes this log's values as one"]
        )
    console.print()
    ending = f" (exit {int(exit_code)})  {judged.golden_path}"
    console.print(Text.assemble((outcome.upper(), _STYLES.get(outcome, "")), ending), soft_wrap=True)


def _log_line(log: ForeignLog) -> str:
    shown = ", ".join(log.sources[:_MOST_SOURCES])
    more = f" and {len(log.sources) - _MOST_SOURCES} more" if len(log.sources) > _MOST_SOURCES else ""
    if not log.iterations:
        return f"Log {shown}{more}: no iterations in {counted(log.num_lines, 'line')}"
    first, last = log.iterations[0].number, log.iterations[-1].number
    total = f" of {log.total}" if log.total else ""
    return f"Log {shown}{more}: {_NAMES[log.format]}, iterations {first} to {last}{total}"


def _golden_line(judged: ForeignComparison) -> str:
    golden, window = judged.golden, judged.window
    count = len(window.iterations)
    return (
        f"Golden {golden.path}: {_NAMES[golden.format]}, {golden.layout}, {counted(len(golden.steps), 'step')}; "
        f"window: steps [{window.start}, {window.end}), {count} of them"
    )


def _reasons(findings: Sequence[Finding]) -> Iterable[str]:
    """One line per reason with all that share it; what was not judged says so in the table already."""
    shared: dict[str, list[str]] = {}
    for finding in findings:
        is_told = finding.verdict is not Verdict.NOT_GATED or finding.metric not in METRIC
        if finding.reason and is_told and not (finding.verdict is Verdict.PASS and not finding.current):
            shared.setdefault(finding.reason, []).append(title(finding.metric))
    return [f"{', '.join(titles)}: {reason}" for reason, titles in shared.items()]


def _worst(judged: ForeignComparison) -> Iterable[str]:
    """The largest report of every counter, where several ranks tell it."""
    ranks = len({one.rank for one in judged.log.memory})
    if ranks < 2:
        return []
    told = [
        f"{METRIC[name].title.lower()} {format_bytes(worst.value)} on rank {worst.rank} after iteration {worst.iteration}"
        for name, worst in judged.worst.items()
    ]
    return [f"Most memory of {ranks} ranks: {'; '.join(told)}"] if told else []
