"""What `mbr-perf import` asks of a request before it reads a whole log."""

import pytest

from tests.imports.logs import bridge_log

SIZE = (
    "  num_layers ...................................... {}\n  hidden_size ..................................... 8192\n"
)


@pytest.mark.parametrize(
    ("head", "options", "command"),
    [
        (SIZE.format(80), ("-g", "h100"), "-g h100 -mr llama3_70b"),
        (SIZE.format(33), (), "-mr RECIPE -g GPU"),
        ("", (), "-mr RECIPE -g GPU"),
    ],
)
def test_an_import_without_a_recipe_quotes_the_command_with_the_recipe_of_the_same_size(
    mbr_perf, tmp_path, head, options, command
):
    log = tmp_path / "run.log"
    log.write_text(head + bridge_log([700.0] * 4))
    answer = mbr_perf("import", "--log", log, *options)
    lines = answer.err.splitlines()
    assert (answer.code, lines[1:]) == (
        2, ["  copy one of these commands:", f"  mbr-perf import --log {log} {command}"],
    )  # fmt: skip
    assert lines[0].startswith("error: a log does not contain its recipe")
