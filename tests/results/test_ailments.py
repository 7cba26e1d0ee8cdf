"""What is out of order in a results folder, in lines."""

import io
from pathlib import Path

from rich.console import Console

from harness.results.show import print_ailments


def test_a_hint_that_is_in_the_message_too_is_printed_once_and_in_line():
    out = io.StringIO()
    hint = "read it with the mbr-perf that wrote it, or upgrade"
    found = [("newer", Path("sweeps/a"), f"sweep.json: schema_version 9 is newer\n  {hint}", hint)]
    print_ailments(Console(file=out, width=200), found, Path("results"))
    first, *more = out.getvalue().splitlines()
    assert first.split() == ["newer", "sweeps/a"]
    indent = first.index("sweeps/a") * " "
    assert more == [f"{indent}sweep.json: schema_version 9 is newer", f"{indent}{hint}"]
