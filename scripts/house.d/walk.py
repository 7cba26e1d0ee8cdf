"""How many files, and lines of files, a person must open to follow one command; how many options a command has."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

_LLAMA = ("-m", "llama", "-mr", "llama3_8b", "-g", "cpu")
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "run_dryrun": ("run", *_LLAMA, "--recompute_modules", "mlp", "--dryrun"),
    "sweep_dryrun": ("sweep", *_LLAMA, "--over", "recompute=none; mlp", "--dryrun"),
    "nightly_dryrun": ("nightly", "cpu_smoke", "--dryrun"),
    "check": ("check", "-m", "llama", "-mr", "llama3_8b", "-g", "h100", "-c", "bf16", "--recompute_modules", "mlp"),
    "plan": ("plan", "-m", "llama", "-mr", "llama3_70b", "--task", "sft", "-g", "h100", "-c", "fp8_cs", "-ng", "32"),
    "diagnose": ("diagnose", "tests/data/logs/torchrun_oom.log", "-mr", "llama3_8b", "-g", "h100", "-c", "bf16"),
}
# Notes each file of the package in which a function is called; what runs while a module is imported does not count.
_WALK = """
import contextlib, importlib, io, json, pathlib, sys
import harness
app = importlib.import_module("harness.app")
inside, entered, importing = harness.__path__[0], set(), 0
def follow(frame, event, _):
    global importing
    code = frame.f_code
    if code.co_name == "<module>":
        importing += (event == "call") - (event == "return")
    elif event == "call" and not importing and code.co_flags & 1 and code.co_filename.startswith(inside):
        entered.add(code.co_filename)
code = 1
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    sys.setprofile(follow)
    try:
        code = app.main(json.loads(sys.argv[1]))
    except SystemExit as ended:
        code = ended.code
    sys.setprofile(None)
lines = sum(len(pathlib.Path(path).read_text().splitlines()) for path in entered)
print(json.dumps([code or 0, len(entered), lines]))
"""
_OPTIONS = """
import json, typer.main
from harness.app import app
commands = typer.main.get_command(app).commands
print(json.dumps({name: sum(each.param_type_name == "option" for each in command.params)
                  for name, command in commands.items()}))
"""


def walked(command: tuple[str, ...]) -> tuple[int, int]:
    """Files in which the command calls a function, and their lines. RuntimeError if it fails."""
    code, files, lines = _answer(_WALK, json.dumps(command))
    if code:
        raise RuntimeError(f"{' '.join(command)}: exit {code}")
    return files, lines


def options() -> dict[str, int]:
    """Options of each command, those in no help included."""
    counted: dict[str, int] = _answer(_OPTIONS)
    return counted


def _answer(program: str, *arguments: str) -> Any:
    with tempfile.TemporaryDirectory() as cache:  # traces kept by an earlier command would shorten the walk
        environment = {**os.environ, "XDG_CACHE_HOME": cache}
        done = subprocess.run(
            (sys.executable, "-c", program, *arguments), check=True, capture_output=True, text=True, env=environment
        )
    return json.loads(done.stdout)
