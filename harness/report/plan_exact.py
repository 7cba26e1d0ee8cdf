"""Composed and exact peaks side by side, for people."""

from rich.text import Text

from harness.planning.exact import ExactPeak
from harness.report.console import Console
from harness.report.printing import plain_table, print_hanging, show
from harness.units import format_bytes


def print_exact(console: Console, text: str, peaks: tuple[ExactPeak, ...]) -> None:
    """One setting: a row per pipeline stage, and why some have no exact peak."""
    console.print()
    console.print(Text(f"Whole step traced: {text}", style="bold"))
    columns = ("Stage", "Composed", "Exact", "Composed over exact", "Optimizer step")
    table = plain_table(*columns, right=columns)
    for peak in peaks:
        exact = "-" if peak.exact_bytes is None else format_bytes(peak.exact_bytes)
        error = "-" if peak.error is None else f"{peak.error * 100:+.3f} %"
        table.add_row(
            str(peak.pp_rank), format_bytes(peak.composed_bytes), exact, error, format_bytes(peak.optimizer_step_bytes)
        )
    show(console, table)
    for problem in dict.fromkeys(peak.problem for peak in peaks if peak.problem):
        stages = ", ".join(str(peak.pp_rank) for peak in peaks if peak.problem == problem)
        print_hanging(console, Text(f"Stage {stages}: {problem}", style="yellow"), 2)
