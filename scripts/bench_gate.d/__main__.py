"""``scripts/bench-gate``: simulates, prints two tables, keeps the result."""

import argparse
import json
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from gate_rows import CHANGES, Goal, Row, Size, goals, rows
from gate_short import LIMITS, short_rule
from gate_trials import CASES_PER_NIGHT, THRESHOLD
from result import machine, write_result

from harness.errors import ExitCode
from harness.records.folders import results_dir
from harness.show.page import GAP, Column, table
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
    met = [
        (
            goal.name,
            f"{goal.value:.2%}",
            f"{'at most' if goal.is_upper else 'at least'} {goal.limit:.0%}",
            "met" if goal.is_met else "missed",
        )
        for goal in wanted
    ]
    by_noise = [
        (
            row.scenario.name,
            str(row.confirm),
            f"{row.alarms.regression.value:.2%}",
            f"{row.alarms.inconclusive.value:.2%}",
            *(
                f"{detection.regression.value:.1%}, {detection.by_second_night.value:.1%}"
                for detection in row.detections
            ),
        )
        for row in found
    ]
    plain = [f"{detection.plain_gate.value:.1%}" for detection in found[0].detections]
    alone = ("plain 5 % on one run, 1 % noise", "0", f"{found[0].alarms.plain_gate.value:.2%}", "0.00%", *plain)
    shares = [Column(f"{change:+.0%}", right=True) for change in CHANGES]
    show_blocks(
        table(("Goal", "Value", "Limit", "Verdict"), met, right=("Value", "Limit")),
        GAP,
        table(
            (
                Column("Noise", long=True),
                Column("Confirm", right=True, drop=1),
                "False alarm",
                Column("Inconclusive", drop=1),
                *shares,
            ),
            [*by_noise, alone],
        ),
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
    alarms = row.alarms
    return {
        "scenario": asdict(row.scenario),
        "confirm": row.confirm,
        "nights_without_change": {
            "false_alarm": alarms.regression.document(),
            "inconclusive": alarms.inconclusive.document(),
            "plain_gate_false_alarm": alarms.plain_gate.document(),
            "confirmed_cases_per_night": round(alarms.confirmed_cases_per_night, 4),
        },
        "cases_with_change": [
            {
                "change": detection.change,
                "regression": detection.regression.document(),
                "by_second_night": detection.by_second_night.document(),
                "not_passed": detection.not_passed.document(),
                "plain_gate": detection.plain_gate.document(),
            }
            for detection in row.detections
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
