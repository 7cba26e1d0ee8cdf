"""Options that take any number of values."""

import pytest

from harness.cli.commands import spread

MANY = {"--exact": "recommended", "--calibrate": None, "--over": None}


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("--exact none mlp -g h100", "--exact none --exact mlp -g h100"),
        ("-g h100 --exact", "-g h100 --exact recommended"),
        ("--exact --json", "--exact recommended --json"),
        ("--exact none --exact mlp", "--exact none --exact mlp"),
        ("--exact=mlp -g h100", "--exact=mlp -g h100"),
        ("--calibrate a b --json", "--calibrate a --calibrate b --json"),
        ("--calibrate", "--calibrate"),
        ("--over tp=2,4 pp=4,8 -ng 32", "--over tp=2,4 --over pp=4,8 -ng 32"),
        ("-mr llama3_8b stray", "-mr llama3_8b stray"),
    ],
)
def test_every_value_gets_its_option(typed, read):
    assert spread(typed.split(), MANY) == read.split()
