"""Measures whether a run costs more after many others: in one sweep, and in a results folder with many records."""

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

from processes import BenchmarkFailedError, mbr_perf, timed
from result import Result
from watching import Look, watched

GOAL = 1.1
FEWEST = 5
SHARE = 5  # the last fifth of the runs is compared with the first
LEAST_TICKS = 100  # of the clock by which Linux counts processor time: with fewer, one more or less is over 1 %
RECORDED = Path(__file__).parents[2] / "tests" / "data" / "replay"


@dataclass(frozen=True)
class Setting:
    """A setting to run many times: options of `mbr-perf`, and the number of steps."""

    options: tuple[str, ...]
    num_steps: int


REPLAYED = Setting(
    ("-mr", str(RECORDED / "replayed.yaml"), "-g", "cpu", "--launcher", "replay", "--from", str(RECORDED / "ok")), 8
)
SMALL = Setting(
    ("-mr", "llama3_8b", "-g", "cpu", "--num_layers", "2", "-sl", "64", "--set", "model.hidden_size=64",
     "--set", "model.ffn_hidden_size=128", "--set", "model.vocab_size=256"), 3,
)  # fmt: skip


@dataclass(frozen=True)
class Size:
    """The amounts to run; every number is at least ``FEWEST``.

    ``runs``: trained on the CPU by one sweep, from a warm parent. ``replays``: by one sweep, with recorded ranks in place
    of training. ``records``: committed runs that the results folder of both holds before. ``commands``: `mbr-perf run`
    with recorded ranks, in that folder and in an empty one. ``max_minutes``: of each sweep; what ran until then counts.
    """

    runs: int = 1000
    replays: int = 1000
    records: int = 10_000
    commands: int = 15
    max_minutes: float = 600.0


@dataclass(frozen=True)
class Growth:
    """Later over earlier, by what is measured; ``details`` holds both, in this order. ``doubts``: why there is no ratio."""

    ratios: dict[str, float]
    details: dict[str, object]
    doubts: dict[str, str] = field(default_factory=dict)


def long_run(size: Size) -> Result:
    """Measure processor time and memory of the harness; the worst ratio counts. Reports wall times, too."""
    with tempfile.TemporaryDirectory() as name:
        full, empty = Path(name) / "full", Path(name) / "empty"
        fill(full, size.records)
        before = swept(SMALL, max(FEWEST, size.runs // SHARE), empty, size.max_minutes)
        trained = swept(SMALL, size.runs, full, size.max_minutes)
        replayed = swept(REPLAYED, size.replays, full, size.max_minutes)
        found = {
            "trained": growth(trained),
            "replayed": growth(replayed),
            "trained_among_records": among_records(before, trained),
            "command_among_records": commands(full, empty, size.commands),
        }
    return summary(found, size.records)


def summary(found: dict[str, Growth], num_records: int) -> Result:
    """Return the worst ratio and all measurements. Without a ratio it is unknown whether the goal is met."""
    ratios = {f"{name} {what}": ratio for name, item in found.items() for what, ratio in item.ratios.items()}
    doubts = {f"{name} {what}": why for name, item in found.items() for what, why in item.doubts.items()}
    worst = max(ratios, key=lambda name: ratios[name])
    unknown = "; ".join(f"{name}: {why}" for name, why in doubts.items()) if ratios[worst] <= GOAL else ""
    details = {
        "worst": worst,
        "num_records": num_records,
        "ratios": {name: round(ratio, 3) for name, ratio in ratios.items()},
        **{name: item.details for name, item in found.items()},
    }
    title = f"cost of a run after many / cost before, the worst of {len(ratios)}"
    return Result("long_run", title, round(ratios[worst], 3), GOAL, "ratio", details, unknown, noise_lowers=True)


def swept(setting: Setting, num_runs: int, results: Path, max_minutes: float) -> list[Look]:
    """Repeat one setting in one process of mbr-perf. Every run must succeed."""
    sweep_dir = results / "sweeps" / f"{num_runs}-runs-of-{Path(setting.options[1]).stem}"
    steps = f"measure.max_steps={setting.num_steps}"
    command = mbr_perf(
        "sweep", *setting.options, "--over", steps, "--repeats", str(num_runs), "--sweep_dir", str(sweep_dir)
    )
    records = [sweep_dir / "cells" / "000" / str(repeat) / "record.json" for repeat in range(num_runs)]
    results.mkdir(exist_ok=True)
    looks = watched(command, records, results / f"{sweep_dir.name}.log", 60 * max_minutes)
    statuses = [json.loads(record.read_text())["status"] for record in records[: len(looks)]]
    if set(statuses) != {"ok"} or len(statuses) < FEWEST:
        raise BenchmarkFailedError(f"{sweep_dir}: {len(statuses)} runs, ended as {sorted(set(statuses))}")
    return looks


def growth(looks: Sequence[Look]) -> Growth:
    """Compare the last fifth of the runs with the first fifth, without the very first run, which maps shared files."""
    wall, cpu = per_run(looks)
    part = max(1, len(cpu) // SHARE)
    earlier, later = looks[: part + 1], looks[-part - 1 :]
    harness, parent = [look.harness_bytes for look in looks[1:]], [look.parent_bytes for look in looks[1:]]
    ends = {
        "harness_cpu": (cpu_of(earlier), cpu_of(later)),
        "harness_mib": (median(harness[:part]) / 2**20, median(harness[-part:]) / 2**20),
    }
    if min(parent) > 0:
        ends["warm_parent_mib"] = (median(parent[:part]) / 2**20, median(parent[-part:]) / 2**20)
    walls = (median(wall[:part]), median(wall[-part:]))
    doubts = cpu_doubts(earlier, later)
    return Growth(
        {what: last / first for what, (first, last) in ends.items() if what not in doubts},
        {
            "num_runs": len(looks),
            "of": f"the first {part} runs and the last {part}",
            **{what: [round(value, 4) for value in values] for what, values in {**ends, "wall_s": walls}.items()},
            "harness_kib_per_run": round((harness[-1] - harness[0]) / 1024 / len(harness), 2),
        },
        doubts,
    )


def cpu_of(looks: Sequence[Look]) -> float:
    """Return the harness's processor seconds per run, or per second of training, when it mostly watches."""
    wall, cpu = per_run(looks)
    return sum(cpu) / (sum(wall) if looks[-1].parent_bytes else len(cpu))


def cpu_doubts(*parts: Sequence[Look]) -> dict[str, str]:
    """Return why parts allow no ratio: they took too little processor time."""
    fewest = min(round((looks[-1].cpu_s - looks[0].cpu_s) * os.sysconf("SC_CLK_TCK")) for looks in parts)
    return {"harness_cpu": f"{fewest} clock ticks, {LEAST_TICKS} are needed"} if fewest < LEAST_TICKS else {}


def per_run(looks: Sequence[Look]) -> tuple[list[float], list[float]]:
    """Return wall and processor seconds of every run but the first."""
    pairs = list(pairwise(looks))
    return [after.wall_s - before.wall_s for before, after in pairs], [b.cpu_s - a.cpu_s for a, b in pairs]


def among_records(empty: Sequence[Look], full: Sequence[Look]) -> Growth:
    """Return a trained run in the full folder over one in an empty folder."""
    cpu, wall = [cpu_of(looks) for looks in (empty, full)], [median(per_run(looks)[0]) for looks in (empty, full)]
    details: dict[str, object] = {
        "num_runs": [len(empty), len(full)],
        "of": "an empty folder and the full one",
        "harness_cpu": [round(value, 4) for value in cpu],
        "wall_s": [round(seconds, 4) for seconds in wall],
    }
    doubts = cpu_doubts(empty, full)
    return Growth({} if doubts else {"harness_cpu": cpu[1] / cpu[0]}, details, doubts)


def commands(full: Path, empty: Path, num_pairs: int) -> Growth:
    """Start `mbr-perf run` as a process of its own in either folder, in turn."""
    pairs = [
        [timed(mbr_perf("run", *REPLAYED.options, "--results_dir", str(results))) for results in (empty, full)]
        for _ in range(num_pairs)
    ]
    cpu, wall = (
        [median(getattr(pair[side], what) for pair in pairs) for side in (0, 1)] for what in ("cpu_s", "wall_s")
    )
    details: dict[str, object] = {
        "num_runs": [num_pairs, num_pairs],
        "of": "an empty folder and the full one",
        "cpu_s": [round(seconds, 3) for seconds in cpu],
        "wall_s": [round(seconds, 3) for seconds in wall],
    }
    return Growth({"cpu_s": cpu[1] / cpu[0]}, details)


def fill(results: Path, num_records: int) -> None:
    """Copy the results of `mbr-perf run` under new ids."""
    answer = json.loads(timed(mbr_perf("run", *REPLAYED.options, "--results_dir", str(results), "--json")).stdout)
    files = {path.name: path.read_text() for path in Path(answer["run_dir"]).iterdir() if path.is_file()}
    for number in range(num_records - 1):
        run_id = f"{20200101 + number // 1000}T{number % 1000:06d}Z-replayed-{number:08x}"
        folder = results / "runs" / run_id
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text.replace(answer["run_id"], run_id))
