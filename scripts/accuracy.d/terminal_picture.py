"""Draws the answer of the README's `plan` command as a terminal shows it."""

import io
import re
import shlex
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from harness.launch.environment import this_host
from harness.records.store import write_atomically

NAME, _WIDTH = "plan.svg", 100
_ROOT = Path(__file__).parents[2]
# Grey on black for texts, and colours with a contrast of 4.5 on it.
_THEME = TerminalTheme((20, 23, 27), (227, 231, 236), [(57, 65, 75), (255, 130, 110), (110, 200, 140), (240, 215, 90),
                       (108, 192, 245), (215, 160, 235), (110, 215, 220), (227, 231, 236)])  # fmt: skip
_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def readme_command() -> str:
    """Return the first `mbr-perf plan ...` whose output the README shows."""
    readme = (_ROOT / "README.md").read_text()
    found = re.search(r"^\$ (mbr-perf plan .*)$", readme, re.MULTILINE)
    assert found
    return found[1]


def write(folder: Path) -> Path:
    """Run the command and draw its answer into ``folder``. CalledProcessError where it fails."""
    command = readme_command()
    environment = {**this_host().shell, "FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": str(_WIDTH)}
    arguments = [sys.executable, "-m", "harness.app", *shlex.split(command)[1:]]
    printed = subprocess.run(arguments, env=environment, cwd=_ROOT, stdout=subprocess.PIPE, text=True, check=True)
    console = Console(record=True, file=io.StringIO(), width=_WIDTH, force_terminal=True)
    console.print(Text.from_ansi(printed.stdout.rstrip()))
    drawn = console.export_svg(title=command, theme=_THEME, unique_id="plan")
    write_atomically(folder / NAME, _FONT.sub("", drawn))  # a picture fetches nothing
    return folder / NAME
