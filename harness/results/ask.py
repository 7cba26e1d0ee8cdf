"""The commands `doctor` and `results`."""

from pathlib import Path
from typing import Annotated

import typer

from harness.cli import completion
from harness.cli.commands import App
from harness.cli.options import Json, Results
from harness.show.answer import answer
from harness.units import counted


def machine(results_dir: Results = None, as_json: Json = False) -> None:
    """Check this machine: software, GPUs, compiler, results folder, shared memory.

    Exit codes: 0 all is well, 6 warnings, 2 problems.
    """
    from harness.launch.environment import this_host
    from harness.records import folders
    from harness.results.examine import MachineDocument, examine, exit_code, machine_page

    lines = examine(this_host(), folders.results_dir(results_dir))
    code = int(exit_code(lines))
    answer(lambda: MachineDocument(lines=lines, exit_code=code), lambda: machine_page(lines), as_json=as_json)
    raise typer.Exit(code)


app = App(no_args_is_help=True, help="Runs, sweeps, nights and bisects on disk: list, show, archive them.")

Reference = Annotated[
    str,
    typer.Argument(
        metavar="REF", autocompletion=completion.stored, help="A folder, or the start or last eight digits of an id."
    ),
]


@app.command("list")
def list_results(results_dir: Results = None, as_json: Json = False) -> None:
    """List all runs, sweeps, nights and bisects with id, start, outcome and size, also incomplete and damaged ones."""
    from functools import partial

    from harness.records import folders
    from harness.records.inventory import inventory
    from harness.results.show import InventoryDocument, inventory_page, observed
    from harness.show.progress import counted_off
    from harness.show.terminal import narration

    results = folders.results_dir(results_dir)
    entries = [observed(entry) for entry in inventory(results, partial(counted_off, narration(), "Reading results"))]
    document = InventoryDocument.of(results_dir=results, entries=entries)
    answer(lambda: document, lambda: inventory_page(entries, results), as_json=as_json)


@app.command()
def show(reference: Reference, results_dir: Results = None, as_json: Json = False) -> None:
    """Show one of them: its outcome, its metrics or its process, and its files, cells or cases."""
    from harness.records import folders
    from harness.records.inventory import find_stored
    from harness.records.store import MEND_RECORD, read_run
    from harness.results.show import entry_document, entry_page, observed, run_figures

    entry = observed(find_stored(reference, folders.results_dir(results_dir)))
    document = entry_document(entry)
    facts = [("Process", f"{document.process.state}: {document.process.reason}")] if document.process else []
    if entry.state == "damaged":
        facts = [("To do", MEND_RECORD)]
    if entry.kind == "run" and entry.is_committed:
        facts = run_figures(read_run(entry.path))
    answer(lambda: document, lambda: entry_page(document, facts), as_json=as_json)


@app.command()
def archive(
    reference: Reference,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="A new file, *.tar.gz.")],
    results_dir: Results = None,
    as_json: Json = False,
) -> None:
    """Pack one of them into a file, without secrets and home folders.

    The same folder gives the same bytes. Refuses runs that have not ended.
    """
    from harness.results.archive import archive_stored
    from harness.show.page import Page, listing
    from harness.units import format_bytes

    written = archive_stored(reference, output, results_dir)
    text = f"{written.path}: {counted(written.files, 'file')}, {format_bytes(written.bytes)}"
    left_out = listing(f"left out: {line}" for line in written.left_out)
    answer(lambda: written, lambda: Page((text, left_out)), as_json=as_json)
