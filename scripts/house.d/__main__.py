"""``scripts/house``: measures the code base, compares with the kept measurement and with the goals, and keeps it on demand."""

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from source import default_copies, import_circles, python_files, sources
from walk import COMMANDS, files_entered

from harness.errors import ExitCode

KEPT = Path("results") / "house.json"
Figures = Mapping[str, int | float]


@dataclass(frozen=True)
class Goal:
    """Limits of one figure; None: none on that side."""

    least: float | None = None
    most: float | None = None

    def is_met(self, value: float) -> bool:
        """Return whether the figure is within the limits."""
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    def __str__(self) -> str:
        sides = ("" if self.least is None else f">= {self.least:,}", "" if self.most is None else f"<= {self.most:,}")
        return " and ".join(filter(None, sides))


GOALS = {
    "harness_files": Goal(most=320),
    "harness_lines": Goal(most=50_000),
    "harness_and_scripts_lines": Goal(most=55_000),
    "median_file_lines": Goal(least=120, most=200),
    "largest_file_lines": Goal(most=400),
    "largest_function_lines": Goal(most=60),
    "import_circles": Goal(most=0),
    "most_copies_of_a_default": Goal(most=3),
    "files_entered_by_run_dryrun": Goal(most=60),
    "files_entered_by_check": Goal(most=45),
}


def main() -> int:
    """Exit 0, or 5 where a figure misses its goal and is worse than the kept one."""
    parser = argparse.ArgumentParser(prog="scripts/house", description=main.__doc__)
    parser.add_argument("--keep", action="store_true", help=f"write {KEPT}")
    keeps = parser.parse_args().keep
    found = measured()
    kept: Figures = json.loads(KEPT.read_text())["figures"] if KEPT.exists() else {}
    print(f"{'figure':32}{'now':>9}{'kept':>9}  goal")  # noqa: T201 (the answer)
    for name, value in found.items():
        mark = "" if GOALS[name].is_met(value) else "  missed"
        before = f"{kept[name]:,}" if name in kept else "-"
        print(f"{name:32}{value:>9,}{before:>9}  {GOALS[name]}{mark}")  # noqa: T201
    if keeps:
        KEPT.write_text(json.dumps({"schema_version": 1, "figures": found}, indent=1) + "\n")
    worse = [
        name for name in found if not GOALS[name].is_met(found[name]) and name in kept and is_worse(found, kept, name)
    ]
    if worse:
        print(f"worse than {KEPT}: {', '.join(worse)}", file=sys.stderr)  # noqa: T201
    return int(ExitCode.REGRESSION if worse else ExitCode.OK)


def is_worse(found: Figures, kept: Figures, name: str) -> bool:
    """Return whether a figure moved away from its goal."""
    goal = GOALS[name]
    return found[name] > kept[name] if goal.most is not None and found[name] > goal.most else found[name] < kept[name]


def measured() -> dict[str, int | float]:
    """Return all figures. Empty ``__init__.py`` files do not count."""
    harness, scripts = sources(Path("harness")), python_files(Path("scripts"))
    lines = [source.num_lines for source in harness]
    return {
        "harness_files": len(harness),
        "harness_lines": sum(lines),
        "harness_and_scripts_lines": sum(lines) + sum(len(path.read_text().splitlines()) for path in scripts),
        "median_file_lines": median(lines),
        "largest_file_lines": max(lines),
        "largest_function_lines": max(size for source in harness for size in source.function_lines),
        "import_circles": import_circles(),
        "most_copies_of_a_default": default_copies(harness),
        **{f"files_entered_by_{name}": files_entered(command) for name, command in COMMANDS.items()},
    }


if __name__ == "__main__":
    sys.exit(main())
