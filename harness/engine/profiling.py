"""Profiles chosen steps of chosen ranks with torch's profiler, or starts the rank anew under Nsight Systems."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from harness.experiment.experiment import MeasureSpec
from harness.records.launch import PARENT_PID_VARIABLE

UNDER_NSYS = "MBR_PERF_UNDER_NSYS"
# The defaults of Megatron-Bridge's launcher. nsys records between cudaProfilerStart and cudaProfilerStop only.
_NSYS_OPTIONS = (
    "--sample=none", "--trace=cuda,nvtx", "--force-overwrite=true", "--capture-range=cudaProfilerApi",
    "--capture-range-end=stop", "--cuda-graph-trace=node",
)  # fmt: skip


def is_profiled(measure: MeasureSpec, rank: int) -> bool:
    """Return whether the request names this rank and a profiler."""
    return measure.profiler is not None and rank in measure.profiling_ranks


def nsys_command(measure: MeasureSpec, run_dir: Path, rank: int) -> tuple[str, ...]:
    """Return the command that runs the rank under nsys. Options of the request replace the defaults."""
    given = {option.partition("=")[0] for option in measure.nsys_options}
    options = (*(each for each in _NSYS_OPTIONS if each.partition("=")[0] not in given), *measure.nsys_options)
    worker = (sys.executable, "-m", "harness.engine.worker", "--run_dir", str(run_dir))
    return ("nsys", "profile", f"--output={run_dir / 'ranks' / f'profile_{rank:03d}'}", *options, *worker)


def enter_nsys(measure: MeasureSpec, run_dir: Path, rank: int, environment: Mapping[str, str]) -> None:
    """Replace this process by nsys with the same rank in it, if asked. Ends the rank if there is no nsys.

    The new rank is a child of nsys, not of the agent, so it must not look for the agent as its parent.
    """
    if measure.profiler != "nsys" or not is_profiled(measure, rank) or UNDER_NSYS in environment:
        return
    command = nsys_command(measure, run_dir, rank)
    inside = {name: value for name, value in environment.items() if name != PARENT_PID_VARIABLE}
    try:
        os.execvpe(command[0], command, {**inside, UNDER_NSYS: "1"})  # noqa: S606 (no shell)
    except FileNotFoundError:
        sys.exit("--enable_nsys: there is no nsys on PATH of this node; install Nsight Systems there")


class StepProfiler:
    """Profiles steps [start, stop) of this rank: with nsys between two marks, with torch into ``path`` (gzip)."""

    def __init__(self, measure: MeasureSpec, rank: int, path: Path) -> None:
        self._measure, self._path = measure, path
        self._tool = measure.profiler if is_profiled(measure, rank) else None
        self._running = None

    def before_step(self, index: int) -> None:
        """Start before the first step of the range."""
        if self._tool is None or index != self._measure.profiling_start_step:
            return
        self._running = _NsysRange() if self._tool == "nsys" else _torch_profile()
        self._running.__enter__()

    def after_step(self, index: int) -> None:
        """Stop after the last step of the range, and write torch's trace."""
        if self._running is None or index != self._measure.profiling_stop_step - 1:
            return
        self._running.__exit__(None, None, None)
        if self._tool == "pytorch":
            unfinished = self._path.with_name(f".{self._path.name}.{os.getpid()}.tmp.gz")
            self._running.export_chrome_trace(str(unfinished))
            unfinished.replace(self._path)
        self._running = None


def _torch_profile():
    import torch
    from torch.profiler import ProfilerActivity, profile

    devices = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
    return profile(activities=[ProfilerActivity.CPU, *devices], record_shapes=True)


class _NsysRange:
    """The range that nsys records, with the names of torch's operations."""

    def __enter__(self) -> "_NsysRange":
        import torch

        torch.cuda.profiler.start()
        self._names = torch.autograd.profiler.emit_nvtx()
        self._names.__enter__()
        return self

    def __exit__(self, *ended: object) -> None:
        import torch

        self._names.__exit__(None, None, None)
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()
