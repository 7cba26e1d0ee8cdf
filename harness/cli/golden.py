"""`mbr-perf golden`: promote runs to golden values, list, show, compare, retire and export them."""

from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.golden_export import export
from harness.cli.golden_promote import promote
from harness.cli.option_types import GoldenDir, Json, Results

if TYPE_CHECKING:
    from harness.report.console import Console

app = typer.Typer(
    no_args_is_help=True, help="Golden values: promote runs to them, list, show, compare, retire and export them."
)


app.command("promote")(promote)
app.command("export")(export)


@app.command("list")
def list_goldens(
    retired: Annotated[bool, typer.Option("--retired", help="Those that were taken out of force instead.")] = False,
    golden_dir: GoldenDir = None,
    as_json: Json = False,
) -> None:
    """Every golden with its kind, the number of runs behind it, and when it was promoted.

    Exits 6 when a file cannot be read; the others are listed.
    """
    from harness.errors import ExitCode
    from harness.records import golden_retired, goldens
    from harness.report import json
    from harness.report.golden_terminal import print_goldens

    folder = goldens.golden_dir(golden_dir)
    found, unread = golden_retired.list_retired(folder) if retired else goldens.list_goldens(folder)
    if as_json:
        print(json.text(json.goldens_document(found, unread)))
    else:
        print_goldens(_console(), found, folder, retired=retired, unread=unread)
    if unread:
        raise typer.Exit(int(ExitCode.INCONCLUSIVE))


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


@app.command()
def diff(
    before: Annotated[str, typer.Argument(metavar="BEFORE", help="A golden (file or name), a run, or REVISION:NAME.")],
    after: Annotated[str, typer.Argument(metavar="AFTER", help="Likewise.")],
    markdown: Annotated[
        str | None, typer.Option("--markdown", metavar="FILE", help="As Markdown for a pull request; - is stdout.")
    ] = None,
    golden_dir: GoldenDir = None,
    results_dir: Results = None,
    as_json: Json = False,
) -> None:
    """What is not the same in two goldens: values, settings, machine and software.

    REVISION:NAME is the golden as git has it there, e.g. HEAD~1:h100/llama3_70b.sft.fp8_cs.32gpu.core_attn.
    """
    from harness.cli.markdown_file import leave_markdown
    from harness.errors import BadRequestError
    from harness.recipes.problems import Problems
    from harness.report import golden_json, golden_markdown, json
    from harness.report.golden_terminal import print_difference
    from harness.runner.references import named

    if as_json and markdown == "-":
        raise BadRequestError("--json and --markdown - both want stdout", remedy="name a file for one of them")
    problems, found = Problems(), []
    for reference in (before, after):
        with problems.collecting():
            found.append(named(reference, results_dir, golden_dir))
    problems.raise_if_any()
    first, second = found
    sides = first.side(second.spec), second.side(first.spec)
    if markdown:
        leave_markdown(markdown, golden_markdown.difference_markdown(*sides))
    if as_json:
        print(json.text(golden_json.difference_document(*sides)))
    elif markdown != "-":
        print_difference(_console(), *sides)


@app.command()
def retire(
    name: Annotated[str, typer.Argument(help="A golden file, or its name as `golden list` prints it.")],
    reason: Annotated[str, typer.Option("--reason", help="Why nothing is to be compared with it any more.")],
    author: Annotated[str | None, typer.Option("--author", help="Default: git's user.name, else the OS user.")] = None,
    golden_dir: GoldenDir = None,
    as_json: Json = False,
) -> None:
    """Take a golden out of force: it moves to the folder `retired`, and runs of its settings have none."""
    from datetime import UTC, datetime

    from harness.cli.golden_author import author_or_default
    from harness.records import golden_retired
    from harness.records.goldens import named_golden, read_golden, writable_golden_dir
    from harness.report import golden_json, json
    from harness.report.printing import print_lines

    folder = writable_golden_dir(golden_dir)
    path, golden = named_golden(name, folder)
    now, who = datetime.now(UTC), author_or_default(author)
    target = golden_retired.retire(folder, path, golden, reason=reason, author=who, now=now)
    if as_json:
        print(json.text(golden_json.retired_document(target, read_golden(target), path)))
    else:
        print_lines(_console(), [f"Retired: {path}", f"It lies at {target} now. It counts once both are committed."])


def _console() -> "Console":
    from harness.report.console import Console

    return Console(highlight=False)
