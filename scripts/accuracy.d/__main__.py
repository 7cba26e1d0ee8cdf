"""``scripts/accuracy [NAME...]``: predicts, compares, keeps JSON and one markdown table each."""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import cpu_runs
import llama3_70b
import published
from causes import CAUSES
from rich.console import Console
from tables import by_class, case_table, class_table, left_out_table

from harness.errors import ExitCode
from harness.launch.environment import this_host
from harness.records.atomic import write_atomically
from harness.records.store import results_dir
from harness.runner.machine import installed_software

FOLDER = results_dir() / "accuracy"
INPUTS = FOLDER / "inputs"


def megatron_lm() -> tuple[dict[str, Any], list[str]]:
    """Peaks of Megatron-LM's functional tests."""
    source = INPUTS / "megatron_lm_goldens.json"
    cases, left_out = published.read_cases(source)
    compared, unpredicted = published.compare(cases, this_host())
    left_out |= unpredicted
    classes = by_class(compared)
    document = {
        "source": json.loads(source.read_text())["source"],
        "classes": [asdict(row) for row in classes],
        "cases": [row.document() for row in compared],
        "left_out": left_out,
    }
    lines = ["# Predicted and published peaks: Megatron-LM's functional tests", "", document["source"], ""]
    lines += [*class_table(classes), "", "Causes of what is off:", "", *(f"- {cause}" for cause in CAUSES)]
    lines += ["", *left_out_table(left_out), "", *case_table(compared)]
    return document, lines


def llama3_70b_sft() -> tuple[dict[str, Any], list[str]]:
    """Megatron-Bridge's published Llama3-70B table."""
    source = INPUTS / "llama3_70b_sft.json"
    rows = llama3_70b.compare(source, this_host())
    about = json.loads(source.read_text())["source"]
    text = "The runs captured the MLP in CUDA graphs, whose private pools are not modelled: the range is wide for that."
    title = "# Predicted and published peaks: Llama3-70B SFT on 32 H100"
    return {"source": about, "rows": rows}, [title, "", about, "", text, "", *llama3_70b.table(rows)]


def cpu() -> tuple[dict[str, Any], list[str]]:
    """Real runs on this machine's processor."""
    rows = cpu_runs.compare(this_host())
    title = "# Predicted and measured peaks: runs on a processor"
    return {"rows": rows}, [title, "", *cpu_runs.table(rows)]


COMPARISONS: dict[str, Callable[[], tuple[dict[str, Any], list[str]]]] = {
    "megatron_lm": megatron_lm,
    "llama3_70b_sft": llama3_70b_sft,
    "cpu": cpu,
}


def main() -> int:
    """0 when all comparisons were made: how far they are off is for the reader."""
    parser = argparse.ArgumentParser(prog="scripts/accuracy", description=main.__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(COMPARISONS)}; default: all")
    parser.add_argument("--out", type=Path, default=FOLDER, help="where results are kept")
    options = parser.parse_args()
    unknown = set(options.names) - set(COMPARISONS)
    if unknown:
        parser.error(f"no such comparison: {', '.join(sorted(unknown))}")
    options.out.mkdir(parents=True, exist_ok=True)
    software = installed_software().model_dump(mode="json")
    for name in options.names or list(COMPARISONS):
        Console(stderr=True).print(f"comparing {name}", markup=False)
        document, lines = COMPARISONS[name]()
        text = json.dumps({"software": software} | document, indent=1, sort_keys=True)
        write_atomically(options.out / f"{name}.json", f"{text}\n")
        write_atomically(options.out / f"{name}.md", "\n".join(lines) + "\n")
        Console(highlight=False).print("\n".join(lines[:40]), markup=False, soft_wrap=True)
    return int(ExitCode.OK)


if __name__ == "__main__":
    sys.exit(main())
