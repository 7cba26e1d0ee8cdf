"""``scripts/house``: measures the code base and compares each figure with its budget in results/house.json."""

import argparse
import json
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from source import data_lines, functions, import_circles, lines_of, long_lines, words_of_text
from walk import COMMANDS, options, walked

from harness.errors import ExitCode

BUDGETS = Path("results") / "house.json"
_WATCHED = ("run", "sweep", "plan", "check", "nightly", "diagnose", "compare", "import")


def main() -> int:
    """Exit 0, or 5 where a figure is above its budget. A budget rises only by hand, with the reason in the commit."""
    parser = argparse.ArgumentParser(prog="scripts/house", description=main.__doc__)
    parser.add_argument("--keep", action="store_true", help=f"lower budgets in {BUDGETS} to what is measured")
    asked = parser.parse_args()
    found = measured()
    budgets: dict[str, int] = json.loads(BUDGETS.read_text())["budgets"]
    above = [name for name, value in found.items() if value > budgets.get(name, value)]
    print(f"{'figure':32}{'now':>9}{'budget':>9}")
    for name, value in found.items():
        print(f"{name:32}{value:>9,}{budgets.get(name, value):>9,}{'  above' if name in above else ''}")
    if asked.keep:
        kept = {name: min(value, budgets.get(name, value)) for name, value in found.items()}
        BUDGETS.write_text(json.dumps({"schema_version": 2, "budgets": kept}, indent=1) + "\n")
    if above:
        print(f"above the budget of {BUDGETS}: {', '.join(above)}", file=sys.stderr)
    return int(ExitCode.REGRESSION if above else ExitCode.OK)


def measured() -> Mapping[str, int]:
    """Return all figures. None of them may grow."""
    with ThreadPoolExecutor(2) as pool:
        walks = pool.map(lambda name: walked(COMMANDS[name]), COMMANDS)
        entered = dict(zip(COMMANDS, walks, strict=True))
    all_functions = [*functions("harness")]
    num_options = options()
    return {
        "harness_lines": lines_of("harness", ".py"),
        "harness_data_lines": data_lines("harness"),
        "tests_lines": lines_of("tests", ".py", ".c"),
        "scripts_lines": lines_of("scripts", ".py"),
        "words_of_text": words_of_text("harness"),
        "largest_function_lines": max(size for _, size, _ in all_functions),
        "most_complex_function": max(paths for _, _, paths in all_functions),
        "lines_over_120_characters": long_lines("harness"),
        "import_circles": import_circles(),
        **{f"files_entered_by_{name}": files for name, (files, _) in entered.items()},
        **{f"lines_entered_by_{name}": lines for name, (_, lines) in entered.items()},
        **{f"options_of_{name}": num_options[name] for name in _WATCHED},
    }


if __name__ == "__main__":
    sys.exit(main())
