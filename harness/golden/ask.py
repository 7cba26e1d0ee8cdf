"""The `golden` command: list, show, export."""

from pathlib import Path
from typing import Annotated

import typer

from harness.cli import completion
from harness.cli.commands import App
from harness.cli.options import GoldenDir, Json, Results
from harness.golden.promote import promote
from harness.show.answer import answer


def export(
    name: Annotated[str, typer.Argument(metavar="NAME", autocompletion=completion.runs_and_goldens,
        help="A golden (file, or name as `golden list` prints it), or a run.")],
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE",
        help="Write to this file. Default: stdout.")] = None,
    golden_dir: GoldenDir = None,
    results_dir: Results = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout, with notes.")] = False,
) -> None:  # fmt: skip
    """Write a golden, or a run, as golden values of Megatron-Bridge.

    The export of a run has its steps and losses. A golden has medians only, so every exported step carries the median.
    """
    from harness.golden.export import export_bridge, write_export
    from harness.show import json
    from harness.show.page import Code, Line
    from harness.show.terminal import narrate, show_blocks

    exported = export_bridge(name, results_dir, golden_dir)
    if output is not None:
        write_export(output, exported)
    if as_json:
        json.answer(exported.model_copy(update={"path": output}))
        return
    for note in exported.notes:
        narrate(f"note: {note}")
    show_blocks(Line(f"Written: {output}", whole=True) if output else Code(exported.text.rstrip()))


app = App(no_args_is_help=True, help="Golden values: promote runs to them, list, show and export them.")


Name = Annotated[str, typer.Argument(metavar="NAME", autocompletion=completion.goldens,
    help="A golden file, or its name as `golden list` prints it.")]  # fmt: skip
app.command("promote")(promote)
app.command("export", is_plain=True)(export)


@app.command("list")
def list_goldens(
    golden_dir: GoldenDir = None,
    as_json: Json = False,
) -> None:
    """List every golden with its kind, its number of runs, and the time of its promotion.

    Exits 6 if a file cannot be read; still lists the others.
    """
    from harness.errors import ExitCode
    from harness.golden.show import GoldensDocument, goldens_page
    from harness.records import folders, goldens

    goldens.require_golden_dir(golden_dir)
    folder = folders.golden_dir(golden_dir)
    found, unread = goldens.list_goldens(folder)
    rows = [{"path": path, "golden": golden} for path, golden in found.items()]
    damaged = [{"path": path, "message": error.message} for path, error in unread.items()]
    answer(
        lambda: GoldensDocument.of(goldens=rows, damaged=damaged),
        lambda: goldens_page(found, folder, unread=unread),
        as_json=as_json,
    )
    if unread:
        raise typer.Exit(int(ExitCode.INCONCLUSIVE))


@app.command()
def show(name: Name, golden_dir: GoldenDir = None, as_json: Json = False) -> None:
    """Show a golden: its values, where they were measured, who promoted them and why."""
    from harness.golden.show import GoldenDocument, golden_page
    from harness.records.goldens import named_golden

    path, golden = named_golden(name, golden_dir)
    answer(lambda: GoldenDocument(path=path, golden=golden), lambda: golden_page(path, golden), as_json=as_json)
