"""``scripts/bench-gate``: simulates, prints two tables, keeps the result."""

import argparse
import json
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from gate_rows import CHANGES, Goal, Row, Size, goals, rows
from gate_short import LIMITS, short_rule
from gate_trials import CASES_PER_NIGHT, THRESHOLD, Detection, FalseAlarms, Rate
from result import machine, write_result

from harness.errors import ExitCode
from harness.records.folders import results_dir
from harness.show.page import GAP, Column, table, tabled
from harness.show.terminal import narrate, show_blocks


def main() -> int:
    """Return 0 if every goal is met, else 5. Takes minutes on one core; --quick keeps nothing unless asked."""
    parser = argparse.ArgumentParser(prog="scripts/bench-gate", description=main.__doc__)
    parser.add_argument("--quick", action="store_true", help="a hundredth of the draws")
    parser.add_argument("--short", action="store_true", help="only the rule of five lines; the rest stays as kept")
    parser.add_argument("--out", type=Path, help="folder to keep gate.json in; default: results/benchmarks")
    options = parser.parse_args()
    size = Size(200, 200, 20, 40, 50) if options.quick else Size()
    folder = options.out or (None if options.quick else results_dir() / "benchmarks")
    short_rows = short_rule(size.short_nights, size.cases)
    short: dict[str, object] = {"limits": LIMITS, "rows": short_rows}
    report_short(short_rows)
    if options.short:
        if folder:
            write_result(folder, "gate", json.loads((folder / "gate.json").read_text()) | {"short_rule": short})
        return int(ExitCode.OK)
    found = rows(size, narrate)
    wanted = goals(found)
    if folder:
        keep(folder, found, wanted, size, short)
    report(found, wanted)
    return int(ExitCode.OK if all(goal.is_met for goal in wanted) else ExitCode.REGRESSION)


def report_short(rows: list[dict[str, object]]) -> None:
    """Print what a rule of five lines would reach, by how much of a night's variance another node draws anew."""
    titles = ("Noise", "Redrawn", *LIMITS)
    listed = [(str(row["scenario"]), f"{row['redrawn']:.0%}", *(f"{row[name]:.1%}" for name in LIMITS)) for row in rows]
    show_blocks(table(titles, listed, right=titles[1:]), GAP)


def report(found: list[Row], wanted: tuple[Goal, ...]) -> None:
    """Print goals, then every scenario: detections as shares called a regression, and by the plain gate on one run."""
    goals = (
        (Column("Goal"), lambda goal: goal.name),
        (Column("Value", right=True), lambda goal: f"{goal.value:.2%}"),
        (Column("Limit", right=True), lambda goal: f"{'at most' if goal.is_upper else 'at least'} {goal.limit:.0%}"),
        (Column("Verdict"), lambda goal: "met" if goal.is_met else "missed"),
    )
    by_noise = []
    for row in found:
        detected = (f"{each.regression.value:.1%}, {each.by_second_night.value:.1%}" for each in row.detections)
        alarms = (f"{rate.value:.2%}" for rate in (row.alarms.false_alarm, row.alarms.inconclusive))
        by_noise.append((row.scenario.name, str(row.confirm), *alarms, *detected))
    plain = [f"{detection.plain_gate.value:.1%}" for detection in found[0].detections]
    alone = (
        "plain 5 % on one run, 1 % noise",
        "0",
        f"{found[0].alarms.plain_gate_false_alarm.value:.2%}",
        "0.00%",
        *plain,
    )
    titles = (
        Column("Noise", long=True),
        Column("Confirm", right=True, drop=1),
        "False alarm",
        Column("Inconclusive", drop=1),
    )
    shares = [Column(f"{change:+.0%}", right=True) for change in CHANGES]
    show_blocks(
        tabled(wanted, goals),
        GAP,
        table((*titles, *shares), [*by_noise, alone]),
        f"False alarm, Inconclusive: share of nights of {CASES_PER_NIGHT} cases without any change. Changes: share found on the first "
        "night, and by the second.",
    )


def keep(folder: Path, found: list[Row], wanted: tuple[Goal, ...], size: Size, short: dict[str, object]) -> Path:
    """Write ``<folder>/gate.json`` whole."""
    document = {
        "name": "gate",
        "title": "the nightly gate on simulated noise",
        "cases_per_night": CASES_PER_NIGHT,
        "threshold": THRESHOLD,
        "goals": [{**asdict(goal), "verdict": "met" if goal.is_met else "missed"} for goal in wanted],
        "size": asdict(size),
        "rows": [_document(row) for row in found],
        "short_rule": short,
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
    }
    return write_result(folder, "gate", document)


def _document(row: Row) -> dict[str, object]:
    def rates(found: FalseAlarms | Detection) -> dict[str, object]:
        return {name: each.document() if isinstance(each, Rate) else each for name, each in vars(found).items()}

    return {
        "scenario": asdict(row.scenario), "confirm": row.confirm, "nights_without_change": rates(row.alarms),
        "cases_with_change": [rates(detection) for detection in row.detections],
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
