"""How many files of the package a person must open to follow one command."""

import json
import subprocess
import sys
from collections.abc import Mapping

COMMANDS: Mapping[str, tuple[str, ...]] = {
    "run_dryrun": ("run", "-m", "llama", "-mr", "llama3_8b", "--recompute_modules", "core_attn,layernorm", "--dryrun"),
    "check": ("check", "-m", "llama", "-mr", "llama3_8b", "-g", "cpu", "--recompute_modules", "core_attn,layernorm"),
}
# Notes each file of the package in which a function is called; what runs while a module is imported does not count.
_WALK = """
import contextlib, importlib, io, json, sys
import harness
app = importlib.import_module(sys.argv[1])
inside, entered, importing = harness.__path__[0], set(), 0
def follow(frame, event, _):
    global importing
    code = frame.f_code
    if code.co_name == "<module>":
        importing += (event == "call") - (event == "return")
    elif event == "call" and not importing and code.co_flags & 1 and code.co_filename.startswith(inside):
        entered.add(code.co_filename)
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    sys.setprofile(follow)
    try:
        app.main(json.loads(sys.argv[2]))
    except SystemExit:
        pass
    sys.setprofile(None)
print(len(entered))
"""


def files_entered(command: tuple[str, ...]) -> int:
    """Files in which the command calls a function."""
    words = (sys.executable, "-c", _WALK, "harness.app", json.dumps(command))
    return int(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
