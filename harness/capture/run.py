"""Runs a launch script among stand-ins for its launchers, and keeps what each of them was asked to start."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from harness.capture import shim
from harness.errors import ExitCode, os_errors_reported
from harness.foreign.megatron_arguments import options
from harness.launch.crew import signals_raised
from harness.launch.environment import Host, inherited, recordable
from harness.records.redact import MASK, is_secret_name, redact

_NAMES = ("torchrun", "deepspeed", "accelerate", "srun", "sbatch", "ray", "python", "python3", "pkill", "killall")
_BY_PATH = re.compile(
    r"^[^#\n]*?(?<![\w.!-])([^\s'\"=(]*/(?:torchrun|deepspeed|srun|sbatch|python[\d.]*))\s+(?!-c\b|-m pip\b)",
    re.MULTILINE,
)
_LINGER_S = 5.0  # for what the script left in the background, as `nohup torchrun ... &`
_MOST_SAID, _MOST_SCRIPT = 64 << 10, 4 << 20
_OF_A_SHELL = re.compile(r"BASH_FUNC_|(?:_|OLDPWD|PWD|SHLVL|PATH)$")


@dataclass(frozen=True)
class Job:
    """A command that the script would have started, in its folder, with the variables that decide about the job."""

    command: tuple[str, ...]
    folder: str
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Capture:
    """What a script did. ``code``: its exit code; None if it was killed at the limit. ``said``: its last output."""

    jobs: tuple[Job, ...]
    code: int | None
    said: str
    by_path: tuple[str, ...]


def capture(command: Sequence[str], host: Host, timeout_s: float) -> Capture:
    """Run the command with stand-ins first on PATH, and kill what still runs. BadRequestError: it does not start."""
    by_path = tuple(_called_by_path(command))
    with (
        tempfile.TemporaryDirectory(prefix="mbr-perf-") as made,
        signals_raised(lambda _: SystemExit(ExitCode.TERMINATED)),
    ):
        folder = Path(made)
        shell = {**host.shell, **_stand_ins(folder, host)}
        with os_errors_reported(f"{shlex.join(command)}: cannot be started", "mbr-perf capture -- bash run.sh"):
            code, said = _played(command, shell, timeout_s)
        jobs = tuple(_job(path, host.shell) for path in sorted(folder.glob("*.json")))
    return Capture(jobs, code, redact(said), by_path)


def _stand_ins(folder: Path, host: Host) -> dict[str, str]:
    """Make the launchers; return the variables by which a script finds them, also after it has changed PATH."""
    path = host.shell.get("PATH", os.defpath)
    (folder / "bin").mkdir()
    versions = [f"python3.{minor}" for minor in range(8, 16) if shutil.which(f"python3.{minor}", path=path)]
    functions = {}
    for name in (*_NAMES, *versions):
        program = folder / "bin" / name
        words = shlex.join([host.python, "-I", "-S", shim.__file__, name, str(folder)])
        program.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        program.chmod(0o700)
        functions[f"BASH_FUNC_{name}%%"] = f'() {{ "{program}" "$@"\n}}'
    return {"PATH": f"{folder / 'bin'}{os.pathsep}{path}", **functions}


def _played(command: Sequence[str], shell: Mapping[str, str], timeout_s: float) -> tuple[int | None, str]:
    """Run it in a group of its own; return its exit code, None at the limit, and the last that it wrote."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            env=shell,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        code = None
        try:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(timeout_s)
                _wait_for_group(process.pid, time.monotonic() + min(_LINGER_S, timeout_s))
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(max(0, output.seek(0, os.SEEK_END) - _MOST_SAID))
        return code, output.read().decode(errors="replace")


def _wait_for_group(number: int, limit: float) -> None:
    with suppress(ProcessLookupError):
        while time.monotonic() < limit:
            os.killpg(number, 0)
            time.sleep(0.02)


def _job(path: Path, shell: Mapping[str, str]) -> Job:
    """Read what a stand-in wrote: of the variables, those that the script set and those that ranks would inherit."""
    found = json.loads(path.read_text())
    own = {name: value for name, value in found["environment"].items() if not _OF_A_SHELL.match(name)}
    changed = {
        name: MASK if is_secret_name(name) else redact(value) for name, value in own.items() if shell.get(name) != value
    }
    environment = dict(sorted((recordable(inherited(own)) | changed).items()))
    return Job(tuple(_without_secrets(found["command"])), found["folder"], environment)


def _without_secrets(words: Sequence[str]) -> Iterator[str]:
    """Yield the words; arguments of Megatron-LM, such as ``--moe-token-dispatcher-type``, name no secret."""
    for before, word in pairwise(("", *words)):
        is_named = before[:2] == "--" and before not in options() and is_secret_name(before[2:].replace("-", "_"))
        yield MASK if is_named and not word.startswith("-") else redact(word)


def _called_by_path(command: Sequence[str]) -> Iterator[str]:
    """Yield the launchers that the scripts of the command call by their paths, where no stand-in is found."""
    for path in map(Path, command):
        if path.is_file() and path.stat().st_size < _MOST_SCRIPT:
            text = path.read_text(errors="replace")
            for found in _BY_PATH.finditer(text):
                yield f"{path}:{text.count(chr(10), 0, found.start(1)) + 1}: {found[1]}"


def write_jobs(found: Capture, out: Path, title: str) -> list[Path]:
    """Write `job_NNN.args` and `.env` for each job, without secrets, in place of those of an earlier capture."""
    with os_errors_reported(f"{out}: cannot be written", "name a writable folder with --out"):
        out.mkdir(parents=True, exist_ok=True)
        for old in (each for ending in ("args", "env") for each in out.glob(f"job_[0-9]*.{ending}")):
            old.unlink()
        paths = [out / f"job_{number:03d}.args" for number in range(1, len(found.jobs) + 1)]
        for path, job in zip(paths, found.jobs, strict=True):
            words = " ".join(f"\\\n    {word}" if word[:2] == "--" else word for word in map(shlex.quote, job.command))
            path.write_text(f"# Captured from: {title}\n# Folder: {redact(job.folder)}\n{words}\n")
            lines = (f"{name}={shlex.quote(value)}\n" for name, value in job.environment.items())
            path.with_suffix(".env").write_text("".join(lines))
    return paths
