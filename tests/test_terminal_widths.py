"""What the main commands print at 60, 80, 120 and 200 columns and into a pipe, kept below tests/data/terminal.

`python -m tests.test_terminal_widths` writes the files anew; look at the difference before you commit it.
"""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "tests" / "data" / "terminal"
RESULTS = "--results_dir tests/data/written_by_7492481"
WIDTHS = ("60", "80", "120", "200", "pipe")
COMMANDS = {
    "tasks": "",
    "recipes_list": "recipes list",
    "recipes_show": "recipes show llama3_8b",
    "golden_list": "golden list",
    "golden_show": "golden show h100/llama3_70b.sft.fp8_cs.32gpu.core_attn",
    "results_list": f"results list {RESULTS}",
    "results_show": f"results show run-1 {RESULTS}",
    "results_show_sweep": f"results show sweep-1 {RESULTS}",
    "results_show_night": f"results show night-1 {RESULTS}",
    "compare": f"compare run-1 {RESULTS}",
    "explain": f"explain run-1 run-1 {RESULTS}",
    "diagnose": f"diagnose run-1 --no_plan {RESULTS}",
}
_STEERING = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_FIGURE = re.compile(r"[\d.]+ (?:GiB|MiB|KiB|ms|TFLOP/s/GPU|%)")
_PATH = re.compile(r"(?:[\w.-]+/){3,}[\w.,-]+")


def printed(command, width):
    """Both streams as a terminal of ``width`` columns, or a pipe, gets them, without colours."""
    terminal = {} if width == "pipe" else {"COLUMNS": width, "FORCE_COLOR": "1", "TERM": "xterm"}
    done = subprocess.run(
        [sys.executable, "-c", "from harness.app import main; main()", *command.split()],
        cwd=ROOT, env=os.environ | terminal, capture_output=True, text=True, check=False,
    )  # fmt: skip
    text = _STEERING.sub("", done.stdout + done.stderr).replace(str(ROOT), "/checkout")
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_an_output_is_as_it_was_looked_at(name):
    assert {width: printed(COMMANDS[name], width) for width in WIDTHS} == {
        width: (KEPT / f"{name}.{width}.txt").read_text(encoding="utf-8") for width in WIDTHS
    }


@pytest.mark.parametrize("path", sorted(KEPT.glob("*.txt")), ids=lambda path: path.stem)
def test_figures_paths_and_headings_of_a_narrow_output_are_those_of_the_pipe(path):
    """What a terminal drops may be missing; what it shows is whole, and no heading comes twice."""
    shown, piped = (
        one.read_text(encoding="utf-8") for one in (path, path.with_name(f"{path.stem.split('.')[0]}.pipe.txt"))
    )
    for whole in (_FIGURE, _PATH):
        assert set(whole.findall(shown)) <= set(whole.findall(piped))
    first = shown.splitlines()[0]
    assert shown.splitlines().count(first) == 1


def main():
    """Write every file anew."""
    KEPT.mkdir(exist_ok=True)
    asked = [(name, width) for name in COMMANDS for width in WIDTHS]
    with ThreadPoolExecutor(2) as pool:
        for (name, width), text in zip(
            asked, pool.map(lambda one: printed(COMMANDS[one[0]], one[1]), asked), strict=True
        ):
            (KEPT / f"{name}.{width}.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
