"""`mbr-perf golden`: promote runs to golden values, list and show them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(no_args_is_help=True, help="Golden values: promote runs to them, list and show them.")

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
GoldenDir = Annotated[Path | None, typer.Option("--golden_dir", metavar="DIR", help="Default: results/golden.")]
Results = Annotated[
    Path | None,
    typer.Option(
        "--results_dir", metavar="DIR", help="Where runs are kept. Default: results of the checkout, else ./results."
    ),
]


@app.command()
def promote(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Run folders or ids; repeats of one setting.")],
    reason: Annotated[str, typer.Option("--reason", help="Why this becomes the value to hold others to.")],
    author: Annotated[str | None, typer.Option("--author", help="Default: git's user.name, else the OS user.")] = None,
    replace_other: Annotated[
        bool, typer.Option("--replace_other", help="Replace a golden of other settings that has the same file name.")
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="METRIC", help="Store this metric only, e.g. peak_allocated_bytes. Repeatable."),
    ] = None,
    accept_spread: Annotated[
        bool,
        typer.Option("--accept_spread", help="Promote although the runs differ by more than half the threshold."),
    ] = False,
    golden_dir: GoldenDir = None,
    results_dir: Results = None,
    as_json: Json = False,
) -> None:
    """Write the golden values of runs, and print what changes. Refused for failed, suspect, short or mixed runs."""
    from datetime import UTC, datetime

    from harness.analysis import promotion
    from harness.records.goldens import golden_path, read_golden, writable_golden_dir, write_golden
    from harness.records.store import read_run
    from harness.report import json
    from harness.report.golden_terminal import print_promotion

    records = [read_run(reference, results_dir) for reference in runs]
    folder = writable_golden_dir(golden_dir)
    there = golden_path(folder, records[0].spec)
    promoted = promotion.promote(
        records,
        reason=reason,
        author=author or _default_author(),
        now=datetime.now(UTC),
        before=read_golden(there) if there.is_file() else None,
        options=promotion.PromotionOptions(
            replace_other=replace_other, only=tuple(only or ()), accept_spread=accept_spread
        ),
    )
    path = write_golden(folder, records[0].spec, promoted.golden)
    if as_json:
        print(json.text(json.golden_document(path, promoted.golden, promoted.changes)))
    else:
        print_promotion(_console(), path, promoted.changes)


@app.command("list")
def list_goldens(golden_dir: GoldenDir = None, as_json: Json = False) -> None:
    """Every golden with its kind, the number of runs behind it, and when it was promoted."""
    from harness.records import goldens
    from harness.report import json
    from harness.report.golden_terminal import print_goldens

    folder = goldens.golden_dir(golden_dir)
    found = goldens.list_goldens(folder)
    if as_json:
        print(json.text(json.goldens_document(found)))
    else:
        print_goldens(_console(), found, folder)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A golden file, or its name as `golden list` prints it.")],
    golden_dir: GoldenDir = None,
    as_json: Json = False,
) -> None:
    """The values of one golden, where they were measured, and who promoted them why."""
    from harness.records.goldens import named_golden
    from harness.report import json
    from harness.report.golden_terminal import print_golden

    path, golden = named_golden(name, golden_dir)
    if as_json:
        print(json.text(json.golden_document(path, golden)))
    else:
        print_golden(_console(), path, golden)


def _console() -> "Console":
    from rich.console import Console

    return Console()


def _default_author() -> str:
    """Git's user, else the system's; empty, which a promotion refuses, where neither has a name."""
    import os
    import pwd
    import shutil
    import subprocess

    git = shutil.which("git")
    if git:
        asked = subprocess.run([git, "config", "user.name"], capture_output=True, text=True, timeout=10, check=False)
        if asked.returncode == 0 and asked.stdout.strip():
            return asked.stdout.strip()
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container may run as a user that its passwd file lacks
        return ""
