"""Shows a bisect: the commit, the figures on both sides, and what it changed, for a terminal and a pull request."""

from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

from harness.bisect.values import BisectAnswer, Metric, Side
from harness.show.page import GAP, Block, Code, Column, Line, Only, Page, Section, answer_line, listing, tabled
from harness.units import command_text, counted, format_bytes, format_percent, format_seconds

_TITLES: dict[Metric, str] = {
    "time": "step time",
    "memory": "predicted peak",
    "work": "counted FLOPs",
    "recompute": "effective recompute",
}


def figure_text(metric: Metric, values: Iterable[object]) -> str:
    """Return the mean of a side's figures: ``2.51 s``; absent without one."""
    found = list(values)
    if not found:
        return "-"
    if metric == "recompute":
        return str(found[0])
    mean = fmean(value for value in found if isinstance(value, int | float))
    if metric == "time":
        return format_seconds(mean)
    return format_bytes(round(mean)) if metric == "memory" else f"{mean:,.0f}"


def answer_text(answer: BisectAnswer) -> str:
    """Return ``FIRST BAD 1a2b3c4d5e (subject): step time 2.51 s -> 2.59 s (+3.0 %)``, or why there is none."""
    if answer.metric is None or answer.reason == "interrupted":
        return f"INTERRUPTED (exit {int(answer.exit_code)}): no answer yet"
    title = _TITLES[answer.metric]
    if answer.first_bad is None:
        return f"NOT DECIDED, {title}: {answer.reason}"
    levels = " -> ".join(figure_text(answer.metric, [level]) for level in answer.levels)
    change = "" if answer.change is None else f" ({format_percent(answer.change)})"
    first = answer.first_bad
    which = f"FIRST BAD {first.name} ({first.subject[:60]})"
    if len(answer.between) > 1:
        which = f"FIRST BAD is one of {counted(len(answer.between), 'commit')} up to {first.name}"
    shown = f"{levels}{change}" if levels else "changed"
    return f"{which}: {title} {shown}"


def bisect_page(answer: BisectAnswer) -> Page:
    """Return the whole answer."""
    return Page(
        title=f"Bisect of {answer.plan.case}",
        answer=answer_line(answer_text(answer)),
        about=_about(answer),
        footer=str(answer.folder),
        blocks=tuple(_blocks(answer)),
    )


def _about(answer: BisectAnswer) -> str:
    plan = answer.plan
    ends = f"{plan.revisions[0].name} (good) to {plan.revisions[-1].name} (bad)"
    what = "traces" if answer.metric != "time" else "runs"
    return f"{counted(plan.num_revisions, 'commit')} of {Path(plan.repo).name}, {ends}; {answer.num_measured} {what}"


def _blocks(answer: BisectAnswer) -> Iterable[Block]:
    if answer.sides and (metric := answer.metric):
        columns = [
            (Column("Revision"), lambda side: side.revision.name),
            (Column("Subject", long=True), lambda side: side.revision.subject),
            (Column(_TITLES[metric], right=True), lambda side: figure_text(metric, side.figures)),
            (Column("Measured", right=True), lambda side: str(len(side.figures))),
        ]
        yield tabled(list[Side](answer.sides), columns)
    if answer.probability is not None and answer.probability < 1:
        yield f"Probability: at least {answer.probability:.2f}. Line 1 has the means of all runs per side."
    if len(answer.between) > 1:
        yield Section("One of these", (listing(f"{each.name} {each.subject}" for each in answer.between),))
    if answer.lines:
        about = f"of {answer.plan.pins}" if answer.plan.pins else "about recompute and memory"
        yield Section(f"Changed lines {about}", (Code("\n".join(answer.lines)),))
    if answer.skipped:
        yield Section("Skipped", (listing(f"{each.revision.name}: {each.reason}" for each in answer.skipped),))
    yield GAP
    if answer.advice:
        yield Line(f"Next: {answer.advice}", whole=True)
    if answer.reason == "interrupted":
        yield Line(f"To continue: {command_text('bisect', '--resume', answer.folder)}", whole=True)
    else:
        yield Only("terminal", (Line(f"For a pull request: {answer.folder / 'report' / 'bisect.md'}", whole=True),))
