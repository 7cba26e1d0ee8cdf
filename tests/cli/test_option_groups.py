"""Dataclasses become options, and options become dataclasses again."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from harness.cli.commands import WholeShortOptions, takes
from harness.errors import BadRequestError


@dataclass(frozen=True, kw_only=True)
class What:
    """What to do."""

    name: Annotated[str, typer.Option("--name", "-nm", help="A name.")]
    folder: Annotated[Path | None, typer.Option("--folder", "-f", help="A folder.")] = None


@dataclass(frozen=True, kw_only=True)
class How:
    """How to do it."""

    times: Annotated[int, typer.Option("--times", help="How often.")] = 1
    tags: Annotated[list[str] | None, typer.Option("--tag", help="Repeatable.")] = None


@pytest.fixture
def command():
    """An app of one command, and the values that it received."""
    received = []

    @takes(What, How)
    def greet(what: What, how: How) -> None:
        """Greet somebody."""
        received.append((what, how))

    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command(cls=WholeShortOptions)(greet)
    return app, received


def test_a_command_receives_whole_values(command):
    app, received = command
    done = CliRunner().invoke(app, ["-nm", "a", "--times", "3", "--tag", "x", "--tag", "y", "-f", "there"])
    assert done.exit_code == 0
    assert received == [(What(name="a", folder=Path("there")), How(times=3, tags=["x", "y"]))]


def test_a_field_without_a_default_is_a_required_option(command):
    app, received = command
    done = CliRunner().invoke(app, [])
    assert isinstance(done.exception, BadRequestError)
    assert done.exception.message == "Missing option '--name' / '-nm'."
    assert received == []


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
