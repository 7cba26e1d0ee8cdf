"""The commands `doctor` and `results`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli import completion
from harness.cli.commands import App
from harness.cli.options import Json, Results
from harness.units import counted

if TYPE_CHECKING:
    from harness.show.page import Page


def machine(results_dir: Results = None, as_json: Json = False) -> None:
    """Check this machine: software, GPUs, compiler, results folder, shared memory, clock, port.

    Exit codes: 0 all is well, 6 warnings, 2 problems.
    """
    from harness.launch.environment import this_host
    from harness.records import folders
    from harness.results.examine import examine, exit_code

    lines = examine(this_host(), folders.results_dir(results_dir))
    code = int(exit_code(lines))
    if as_json:
        from harness.results.examine import MachineDocument
        from harness.show import json

        json.answer(MachineDocument(lines=lines, exit_code=code))
    else:
        from harness.results.examine import machine_page
        from harness.show.terminal import show_page

        show_page(machine_page(lines))
    raise typer.Exit(code)


app = App(no_args_is_help=True, help="Runs, sweeps and nights on disk: list, show, check, archive them.")

Reference = Annotated[
    str,
    typer.Argument(
        metavar="REF", autocompletion=completion.stored, help="A folder, or the start or last eight digits of an id."
    ),
]


@app.command("list")
def list_results(results_dir: Results = None, as_json: Json = False) -> None:
    """List every run, sweep and night with id, start, outcome and size, also incomplete and damaged ones."""
    from functools import partial

    from harness.records import folders
    from harness.records.inventory import inventory
    from harness.results.show import InventoryDocument, inventory_page, observed
    from harness.show import json
    from harness.show.progress import counted_off
    from harness.show.terminal import narration

    results = folders.results_dir(results_dir)
    entries = [observed(entry) for entry in inventory(results, partial(counted_off, narration(), "Reading results"))]
    if as_json:
        json.answer(InventoryDocument.of(results_dir=results, entries=entries))
    else:
        _show(inventory_page(entries, results))


@app.command()
def show(reference: Reference, results_dir: Results = None, as_json: Json = False) -> None:
    """Show a run, sweep or night: its outcome, its metrics or its process, and its files, cells or cases."""
    from harness.records import folders
    from harness.records.inventory import find_stored
    from harness.records.store import MEND_RECORD, read_run
    from harness.results.show import entry_document, entry_page, observed, run_figures
    from harness.show import json

    entry = observed(find_stored(reference, folders.results_dir(results_dir)))
    document = entry_document(entry)
    if as_json:
        json.answer(document)
        return
    facts = [("Process", f"{document.process.state}: {document.process.reason}")] if document.process else []
    if entry.state in ("damaged", "rejected"):
        facts = [("To do", MEND_RECORD)]
    if entry.kind == "run" and entry.is_committed:
        facts = run_figures(read_run(entry.path))
    _show(entry_page(document, facts))


@app.command()
def doctor(results_dir: Results = None, as_json: Json = False) -> None:
    """Find problems: runs without a record, damaged records, incomplete files, files that mbr-perf did not write.

    Exits 0 without problems, else 6. Ignores folders that a running process is filling. Changes nothing.
    """
    from harness.errors import ExitCode
    from harness.records import folders
    from harness.results.housekeeping import AilmentsDocument, examine_results
    from harness.results.show import ailments_page
    from harness.show import json

    results = folders.results_dir(results_dir)
    found = examine_results(results)
    code = ExitCode.INCONCLUSIVE if found else ExitCode.OK
    if as_json:
        json.answer(AilmentsDocument(results_dir=results, ailments=found, exit_code=code))
    else:
        _show(ailments_page(found, results))
    raise typer.Exit(int(code))


@app.command()
def archive(
    reference: Reference,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="A new file, *.tar.gz.")],
    max_mib: Annotated[int, typer.Option("--max_mib", metavar="MIB", min=1, help="Refuse larger folders.")] = 200,
    results_dir: Results = None,
    as_json: Json = False,
) -> None:
    """Pack a run, sweep or night into a file that you can send, without secrets and home folders.

    The same folder gives the same bytes. Refuses links that lead out of the folder, and runs that have not ended.
    """
    from harness.results.archive import archive_stored
    from harness.show import json
    from harness.show.page import Page, listing
    from harness.units import MIB, format_bytes

    written = archive_stored(reference, output, results_dir, max_bytes=max_mib * MIB)
    if as_json:
        json.answer(written)
        return
    text = f"{written.path}: {counted(written.files, 'file')}, {format_bytes(written.bytes)}"
    _show(Page((text, listing(f"left out: {line}" for line in written.left_out))))


def _show(page: "Page") -> None:
    from harness.show.terminal import show_page

    show_page(page)
