"""A rank killed in the middle of a run: nothing of the run is left, neither as a process nor on the GPU."""

import json
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from harness.errors import ExitCode
from harness.launch.processes import PROC, Process, descendants, is_alive, send
from harness.records.run import RunRecord
from harness.records.store import RECORD, read_run
from harness.runner.gpu_check.case import Case, Unfinished, case_name
from harness.runner.gpu_check.checks import NO_TIME, Check, judged
from harness.runner.gpu_check.product import command_of, last_lines
from harness.runner.gpu_check.runs import Runs
from harness.runner.gpu_check.shapes import Shape

USE = "device_use.py"
FREE = "gpu_is_free"
ENDLESS = 100_000  # steps
STARTS_S = 120.0
ENDS_S = 60.0
FREED_S = 10.0  # the driver takes a moment to take memory back
# Another process's context may come or go meanwhile; a rank holds more.
SAME_USE_BYTES = 256 * 1024**2


def kill_a_rank(runs: Runs, shape: Shape) -> Iterator[Case]:
    """One case: start, wait for a step, SIGKILL, look."""
    name = case_name(shape.name, "kill")
    if kept := runs.kept_case(name, shape, recompute="none"):
        yield kept
        return
    before = _use(runs, name)
    began, left = time.monotonic(), runs.left_s("run")
    if left is None:
        yield Case(name)
        return
    run_dir = runs.folder(name)
    options = (*shape.options(runs.target), "--recompute", "none", "--max_steps", str(ENDLESS))
    with tempfile.TemporaryFile("w+", errors="replace") as narration:
        process = subprocess.Popen(
            command_of(runs.target.host, options, run_dir, left + ENDS_S), env=dict(runs.target.host.shell),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=narration,
        )  # fmt: skip
        try:
            checks = [*_kill_and_look(process, run_dir, left, narration)]
        finally:
            end(process, ENDS_S)
    checks.append(_gpu_is_free(runs, name, before))
    record = read_run(run_dir) if (run_dir / RECORD).is_file() else None
    yield Case(name, "none", tuple(checks), seconds=round(time.monotonic() - began, 1), record=record)


def end(process: "subprocess.Popen[bytes]", within_s: float) -> None:
    """Tell it to end; after ``within_s`` kill it with all that it has started."""
    process.terminate()
    try:
        process.wait(timeout=within_s)
    except subprocess.TimeoutExpired:
        family = descendants(process.pid)
        process.kill()
        process.wait()
        for one in family:
            send(one, signal.SIGKILL)


def _kill_and_look(
    process: "subprocess.Popen[bytes]", run_dir: Path, left_s: float, narration: IO[str]
) -> Iterator[Check]:
    began, patience_s = time.monotonic(), min(left_s, STARTS_S)
    while not (rank := _rank_at_work(process.pid, run_dir)) and time.monotonic() - began < patience_s:
        if process.poll() is not None:
            break
        time.sleep(0.1)
    if rank is None and process.poll() is not None:
        narration.seek(0)
        said = last_lines(narration.read()) or "no output"
        yield judged("killed", holds=False, found=f"the run ended before: exit {process.returncode}: {said}")
        return
    if rank is None and patience_s == left_s:
        yield Check("killed", "not_run", f"stopped at the deadline after {left_s:.0f} s")
        return
    if rank is None:
        yield judged("killed", holds=False, found=f"no rank finished a step within {patience_s:.0f} s")
        return
    family = descendants(process.pid)
    send(rank, signal.SIGKILL)
    killed = time.monotonic()
    try:
        code = process.wait(timeout=ENDS_S)
    except subprocess.TimeoutExpired:
        yield judged("killed", holds=False, found=f"the run went on for {ENDS_S:.0f} s after its rank was killed")
        return
    record = read_run(run_dir) if (run_dir / RECORD).is_file() else None
    yield _told(code, record, time.monotonic() - killed)
    alive = [str(one.pid) for one in family if is_alive(one)]
    found = f"of {len(family)} processes of the run {len(alive)} live on {' '.join(alive)}".rstrip()
    yield judged("no_process_left", holds=not alive, found=found)


def _told(code: int, record: RunRecord | None, seconds: float) -> Check:
    failure = record.failure if record else None
    holds = code == ExitCode.RUN_FAILED and failure is not None and "SIGKILL" in failure
    return judged("killed", holds=holds, found=f"exit {code} {seconds:.1f} s after SIGKILL: {failure or 'no record'}")


def _rank_at_work(root_pid: int, run_dir: Path) -> Process | None:
    """The rank, once it has finished a step; the youngest process of the launch with the worker's command line."""
    try:
        steps = '"phase": "step", "step"' in (run_dir / "ranks" / "rank_000.progress.jsonl").read_text()
    except OSError:
        return None
    ranks = [one for one in descendants(root_pid) if _runs_worker(one)] if steps else []
    return max(ranks, key=lambda one: (one.start_ticks, one.pid), default=None)


def _runs_worker(process: Process) -> bool:
    """The agent has the worker's name in its command line, too, after its own."""
    try:
        words = (PROC / str(process.pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"harness.engine.worker" in words and b"harness.engine.agent" not in words


def _gpu_is_free(runs: Runs, name: str, before: int | Check) -> Check:
    if isinstance(before, Check):
        return before
    after, began = _use(runs, name), time.monotonic()
    while not isinstance(after, Check) and after - before >= SAME_USE_BYTES and time.monotonic() - began < FREED_S:
        after = _use(runs, name)
    if isinstance(after, Check):
        return after
    found = f"{before} bytes in use before, {after} after"
    return judged(FREE, holds=after - before < SAME_USE_BYTES, found=found)


def _use(runs: Runs, name: str) -> int | Check:
    """Bytes in use on the GPU, by anyone; or the check that nothing more can come of."""
    if runs.target.is_rehearsal:
        return Check(FREE, "skipped", "needs a GPU")
    program = runs.program(f"{name}-use", USE, (), {})
    if isinstance(program, Unfinished):
        return Check(FREE, "not_run", NO_TIME)
    use = json.loads((program.folder / "use.json").read_text()) if program.exit_code == 0 else {}
    gpu = use.get(runs.target.uuid)
    return int(gpu["used_bytes"]) if gpu else judged(FREE, holds=False, found="NVML did not say what is in use")
