"""The runs of a sweep that failed, as `mbr-perf diagnose` lists them."""

from shlex import quote

from harness.analysis.diagnosis.of_sweep import FailedRun, SweepOverview
from harness.errors import ExitCode
from harness.report.console import Console
from harness.report.json import SCHEMA_VERSION, Document
from harness.report.printing import print_lines


def print_overview(console: Console, found: SweepOverview) -> None:
    """How the runs ended, what an A/B came to, and each failed run with the command that diagnoses it."""
    counts = ", ".join(f"{count} {name}" for name, count in found.counts)
    lines = [f"Sweep {found.sweep_dir.name} ({found.title}): {counts}"]
    lines += list(found.ab.lines) if found.ab else []
    for run in found.failed:
        lines += [_line(run), f"  {command(run)}"]
    print_lines(console, lines)


def overview_document(found: SweepOverview, exit_code: ExitCode) -> Document:
    """The same for programs, with the keys of every diagnosis."""
    told = f"{len(found.failed)} of {sum(count for _, count in found.counts)} runs did not end well"
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": {"class": None, "confidence": None, "reason": told, "confirmed": found.ab and found.ab.confirmed},
        "evidence": [*(found.ab.lines if found.ab else ()), *map(_line, found.failed)],
        "fixes": [{"text": f"Diagnose run {run.run_dir.name} of {run.cell}.", "command": command(run)} for run in found.failed],
        "sweep_dir": str(found.sweep_dir),
        "runs": [
            {"run_dir": str(run.run_dir), "cell": run.cell, "status": run.status, "class": run.oom_class,
             "confidence": run.confidence, "rank": run.rank, "told": run.told}
            for run in found.failed
        ],
        "exit_code": int(exit_code),
    }  # fmt: skip


def command(run: FailedRun) -> str:
    """To paste."""
    return f"mbr-perf diagnose {quote(str(run.run_dir))}"


def _line(run: FailedRun) -> str:
    rank = f" on rank {run.rank}" if run.rank is not None else ""
    return f"{run.cell}: {run.status}{rank}: {run.told}"
