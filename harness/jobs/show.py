"""Jobs for people: a table of all of them, and one with its runs."""

from collections.abc import Sequence

from rich.text import Text

from harness.showing.printing import Console, plain_table, print_lines, show

Row = tuple[str, ...]


def print_jobs(console: Console, rows: Sequence[Row], where: str) -> None:
    """``rows``: folder's name, Slurm's number, what it is for, runs, how it stands."""
    if not rows:
        print_lines(console, [f"no jobs in {where}"])
        return
    table = plain_table("Job", "Slurm", "For", "Runs", "State", right=["Runs"])
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    show(console, table)


def print_job(console: Console, facts: Sequence[tuple[str, str]], runs: Sequence[Row]) -> None:
    """``facts``: names and values; ``runs``: id and how each stands."""
    width = max(len(name) for name, _ in facts)
    print_lines(console, [f"{name:<{width}}  {value}" for name, value in facts])
    if not runs:
        return
    print_lines(console, [""])
    table = plain_table("Run", "State")
    for row in runs:
        table.add_row(*(Text(cell) for cell in row))
    show(console, table)
