"""Programs on torch and megatron-core without their imports: forked from one process that has both, as warm launches are.

Only for programs that start as ranks on the processor do. One whose subject is the start has a process of its own.
"""

import atexit
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from functools import cache, partial
from pathlib import Path

from harness.engine.process import run_and_end
from harness.engine.warm_parent import import_everything

ROOT = Path(__file__).parents[2]
SETTINGS = {"OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1", "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
TIMEOUT_S = 600


@cache
def _parent():
    """The process that forks. It ends with the tests."""
    command = (sys.executable, "-m", "tests.engine.prepared")
    parent = subprocess.Popen(
        command, env=os.environ | SETTINGS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(parent.communicate)
    return parent


def run_forked(*arguments, folder=ROOT, **environment):
    """A program as ``run_python`` runs it, or a module after ``-m``, to its end."""
    parent = _parent()
    with tempfile.TemporaryDirectory() as name:
        outputs = [Path(name) / "stdout", Path(name) / "stderr"]
        asked = {"arguments": [*map(str, arguments)], "folder": str(folder),
                 "environment": os.environ | SETTINGS | environment, "outputs": [*map(str, outputs)]}  # fmt: skip
        parent.stdin.write(json.dumps(asked) + "\n")
        parent.stdin.flush()
        code = int(parent.stdout.readline())
        return subprocess.CompletedProcess(asked["arguments"], code, *(path.read_text() for path in outputs))


def _serve():
    changed = import_everything("cpu")
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            run_and_end(partial(_be, json.loads(line), changed))
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        sys.stdout.flush()


def _be(asked, changed):
    signal.alarm(TIMEOUT_S)
    for number, path in enumerate((os.devnull, *asked["outputs"])):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), number)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"] | changed)
    kind, *sys.argv = asked["arguments"]
    paths = asked["environment"].get("PYTHONPATH", "").split(":")
    if kind == "-m":
        sys.path[:0] = [asked["folder"], *paths]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv.insert(0, kind)
        sys.path[:0] = [str(Path(kind).resolve().parent), *paths]
        runpy.run_path(kind, run_name="__main__")


if __name__ == "__main__":
    _serve()
