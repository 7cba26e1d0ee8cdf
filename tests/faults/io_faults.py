"""One error of the operating system at the Nth call of an operation, for every N until the command passes without it.

`python -m tests.faults.io_faults NAME...` prints every fault of these commands that ends in a traceback, in exit 1, by a
signal, or in a torn JSON file. Without names it tries all commands.
"""

import builtins
import errno
import importlib
import io
import itertools
import json
import os
import pkgutil
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import harness
import harness.app

ROOT = Path(__file__).parents[2]
REPLAY, LOG = ROOT / "tests/data/replay", ROOT / "tests/data/logs"
OPERATIONS = {"replace": ("replace", "rename", "link"), "fsync": ("fsync",), "mkdir": ("mkdir",),
              "scandir": ("scandir", "listdir"), "stat": ("stat", "lstat"), "open": ("open",)}  # fmt: skip
ERRORS = (errno.EIO, errno.ESTALE, errno.EDQUOT, errno.EMFILE, errno.EACCES, errno.EROFS)
_REACHED = 99  # added to a file by the child that met the fault


def _replayed(command: str, folder: Path) -> tuple[str, ...]:
    asked = (command, "-mr", REPLAY / "replayed.yaml", "-g", "cpu", "--launcher", "replay", "--from", REPLAY / "ok")
    return (*map(str, asked), "--results_dir", str(folder / "results"))


def commands(base: Path, run: str) -> dict[str, Callable[[Path], tuple[str, ...]]]:
    """By name, the words of each command; ``base``: a folder with a results folder that has ``run``."""
    kept = ("--results_dir", str(base / "results"))
    return {
        "run": lambda folder: _replayed("run", folder),
        "sweep": lambda folder: (*_replayed("sweep", folder), "--over", "recompute=none;mlp"),
        "list": lambda _: ("results", "list", *kept),
        "show": lambda _: ("results", "show", run, *kept),
        "archive": lambda folder: ("results", "archive", run, "-o", str(folder / "a.tar.gz"), *kept),
        "report": lambda folder: ("report", str(ROOT / "tests/data/sweeps/cpu_oom"), "--out", str(folder / "report")),
        "history": lambda _: ("history", *kept),
        "history_add": lambda folder: ("history", "add", run, "--results_dir", str(folder / "results")),
        "compare": lambda _: ("compare", run, *kept),
        "explain": lambda _: ("explain", run, run, *kept),
        "diagnose": lambda _: ("diagnose", run, "--no_plan", *kept),
        "golden": lambda folder: ("golden", "promote", run, "--golden_dir", str(folder), "--reason", "new", *kept),
    }


def _child(words: tuple[str, ...], out: Path, before: Callable[[], None]) -> int:
    """Run the command in a fork and return its exit code, negative for a signal."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 97
    try:
        sink = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        for number in (1, 2):
            os.dup2(sink, number)
        sys.stdout = sys.__stdout__ = io.TextIOWrapper(io.FileIO(1, "w"), encoding="utf-8")
        sys.stderr = sys.__stderr__ = io.TextIOWrapper(io.FileIO(2, "w"), encoding="utf-8", write_through=True)
        sys.argv = ["mbr-perf", *words]
        before()
        try:
            harness.app.main(words)
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:  # noqa: BLE001 (the finding)
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
    finally:
        os._exit(code)


def _inject(operation: str, error: int, nth: int, below: Path, reached: Path) -> None:
    """Raise ``error`` at the nth call of the operation on a path below the folder."""
    seen = itertools.count(1)
    real_open = os.open

    def tick(path: object) -> None:
        name = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
        is_ours = name.startswith(str(below)) or (isinstance(path, int) and operation == "fsync")
        if is_ours and next(seen) == nth:
            os.close(real_open(reached, os.O_WRONLY | os.O_CREAT, 0o600))
            raise OSError(error, os.strerror(error), name or None)

    def ticking(real: Callable[..., object]) -> Callable[..., object]:
        def call(path: object, *more: object, **named: object) -> object:
            tick(path)
            return real(path, *more, **named)

        return call

    for name in OPERATIONS[operation]:
        setattr(os, name, ticking(getattr(os, name)))
    if operation == "open":
        io.open = builtins.open = ticking(io.open)  # type: ignore[assignment]


def faults(name: str, scratch: Path) -> Iterator[str]:
    """Yield what went wrong, after every fault of every operation of the command."""
    base = scratch / "base"
    words = _replayed("run", base)
    assert _child((*words, "--json"), scratch / "out", lambda: None) == 0, (scratch / "out").read_text()
    (run,) = (base / "results" / "runs").iterdir()
    command, reached = commands(base, str(run))[name], scratch / "reached"
    for operation in OPERATIONS:
        for nth in itertools.count(1):
            folder = scratch / "round"
            folder.mkdir()
            reached.unlink(missing_ok=True)
            error = ERRORS[nth % len(ERRORS)]
            code = _child(command(folder), scratch / "out", lambda: _inject(operation, error, nth, scratch, reached))  # noqa: B023 (called at once)
            text = (scratch / "out").read_text(errors="replace")
            torn = [str(path) for path in folder.rglob("*.json") if not _is_json(path)]
            if "Traceback" in text or code in (1, 97) or code < 0 or torn:
                last = [line.strip() for line in text.splitlines() if 'File "' in line and "harness/" in line][-1:]
                yield f"{name}: {errno.errorcode[error]} at call {nth} of {operation}: exit {code} {last} {torn} {text[-300:]}"
            shutil.rmtree(folder)
            if not reached.exists():
                break


def _is_json(path: Path) -> bool:
    try:
        json.loads(path.read_text())
    except ValueError:
        return False
    return True


def every_module() -> None:
    """Import all of mbr-perf but the engine, so that an import is no call of the command."""
    for module in pkgutil.walk_packages(harness.__path__, "harness."):
        if not module.name.startswith("harness.engine"):
            importlib.import_module(module.name)


def main(names: list[str]) -> int:
    """Try the commands, print the findings, and return 1 if there are any."""
    every_module()
    num = 0
    for name in names or commands(Path(), ""):
        scratch = Path(tempfile.mkdtemp(prefix="io-faults-"))
        for found in faults(name, scratch):
            print(found, flush=True)  # noqa: T201 (the answer)
            num += 1
        shutil.rmtree(scratch)
    return int(num > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
