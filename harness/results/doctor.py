"""`mbr-perf doctor`: whether this machine is fit to run."""

import typer

from harness.asking.options import Json, Results


def doctor(
    results_dir: Results = None,
    as_json: Json = False,
) -> None:
    """Examine this machine: software, GPUs, compiler, results folder, shared memory, clock, port.

    Exits 0 when all is well, 6 with warnings, 2 with problems.
    """
    from dataclasses import asdict

    from harness.launch.environment import this_host
    from harness.records.store import results_dir as settled_results_dir
    from harness.results.examine import examine, exit_code

    lines = examine(this_host(), settled_results_dir(results_dir))
    code = int(exit_code(lines))
    if as_json:
        from harness.showing import json

        document = {"schema_version": json.SCHEMA_VERSION, "lines": [asdict(line) for line in lines], "exit_code": code}
        print(json.text(document))
    else:
        from harness.results.examine import print_lines
        from harness.showing.printing import Console

        print_lines(Console(highlight=False), [(line.name, line.state, line.found, line.remedy) for line in lines])
    raise typer.Exit(code)
