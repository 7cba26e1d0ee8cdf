"""Dataclasses become options, and options become dataclasses again."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from harness.cli.commands import WholeShortOptions, takes


@dataclass(frozen=True, kw_only=True)
class What:
    """What to do."""

    name: Annotated[str, typer.Option("--name", "-nm", help="A name.")]
    folder: Annotated[Path | None, typer.Option("--folder", "-f", help="A folder.")] = None


@pytest.fixture
def command():
    """An app of one command, and the values that it received."""
    received = []

    @takes(What)
    def greet(what: What) -> None:
        """Greet somebody."""
        received.append(what)

    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command(cls=WholeShortOptions)(greet)
    return app, received


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["-nn", "a"], "-nn (did you mean -nm?)"),
        (["-nm", "a", "-fthere"], "-fthere (write the value apart: -f there)"),
        (["-nm", "a", "-zq"], "-zq (short options: -nm, -f)"),
    ],
)
def test_a_slip_in_a_short_option_is_an_error_and_no_value(command, typed, expected):
    app, received = command
    done = CliRunner().invoke(app, typed)
    assert done.exit_code == 2
    assert "Error: " in done.output and expected in done.output
    assert received == []
