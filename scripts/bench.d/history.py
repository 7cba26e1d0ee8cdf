"""Measures the time of `mbr-perf history` over ten thousand runs, with and without its index."""

import random
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median

from processes import mbr_perf, timed
from result import Result

from harness.history.files import INDEX, history_dir, history_path
from harness.history.record import HistoryFigure, HistoryRecord
from harness.history.store import read_history
from harness.predict.flops import FORMULA_VERSION

CASES, NIGHTS, RUNS_PER_NIGHT = 10, 200, 5
REPEATS = 5
GOAL_S = 1.0
SEED = 1
FIRST = datetime(2026, 1, 1, 2, tzinfo=UTC)


def history() -> Result:
    """Time `mbr-perf history CASE`: median processor seconds; before, once without index and once without points."""
    with tempfile.TemporaryDirectory() as name:
        results = Path(name)
        write_runs(results)
        read_history(results)  # file contents come from the page cache from here on
        (history_dir(results) / INDEX).unlink()
        command = mbr_perf("history", case(0), "--results_dir", name)
        cold = timed(command)
        newest = timed(mbr_perf("history", case(1), "--results_dir", name))
        warm = [timed(command) for _ in range(REPEATS)]
        listing = [timed(mbr_perf("history", "--results_dir", name)) for _ in range(REPEATS)]
        index_bytes = (history_dir(results) / INDEX).stat().st_size
    details: dict[str, object] = {
        "wall_s": [round(run.wall_s, 3) for run in warm],
        "cpu_s": [round(run.cpu_s, 3) for run in warm],
        "cold_cpu_s": round(cold.cpu_s, 3),
        "cold_wall_s": round(cold.wall_s, 3),
        "cold": "no index: every file is read, the index is made, change points are looked for",
        "first_of_case_cpu_s": round(newest.cpu_s, 3),
        "first_of_case_wall_s": round(newest.wall_s, 3),
        "first_of_case": "index there, change points looked for",
        "list_cpu_s": [round(run.cpu_s, 3) for run in listing],
        "list_wall_s": [round(run.wall_s, 3) for run in listing],
        "num_runs": CASES * NIGHTS * RUNS_PER_NIGHT,
        "num_cases": CASES,
        "num_nights": NIGHTS,
        "index_bytes": index_bytes,
    }
    title = "mbr-perf history CASE among 10,000 runs, warm"
    return Result("history", title, round(median(run.cpu_s for run in warm), 3), GOAL_S, "CPU s", details)


def case(number: int) -> str:
    """Return the name of a case."""
    return f"h100/llama3_70b.sft.fp8_cs.{2**number}gpu.core_attn"


def write_runs(results: Path) -> None:
    """Write files as `write_history` does, without a flush for each: 1 % noise, and a step of 4 % half-way."""
    draw = random.Random(SEED)  # noqa: S311 (no secret)
    for night in range(NIGHTS):
        for number in range(CASES):
            for run in range(RUNS_PER_NIGHT):
                record = record_of(night, number, run, draw)
                path = history_path(results, record)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(record.model_dump_json(indent=1) + "\n")


def record_of(night: int, number: int, run: int, draw: random.Random) -> HistoryRecord:
    """Make a record with as many variables as ranks on GPUs have."""
    begun = FIRST + timedelta(days=night, minutes=number * 60 + run * 10)
    tflops = 700.0 * (0.96 if night >= NIGHTS // 2 else 1.0) * (1 + draw.gauss(0, 0.01))
    night_id = f"{begun:%Y%m%d}T020000Z-h100_nightly-{night:08x}"
    figures = {"tflops_per_gpu": tflops, "step_time_s": 1000 / tflops, "peak_allocated_bytes": 58e9}
    return HistoryRecord(
        run_id=f"{night_id}.case{number}.{run}",
        case=case(number),
        fingerprint=f"{number:016x}",
        suite="h100_nightly",
        suite_case=f"case{number}",
        night_id=night_id,
        started_at=begun.isoformat(),
        duration_s=540.0,
        status="ok",
        outcome="pass",
        metrics={name: HistoryFigure(value=value, stdev=value * 0.003, n=40) for name, value in figures.items()},
        formula_version=FORMULA_VERSION,
        git_commit=f"{night // 3:040x}",
        branch="main",
        hostname=f"node{draw.randrange(8)}",
        device_name="NVIDIA H100 80GB HBM3",
        driver_version="570.86.15",
        versions={"torch": "2.9.1" if night < NIGHTS // 2 else "2.10.0", "megatron-core": "0.19.2"},
        environment={f"NCCL_VARIABLE_{row}": "a value of usual length" for row in range(25)},
    )
