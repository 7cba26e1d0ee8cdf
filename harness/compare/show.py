"""Shows a comparison with a log, or with golden values of another program; of a growing log again and again."""

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from harness.compare.figures import COUNTERS, ROWS, ForeignComparison
from harness.compare.foreign import ForeignAnswer, ForeignRequest, compare_foreign
from harness.foreign.log import ForeignLog
from harness.foreign.logs.sources import log_sources
from harness.judge.gate import Verdict
from harness.measure.result import compared_line, comparison_table, reasons
from harness.records.metrics import Metric
from harness.show.page import Line, Page, details, listing, plain
from harness.show.terminal import narration
from harness.units import counted, format_bytes, shortened

SHOWN: Mapping[str, Metric] = {
    **ROWS,
    "grad_norm_non_finite": Metric("grad_norm_non_finite", "Gradient norms not finite", "count", "lower", "exact"),
}
"""The rows of the table: figures, then a check, whose limit is no change."""
_NAMES = {
    "bridge": "Megatron-Bridge",
    "megatron-lm": "Megatron-LM",
    "mbr-perf": "mbr-perf",
    None: "Megatron-Bridge or Megatron-LM",
}
_MOST_SETTINGS = 6


def foreign_page(answer: ForeignAnswer) -> Page:
    """Return the verdict with the changes of time and peak, the findings, the reasons and what was read."""
    judged, log = answer.judged, answer.judged.log
    shown = [f for f in judged.comparison.findings if f.golden is not None or f.verdict is not Verdict.NOT_GATED]
    stated = " ".join(finding.reason for finding in shown)
    why = ((f.reason, SHOWN[f.metric].title) for f in shown if f.reason and f.verdict is not Verdict.NOT_GATED)
    differing = [f"Differs: {each}" for each in judged.settings]
    return Page(
        (
            comparison_table(shown, SHOWN, "Run" if log.run else "Log", "Reference"),
            *reasons(why),
            listing(differing[:_MOST_SETTINGS]),
            details("difference", differing[_MOST_SETTINGS:]),
            listing((f"In doubt: {doubt}" for doubt in judged.doubts if doubt not in stated), style="doubt"),
            listing((_log_line(log), _golden_line(judged), *_worst(log))),
            details("note", (f"Note: {each}" for each in (*judged.comparison.provisional, *judged.notes))),
        ),
        answer=foreign_line(answer),
    )


def foreign_line(answer: ForeignAnswer) -> Line:
    """Return line 1: the verdict with the changes of time and peak."""
    compared = answer.judged.comparison
    doubts = (each.reason for each in compared.findings if each.verdict is Verdict.INCONCLUSIVE)
    return compared_line(compared, (*answer.judged.doubts, *doubts), shown=SHOWN)


def _log_line(log: ForeignLog) -> str:
    by, total = "mbr-perf" if log.run else _NAMES[log.format], log.total or "an unknown number"
    numbers = f"{log.iterations[0].number} to {log.iterations[-1].number}" if log.iterations else "none"
    return f"Judged: {', '.join(log.sources)} ({by}), iterations {numbers} of {total}"


def _golden_line(judged: ForeignComparison) -> str:
    golden, window = judged.golden, judged.window
    count = len(window.iterations)
    return (
        f"Reference: {golden.path} ({_NAMES[golden.format]}), {counted(len(golden.steps), 'step')}; "
        f"compared: {counted(count, 'step')} ({window.text})"
    )


def _worst(log: ForeignLog) -> Iterable[str]:
    found = [(ROWS[name].title.lower(), log.worst(counter)) for name, counter in COUNTERS.items()]
    peaks = [
        f"{title} {format_bytes(worst.value)} on rank {worst.rank} after iteration {worst.iteration}"
        for title, worst in found
        if worst
    ]
    ranks = len({report.rank for report in log.memory})
    return [f"Most memory of {ranks} ranks: {'; '.join(peaks)}"] if peaks and ranks > 1 else []


_PAUSE_S = 2.0


def followed(request: ForeignRequest, pause: Callable[[float], None] = time.sleep) -> ForeignAnswer:
    """Return the answer after the end of the job, or at Ctrl-C; a terminal shows line 1 of each in place."""
    console = narration()
    if not console.is_terminal:
        console.print(f"Following {request.ours.given}: the answer comes when the job ends, or at Ctrl-C")
    with console.status("Reading the log") as line:
        size, answer = _size(request), compare_foreign(request)
        try:
            while answer.is_growing:
                line.update(shortened(plain(foreign_line(answer).words), console.width - 3))
                pause(_PAUSE_S)
                if (now := _size(request)) != size:
                    size, answer = now, compare_foreign(request)
        except KeyboardInterrupt:
            return answer
    return answer


def _size(request: ForeignRequest) -> int:
    return sum(Path(source.path).stat().st_size for source in log_sources(request.ours.paths) if source.path)
