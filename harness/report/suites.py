"""Suites at a terminal: the list, and the cases of one."""

from collections.abc import Iterable

from rich.text import Text

from harness.recipes.suite import Suite
from harness.recipes.suite_listing import CaseRow, SuiteRow, case_rows
from harness.recipes.suite_names import shared_golden_lines
from harness.report.console import Console
from harness.report.figures import ABSENT
from harness.report.printing import plain_table, print_lines, show, show_whole


def print_suites(console: Console, rows: Iterable[SuiteRow]) -> None:
    """One row per suite."""
    table = plain_table("suite", "cases", "GPU", "about", right=["cases"])
    for row in rows:
        gpus = " ".join(row["gpus"]) or ABSENT
        table.add_row(Text(row["suite"]), str(row["num_cases"]), gpus, Text(row["title"]))
    show(console, table)


def print_suite(console: Console, suite: Suite) -> None:
    """What it is about, then every case; ``-`` is left to the machine. BadRequestError as :func:`case_rows`."""
    rows = case_rows(suite)
    print_lines(console, [f"{suite.name}: {suite.title}", *([f"  {suite.source}"] if suite.source else [])])
    columns = ["case", "task", "GPU", "precision", "GPUs", "recompute", "repeats", "golden", "owner", "expected"]
    table = plain_table(*columns, right=["GPUs", "repeats"])
    for row in rows:
        table.add_row(*map(Text, _cells(row)))
    console.print()
    show_whole(console, table)
    shared = shared_golden_lines(
        (row["case"], row["golden_name"], row["golden"] == "required") for row in rows if row["golden_name"]
    )
    print_lines(console, [f"Note: {line}" for line in shared])


def _cells(row: CaseRow) -> list[str]:
    known = row["expected"]
    expected = f"{known['outcome']} until {known['until']}: {known['reason']}" if known else None
    said = (row["task"], row["gpu"], row["compute_dtype"], row["num_gpus"], row["recompute"], row["repeats"])
    cells = (row["case"], *said, row["golden"], row["owner"], expected)
    return [ABSENT if cell in (None, "") else str(cell) for cell in cells]
