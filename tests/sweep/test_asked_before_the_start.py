"""What the installed megatron-core says of the cells of a sweep and the cases of a night, before a GPU is taken."""

import sys
from pathlib import Path

import pytest

from harness.batch.batch import ask_megatron
from harness.launch.environment import Host
from harness.nightly.plan import NightRequest, draft_cases
from harness.resolve.recipe import Request
from harness.resolve.suite import only
from harness.resolve.suite_file import read_suite
from harness.sweep.plan import plan_sweep
from harness.sweep.request import SweepRequest, split_over

# It refuses mlp, breaks at what is asked with A_SETTING=2, and knows neither GPUs nor how to trace.
SCRIPT = """
import json, os, sys
if "harness.engine.config_probe" not in sys.argv:
    sys.exit("not here")
with open(os.environ["ASKED"], "a") as asked:
    for line in sys.stdin:
        question = json.loads(line)
        asked.write(str(question["env"].get("A_SETTING")) + " ")
        if "mlp" in question["spec"]["recompute"].get("modules", ()):
            print(json.dumps({"accepted": False, "kind": "ValueError", "text": "no mlp", "place": "a.py:1"}))
        elif question["env"].get("A_SETTING") == "2":
            print(json.dumps({"problem": "ended with exit code -11: no error text"}))
        else:
            print(json.dumps({"accepted": True}))
    asked.write("|")
"""
UNASKED = (
    "megatron-core's own configuration was not built: asking megatron-core ended with exit code -11: no error text"
)


@pytest.fixture
def asked(tmp_path: Path) -> Path:
    return tmp_path / "asked"


@pytest.fixture
def host(tmp_path: Path, asked: Path, program) -> Host:
    shell = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "ASKED": str(asked)}
    return Host(python=program(SCRIPT, sys.executable), hostname="node", num_cores=1, shell=shell)


@pytest.mark.slow
def test_cells_are_asked_about_at_once_under_their_own_variables(host: Host, asked: Path) -> None:
    over = (split_over("recompute=none;mlp;core_attn"), split_over("env.A_SETTING=1,2"))
    request = SweepRequest(asked=Request(model_recipe_name="llama3_8b", gpu="h100"), over=over, grid=True)
    plan = plan_sweep(request, host, asks_megatron=True)
    assert asked.read_text() == "None 1 1 1 2 2 2 |"
    refused = {cell.name for cell in plan.cells if cell.fate == "illegal"}
    assert len(refused) == 2
    assert all("mlp" in name for name in refused)
    assert [f"2 of 7: {UNASKED}; " in note for note in plan.notes if "megatron-core" in note] == [True]


def test_cases_are_asked_about_at_once_and_what_is_not_answered_stands_in_nobody_s_way(host: Host, asked: Path) -> None:
    request = NightRequest(suite="h100_nightly", only=("llama3_70b.sft.*",))
    drafts = draft_cases(only(read_suite(request.suite), request.only).cases, request, host)
    judged, notes = ask_megatron(drafts, host)
    assert asked.read_text() == "None " * len(drafts) + "|"
    assert ([draft.problem for draft in judged], notes) == ([""] * len(drafts), ())


@pytest.mark.slow
@pytest.mark.parametrize(("margin", "found"), [("0.02", ("run", "FITS")), ("0.25", ("pruned", "OOM"))])
def test_a_dry_run_shows_plans_verdict_with_its_margin_and_each_cells_allocator(mbr_perf, margin, found):
    job = ("-mr", "llama3_70b", "--task", "sft", "-g", "h100", "-c", "bf16", "-ng", "32", "--margin", margin)
    values = ("expandable_segments:True", "max_split_size_mb:128")
    over = ("--grid", "--over", f"env.PYTORCH_CUDA_ALLOC_CONF={';'.join(values)}", "--over", "recompute=none;mlp")
    lines = mbr_perf("sweep", *job, *over, "--dryrun").out.splitlines()
    rows = [line for line in lines if line[:1].isdecimal() and line[1:3] == "  "]
    assert [next(value for value in values if value in row) for row in rows] == [values[0]] * 2 + [values[1]] * 2
    assert all(" ".join(found) in " ".join(rows[place].split()) for place in (0, 2))
    assert all("run FITS" in " ".join(rows[place].split()) for place in (1, 3))
