"""The commands `doctor` and `results`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli import completion
from harness.cli.help import App
from harness.cli.options import Json, Results
from harness.units import counted

if TYPE_CHECKING:
    from harness.show.page import Page


def machine(
    results_dir: Results = None,
    as_json: Json = False,
) -> None:
    """Check this machine: software, GPUs, compiler, results folder, shared memory, clock, port.

    Exit codes: 0 all is well, 6 warnings, 2 problems.
    """
    from harness.launch.environment import this_host
    from harness.records import folders
    from harness.results.examine import examine, exit_code

    lines = examine(this_host(), folders.results_dir(results_dir))
    code = int(exit_code(lines))
    if as_json:
        from harness.results.document import MachineDocument
        from harness.show import json

        json.answer(MachineDocument(lines=lines, exit_code=code))
    else:
        from harness.results.examine import machine_page
        from harness.show.terminal import show_page

        show_page(machine_page(lines))
    raise typer.Exit(code)


app = App(no_args_is_help=True, help="Runs, sweeps and nights on disk: list, show, check, archive, export them.")

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
    from harness.results.show import inventory_page, observed
    from harness.show.progress import counted_off
    from harness.show.terminal import narration

    results = folders.results_dir(results_dir)
    entries = [observed(entry) for entry in inventory(results, partial(counted_off, narration(), "Reading results"))]
    if as_json:
        from harness.results.document import InventoryDocument
        from harness.show import json

        json.answer(InventoryDocument.of(results_dir=results, entries=entries))
    else:
        _show(inventory_page(entries, results))


@app.command()
def show(reference: Reference, results_dir: Results = None, as_json: Json = False) -> None:
    """Show a run, sweep or night: its outcome, its metrics or its process, and its files, cells or cases."""
    from harness.launch.processes import life_of
    from harness.records import folders
    from harness.records.inventory import file_sizes, find_stored
    from harness.records.night import read_night
    from harness.records.store import MEND_RECORD, read_run
    from harness.records.sweep import read_sweep
    from harness.results.show import entry_page, observed, run_figures

    entry = observed(find_stored(reference, folders.results_dir(results_dir)))
    life, files = life_of(entry.path), file_sizes(entry.path)
    is_read = entry.state in ("finished", "running", "unfinished")
    cells = read_sweep(entry.path).cells if is_read and entry.kind == "sweep" else ()
    cases = read_night(entry.path).cases if is_read and entry.kind == "night" else ()
    if as_json:
        from harness.results.document import entry_document
        from harness.show import json

        json.answer(entry_document(entry, life, files, cells, cases))
        return
    facts = [] if entry.is_committed else [("Process", f"{life.state}: {life.reason}")]
    if entry.state in ("damaged", "newer", "rejected"):
        facts = [("To do", MEND_RECORD)]
    if entry.kind == "run" and entry.is_committed:
        facts = run_figures(read_run(entry.path))
    _show(entry_page(entry, facts, files, cells, cases))


@app.command()
def doctor(
    results_dir: Results = None,
    fix: Annotated[bool, typer.Option("--fix", help="Move unneeded files to results/trash. Deletes nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Find problems: runs without a record, damaged records, incomplete files, files that mbr-perf did not write.

    Exits 0 without problems, else 6. Ignores folders that a running process is filling.
    """
    from harness.errors import ExitCode
    from harness.records import folders
    from harness.results.housekeeping import examine_results, move_to_trash
    from harness.results.show import ailments_page

    results = folders.results_dir(results_dir)
    found = examine_results(results)
    if fix:
        found = move_to_trash(found, results)
    left = [ailment for ailment in found if ailment.moved_to is None]
    code = ExitCode.INCONCLUSIVE if left else ExitCode.OK
    if as_json:
        from harness.results.document import AilmentsDocument
        from harness.show import json

        json.answer(AilmentsDocument.of(results_dir=results, ailments=found, exit_code=code))
    else:
        rows = [(row.kind, row.path, row.message, f"moved to {row.moved_to}" if row.moved_to else row.remedy)
                for row in found]  # fmt: skip
        _show(ailments_page(rows, results))
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
    from harness.results.show import archive_stored
    from harness.show.page import Page, listing
    from harness.units import MIB, format_bytes

    written = archive_stored(reference, output, results_dir, max_bytes=max_mib * MIB)
    if as_json:
        from harness.results.document import ArchiveDocument
        from harness.show import json

        json.answer(ArchiveDocument.of(written))
        return
    text = f"{written.path}: {counted(written.num_files, 'file')}, {format_bytes(written.num_bytes)}"
    _show(Page((text, listing(f"left out: {line}" for line in written.left_out))))


@app.command()
def export(
    reference: Reference,
    to: Annotated[str, typer.Option("--to", metavar="mlflow|wandb", help="Destination: MLflow or Weights & Biases.")],
    project: Annotated[
        str, typer.Option("--project", metavar="NAME", help="Name of the project (in MLflow: the experiment).")
    ] = "mbr-perf",
    uri: Annotated[
        str | None,
        typer.Option("--uri", metavar="URI", help="MLflow's tracking server or store. Default: MLFLOW_TRACKING_URI."),
    ] = None,
    results_dir: Results = None,
    as_json: Json = False,
) -> None:
    """Send the runs of a run, sweep or night to MLflow or Weights & Biases: settings, metrics, steps. No secrets.

    A run that is already there stays in MLflow; Weights & Biases replaces it. Needs mbr-perf[export].
    """
    from harness.records import folders
    from harness.records.inventory import find_stored
    from harness.results.export import export as send
    from harness.results.export import exported_runs, summary
    from harness.results.show import places_of
    from harness.show.page import Page

    folder = folders.results_dir(results_dir)
    entry = find_stored(reference, folder)
    sent = send(exported_runs(entry, places_of(entry, folder)), to, project=project, uri=uri)
    if as_json:
        from harness.results.document import ExportDocument
        from harness.show import json

        json.answer(ExportDocument(to=to, project=project, runs=sent))
        return
    _show(Page((summary(sent, to, project),)))


def _show(page: "Page") -> None:
    from harness.show.terminal import show_page

    show_page(page)
