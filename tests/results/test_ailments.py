"""The lines of `results doctor`."""

from pathlib import Path

from harness.results.show import ailments_page
from tests.commands import piped


def test_a_remedy_that_is_also_in_the_message_is_printed_once():
    hint = "read it with the mbr-perf that wrote it, or upgrade"
    found = [("newer", Path("sweeps/a"), f"sweep.json: schema_version 9 is newer\n  {hint}", hint)]
    first, *more = piped(ailments_page(found, Path("results")))
    assert first.split() == ["newer", "sweeps/a"]
    indent = first.index("sweeps/a") * " "
    assert more == [f"{indent}sweep.json: schema_version 9 is newer", f"{indent}{hint}"]
