"""What is to become of a cell, and what the installed megatron-core says of it before a GPU is taken."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.batch.batch import ask_megatron
from harness.experiment.gpu import GPUS
from harness.launch.environment import Host, this_host
from harness.nightly.plan import NightRequest, draft_cases
from harness.records.rank import Failure
from harness.records.sweep import PlannedCell
from harness.resolve.recipe import Request
from harness.resolve.suite import only
from harness.resolve.suite_file import read_suite
from harness.sweep.batch import SweepBatch, lessons
from harness.sweep.plan import plan_sweep
from harness.sweep.request import SweepRequest, split_over
from harness.units import GIB
from tests.sweep.conftest import predicted

OOM = Failure(kind="oom", message="not enough memory", phase="forward_backward", step=1)


def cell(index, spec, prediction):
    return PlannedCell(index=index, name=f"{index} {spec.recompute.text}", changes={}, recompute=spec.recompute.text,
                       fate="run", spec=spec, prediction=prediction)  # fmt: skip


@pytest.fixture(name="oom")
def _oom(make_spec, make_rank, make_record):
    """A cell of two stages that ran out of memory on the given ranks, and its record."""

    def make(*ranks, prediction):
        spec = make_spec(gpu="cpu", recompute="mlp", parallelism={"pipeline_model_parallel_size": 2})
        built = [make_rank(spec, rank) for rank in (0, 1)]
        for rank in ranks:
            built[rank] = built[rank].model_copy(update={"failure": OOM})
        return cell(0, spec, prediction), make_record(spec, status="oom", ranks=tuple(built))

    return make


def other(make_spec, index, recompute, prediction, **changes):
    spec = make_spec(gpu="cpu", recompute=recompute, parallelism={"pipeline_model_parallel_size": 2}, **changes)
    return cell(index, spec, prediction)


def test_an_oom_rules_out_what_needs_as_much_on_the_stage_that_ran_out(oom, make_spec):
    taught_by, record = oom(1, prediction=predicted(9 * GIB, 5 * GIB))
    larger = other(make_spec, 1, "none", predicted(9 * GIB, 6 * GIB))
    smaller_there = other(make_spec, 2, "core_attn", predicted(12 * GIB, 4 * GIB))
    ((ruled_out, why),) = lessons(taught_by, record, (taught_by, larger, smaller_there))
    assert ruled_out == larger
    assert re.search(r"\b6.00 GiB .*stage 1, .*0 mlp \(.* 5.00 GiB", why)


def test_a_lesson_closes_no_cell_that_ran_or_was_closed_before(oom, make_spec, tmp_path):
    taught_by, record = oom(1, prediction=predicted(9 * GIB, 5 * GIB))
    rows = [other(make_spec, n, "none", predicted(9 * GIB, 6 * GIB)) for n in (1, 2, 3)]
    plan = SimpleNamespace(planned=(taught_by, *rows), prune=True)
    batch = SweepBatch(tmp_path, this_host(), plan, {(0, 0): "oom", (1, 0): "ok"}, {rows[1].name})
    assert [name for name, _ in batch._learn(taught_by, record)] == [rows[2].name]
    assert batch._learn(taught_by, record.model_copy(update={"status": "ok"})) == ()


def test_an_oom_says_nothing_about_another_layout_or_an_unpredicted_cell(oom, make_spec):
    taught_by, record = oom(0, prediction=predicted(5 * GIB, 5 * GIB))
    batch = {"micro_batch_size": 2, "global_batch_size": 4, "seq_length": 32}
    others = (other(make_spec, 1, "none", predicted(9 * GIB, 9 * GIB), batch=batch), other(make_spec, 2, "none", None))
    assert not list(lessons(taught_by, record, others))


def test_the_memory_of_a_rank_is_the_less_of_limit_and_device(make_spec):
    assert make_spec().capacity_bytes == GPUS["h100"].usable_bytes < 80 * GIB
    assert make_spec(measure={"memory_limit_bytes": 7}).capacity_bytes == 7
    assert make_spec(gpu="cpu").capacity_bytes is None
    assert make_spec(gpu="cpu", measure={"memory_limit_bytes": 7}).capacity_bytes == 7


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
