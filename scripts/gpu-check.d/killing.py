"""A rank killed in the middle of a run leaves neither processes nor GPU memory behind."""

import json
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from case import NO_TIME, Case, Check, Unfinished, case_name, case_of_run, judged
from checks import GPU_ONLY
from runs import LAST_CHARACTERS, Runs, command_of, end
from shapes import Shape

from harness.errors import ExitCode
from harness.launch.processes import PROC, Process, descendants, is_alive, send
from harness.records.redact import redact
from harness.records.run import RunRecord
from harness.records.store import RECORD, read_run

FREE = "gpu_is_free"
ENDLESS = 100_000  # steps
STARTS_S = 120.0
ENDS_S = 60.0
FREED_S = 10.0  # the driver takes a moment to take memory back
SAME_USE_BYTES = 256 * 1024**2  # another process's context may come or go meanwhile; a rank holds more


def kill_a_rank(runs: Runs, shape: Shape) -> Iterator[Case]:
    """Start a run, wait for a step, send SIGKILL to the rank, and look at what is left."""
    name = case_name(shape.name, "kill")
    if kept := runs.kept.get(name):
        yield kept
        return
    before = bytes_in_use(runs, name)
    began, left = time.monotonic(), runs.left_s("run")
    if left is None:
        yield Case(name)
        return
    run_dir = runs.folder(name)
    options = shape.options(runs.target, recompute="none", max_steps=ENDLESS)
    with tempfile.TemporaryFile("w+", errors="replace") as stderr:
        process = subprocess.Popen(
            command_of(runs.target.host, options, run_dir, left + ENDS_S), env=dict(runs.target.host.shell),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr,
        )  # fmt: skip
        try:
            checks = [*_kill_and_look(process, run_dir, left, stderr)]
        finally:
            end(process, ENDS_S)
    checks.append(gpu_is_free(runs, name, before))
    yield case_of_run(name, tuple(checks), round(time.monotonic() - began, 1), _record(run_dir))


def _kill_and_look(
    process: "subprocess.Popen[bytes]", run_dir: Path, left_s: float, stderr: IO[str]
) -> Iterator[Check]:
    rank = _wait_for_rank(process, run_dir, min(left_s, STARTS_S))
    if rank is None:
        yield _never_at_work(process, left_s, stderr)
        return
    family = descendants(process.pid)
    send(rank, signal.SIGKILL)
    killed = time.monotonic()
    try:
        code = process.wait(timeout=ENDS_S)
    except subprocess.TimeoutExpired:
        yield judged("killed", holds=False, found=f"the run went on for {ENDS_S:.0f} s after its rank was killed")
        return
    failure = getattr(_record(run_dir), "failure", None)
    found = f"exit {code} {time.monotonic() - killed:.1f} s after SIGKILL: {failure or 'no record'}"
    yield judged("killed", holds=code == ExitCode.RUN_FAILED and "SIGKILL" in (failure or ""), found=found)
    alive = [str(member.pid) for member in family if is_alive(member)]
    found = f"{len(alive)} of {len(family)} processes of the run are still alive {' '.join(alive)}".rstrip()
    yield judged("no_process_left", holds=not alive, found=found)


def _never_at_work(process: "subprocess.Popen[bytes]", left_s: float, stderr: IO[str]) -> Check:
    """Return why there was no rank to kill: the run ended, the deadline came, or no step was finished."""
    if process.poll() is not None:
        stderr.seek(0)
        output = redact(stderr.read().strip())[-LAST_CHARACTERS:] or "no output"
        return judged("killed", holds=False, found=f"the run ended before: exit {process.returncode}: {output}")
    if left_s < STARTS_S:
        return Check("killed", "not_run", f"stopped at the deadline after {left_s:.0f} s")
    return judged("killed", holds=False, found=f"no rank finished a step within {STARTS_S:.0f} s")


def _wait_for_rank(process: "subprocess.Popen[bytes]", run_dir: Path, patience_s: float) -> Process | None:
    """Return the rank once it has finished a step: the youngest process of the run with the worker's command line."""
    began, heartbeats = time.monotonic(), run_dir / "ranks" / "rank_000.progress.jsonl"
    while process.poll() is None and time.monotonic() - began < patience_s:
        if heartbeats.is_file() and '"phase": "step", "step"' in heartbeats.read_text():
            ranks = [member for member in descendants(process.pid) if _runs_worker(member)]
            if ranks:
                return max(ranks, key=lambda member: (member.start_ticks, member.pid))
        time.sleep(0.1)
    return None


def _runs_worker(process: Process) -> bool:
    """Recognise a rank by its command line; the agent's command line names the worker, too."""
    try:
        words = (PROC / str(process.pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"harness.engine.worker" in words and b"harness.engine.agent" not in words


def _record(run_dir: Path) -> RunRecord | None:
    return read_run(run_dir) if (run_dir / RECORD).is_file() else None


def gpu_is_free(runs: Runs, name: str, before: dict[str, int] | Check) -> Check:
    """Check that the GPUs hold no more than they did ``before``; the driver gets FREED_S to take memory back."""
    if isinstance(before, Check):
        return before
    began = time.monotonic()
    while True:
        after = bytes_in_use(runs, name, len(before))
        if isinstance(after, Check):
            return after
        is_free = all(after[uuid] - used < SAME_USE_BYTES for uuid, used in before.items())
        if is_free or time.monotonic() - began >= FREED_S:
            break
    found = "; ".join(f"{uuid}: {used} bytes in use before, {after[uuid]} after" for uuid, used in before.items())
    return judged(FREE, holds=is_free, found=found)


def bytes_in_use(runs: Runs, name: str, num_gpus: int = 1) -> dict[str, int] | Check:
    """Return the bytes in use on each of the first GPUs, by UUID; or the check with the reason why not."""
    if runs.target.is_rehearsal:
        return Check(FREE, "skipped", GPU_ONLY)
    program = runs.program(f"{name}-use", "device_use.py", (), {})
    if isinstance(program, Unfinished):
        return Check(FREE, "not_run", NO_TIME)
    use = json.loads((program.folder / "use.json").read_text()) if program.exit_code == 0 else {}
    uuids = runs.target.uuids[:num_gpus]
    if not set(uuids) <= set(use):
        return judged(FREE, holds=False, found=f"NVML did not report the memory in use: {program.output}")
    return {uuid: int(use[uuid]["used_bytes"]) for uuid in uuids}
