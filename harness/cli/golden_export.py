"""`mbr-perf golden export`: golden values for the tools of others."""

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.option_types import GoldenDir, Results


def export(
    name: Annotated[str, typer.Argument(help="A golden (file, or name as `golden list` prints it), or a run.")],
    form: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="bridge: Megatron-Bridge's golden JSON.")
    ] = "bridge",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write it there. Default: stdout.")
    ] = None,
    golden_dir: GoldenDir = None,
    results_dir: Results = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document on stdout, with what to know about it.")
    ] = False,
) -> None:
    """Write a golden, or a run, as golden values of Megatron-Bridge.

    A run has its steps and losses; a golden has medians only, which every step then carries.
    """
    import sys

    from harness.errors import BadRequestError
    from harness.report import json
    from harness.runner.golden_exporting import export_bridge, write_export

    if form != "bridge":
        raise BadRequestError(f"--format {form!r}: no such format", remedy="--format bridge")
    exported = export_bridge(name, results_dir, golden_dir)
    if output is not None:
        write_export(output, exported)
    if as_json:
        print(json.text({
            "schema_version": json.SCHEMA_VERSION, "format": form, "path": None if output is None else str(output),
            "document": exported.document, "notes": list(exported.notes),
        }))  # fmt: skip
        return
    for note in exported.notes:
        print(f"note: {note}", file=sys.stderr)
    print(f"Written: {output}" if output is not None else exported.text, end="\n" if output is not None else "")
