"""Programs on torch and megatron-core without their imports: forked from one process that has both, as warm launches are.

Only for programs that start as ranks on the processor do. One whose subject is the start has a process of its own.
"""

import atexit
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from functools import cache, partial
from pathlib import Path

from harness.engine.process import run_and_end
from harness.engine.warm_parent import import_everything

ROOT = Path(__file__).parents[2]
SETTINGS = {"OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1", "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
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


def run_forked(*arguments, folder=ROOT, num_ranks=1, **environment):
    """A program as ``run_python`` runs it, or a module after ``-m``, to the end of all its ranks."""
    parent = _parent()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    ranks = [
        ALONE | {"RANK": str(i), "LOCAL_RANK": str(i), "WORLD_SIZE": str(num_ranks), "MASTER_PORT": port}
        for i in range(num_ranks)
    ]
    with tempfile.TemporaryDirectory() as name:
        outputs = [Path(name) / "stdout", Path(name) / "stderr"]
        asked = {"arguments": [*map(str, arguments)], "folder": str(folder),
                 "environments": [os.environ | SETTINGS | rank | environment for rank in ranks], "outputs": [*map(str, outputs)]}  # fmt: skip
        parent.stdin.write(json.dumps(asked) + "\n")
        parent.stdin.flush()
        code = int(parent.stdout.readline())
        return subprocess.CompletedProcess(asked["arguments"], code, *(path.read_text() for path in outputs))


def _serve():
    changed = import_everything("cpu")
    for line in sys.stdin:
        asked = json.loads(line)
        children = []
        for environment in asked["environments"]:
            child = os.fork()
            if child == 0:
                run_and_end(partial(_be, asked, environment | changed))
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        sys.stdout.write(f"{next(filter(None, codes), 0)}\n")
        sys.stdout.flush()


def _be(asked, environment):
    signal.alarm(TIMEOUT_S)
    for number, path in enumerate((os.devnull, *asked["outputs"])):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND), number)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(environment)
    kind, *sys.argv = asked["arguments"]
    paths = environment["PYTHONPATH"].split(":")
    if kind == "-m":
        sys.path[:0] = [asked["folder"], *paths]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv.insert(0, kind)
        sys.path[:0] = [str(Path(kind).resolve().parent), *paths]
        runpy.run_path(kind, run_name="__main__")


if __name__ == "__main__":
    _serve()
