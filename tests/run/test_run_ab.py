"""`mbr-perf run --ab` as people call it: what may differ, with recorded runs in place of training."""

import json
import sys
from pathlib import Path

import pytest

from harness.launch.environment import this_host
from harness.records.batches import SWEEP_FOLDERS, BatchLaunch
from harness.records.rank import Failure
from harness.records.store import write_record
from harness.records.sweep import run_dir_of
from harness.resolve.recipe import Request
from harness.run.ab import ab_request
from harness.sweep.plan import plan_sweep
from harness.sweep.request import SweepRequest
from tests.commands import refused
from tests.conftest import layers_of, record_run
from tests.diagnose.conftest import FRAGMENTED
from tests.environments import environment

RECIPE = Path(__file__).parents[1] / "data" / "replay" / "replayed.yaml"
TEXT = "env.PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


@pytest.fixture(name="recorded")
def _recorded(make_rank, make_record, tmp_path):
    """A recorded A/B on two H100 whose A ran out of memory by fragmentation."""
    asked = Request(model_recipe_name=str(RECIPE), gpu="h100")
    sweep = SweepRequest(asked=asked, over=(), launch=BatchLaunch(launcher="replay"))
    plan = plan_sweep(ab_request(TEXT, sweep, this_host()), this_host(), asks_megatron=False)
    folder = tmp_path / "recorded"
    folder.mkdir()
    SWEEP_FOLDERS.write_plan(folder, plan)
    for cell in plan.cells:
        ranks = [make_rank(cell.spec, rank, recompute=layers_of(cell.spec, rank)) for rank in (0, 1)]
        oom = Failure(kind="oom", message=FRAGMENTED, phase="forward_backward", step=2)
        run_dir = run_dir_of(folder, cell.index, 0)
        record_run(run_dir, cell.spec, ranks, None if cell.index else oom)
        write_record(run_dir, make_record(cell.spec, ranks=tuple(ranks)))
    return folder


@pytest.fixture(name="ab")
def _ab(mbr_perf, recorded, tmp_path):
    def run(*arguments):
        return mbr_perf("run", "-mr", RECIPE, "-g", "h100", "--ab", TEXT, "--launcher", "replay", "--from", recorded,
                        "--results_dir", tmp_path / "results", *arguments)  # fmt: skip

    return run


@pytest.mark.slow
def test_an_a_b_is_a_sweep_of_two_cells(ab):
    document = json.loads(ab("--json").out)
    assert [cell["status"] for cell in document["cells"]] == ["oom", "ok"]
    assert [cell["control"] for cell in document["cells"]] == [True, False]


def test_slurm_is_pointed_to_a_sweep(mbr_perf):
    answer = mbr_perf("run", "-mr", RECIPE, "-g", "cpu", "--ab", TEXT, "--launcher", "slurm", "--time_limit", "5")
    assert answer.code == 2
    assert f"mbr-perf sweep --launcher slurm --over {TEXT}" in answer.err


@pytest.mark.parametrize(("option", "value"), [("--partition", "=a"), ("--explain", "")])
def test_options_that_an_a_b_cannot_have_are_refused(mbr_perf, option, value):
    answer = mbr_perf("run", "-mr", RECIPE, "-g", "cpu", "--ab", TEXT, option + value)
    assert (answer.code, option in answer.err) == (2, True)


def test_several_ab_are_refused_and_the_message_has_the_sweep(mbr_perf):
    answer = mbr_perf("run", "-mr", "llama3_8b", "--ab", "env.A=1", "--ab", "recompute=mlp; none", "--dryrun")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("error: --ab ") and " 2 " in answer.err
    assert "mbr-perf sweep --over env.A=1 --over 'recompute=mlp; none'" in answer.err


ALLOCATOR = "env.PYTORCH_CUDA_ALLOC_CONF"
EXPANDABLE = "expandable_segments:True"


@pytest.fixture(name="cells")
def _cells():
    """The cells of an A/B of Llama 3 8B on the CPU, without a prediction."""

    def build(text, **asked):
        request = Request(**{"model_recipe_name": "llama3_8b", "gpu": "cpu"} | asked)
        sweep = SweepRequest(asked=request, over=(), launch=BatchLaunch(launcher="replay"))
        return plan_sweep(ab_request(text, sweep, this_host()), this_host(), asks_megatron=False).cells

    return build


LLAMA = {"model_recipe_name": "llama3_70b", "task": "sft", "gpu": "h100", "compute_dtype": "fp8_cs", "num_gpus": 32}


@pytest.mark.parametrize("asked", [{}, LLAMA], ids=["a recipe without them", "a recipe with them"])
def test_a_goes_without_expandable_segments_and_b_with_them(cells, asked):
    a, b = cells(f"{ALLOCATOR}={EXPANDABLE}", **asked)
    assert (a.fate, b.fate) == ("run", "run")
    assert [cell.spec.env["PYTORCH_CUDA_ALLOC_CONF"] for cell in (a, b)] == ["", EXPANDABLE]


def test_other_settings_of_the_allocator_stay_as_they_are_in_a(cells):
    a, _ = cells(f"{ALLOCATOR}={EXPANDABLE}", env=("PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64",))
    assert a.spec.env["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:64"


def test_a_value_with_commas_is_one_value(cells):
    a, b = cells("recompute=core_attn,layernorm", recompute="mlp")
    assert [cell.spec.recompute.text for cell in (a, b)] == ["mlp", "core_attn,layernorm"]


def test_any_option_or_setting_may_differ(cells):
    assert [cell.spec.batch.micro_batch_size for cell in cells("mb=2")] == [1, 2]
    assert [cell.spec.kernels.attention_backend for cell in cells("kernels.attention_backend=unfused")][1] == "unfused"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("recompute=none", "--ab recompute=none: "),
        ("recompute=mlp; none", "--ab recompute=mlp; none: "),
        ("mlp", "--ab mlp: no '='"),
        ("tp=x", "--ab tp: 'x' "),
    ],
)
def test_what_is_no_b_is_refused(cells, text, named):
    refused(lambda: cells(text, recompute="none"), named)


@pytest.mark.parametrize("text", ["mlp", "mb=", "mb=2; 4"])
def test_the_example_of_a_refusal_is_one_that_is_taken(cells, text):
    [problem] = refused(lambda: cells(text, recompute="none"))
    named = [word.rstrip(",") for word in problem.remedy.split() if "=" in word]
    assert named
    assert all(len(cells(example, recompute="none")) == 2 for example in named)


ASKED = ("-m", "llama", "-mr", "llama3_8b", "-g", "cpu", "-ms", "6", "--eval_time_start_step", "2", "-sl", "64")


@pytest.mark.slow
def test_the_cells_differ_in_the_environment_alone_and_both_run(mbr_perf, tmp_path):
    python = environment(tmp_path / "env")
    answer = mbr_perf("run", *ASKED, "--ab", f"python={python}", "--dryrun", "--json")
    cells = json.loads(answer.out)["cells"]
    assert answer.code == 0
    assert [(cell["fate"], cell["changes"]["python"]) for cell in cells] == [("run", "own"), ("run", str(python))]


@pytest.mark.slow
@pytest.mark.parametrize("command", [("run", "--ab"), ("sweep", "--over")])
def test_a_wrong_environment_is_a_wrong_request(mbr_perf, tmp_path, command):
    name, option = command
    for path in (tmp_path / "none", tmp_path, sys.executable):
        answer = mbr_perf(name, *ASKED, option, f"python={path}", "--results_dir", tmp_path / "results")
        assert (answer.code, answer.out, str(path) in answer.err) == (2, "", True), answer.err
    assert not (tmp_path / "results").exists()


@pytest.mark.train
@pytest.mark.long
def test_a_slowed_build_is_the_slower_cell(mbr_perf, tmp_path):
    slowed = environment(tmp_path / "slow", sleep_s=0.3)
    answer = mbr_perf("run", *ASKED, "--ab", f"python={slowed}", "--repeats", "3", "--results_dir", tmp_path, "--json")
    own, other = json.loads(answer.out)["cells"]
    assert (own["status"], other["status"]) == ("ok", "ok")
    assert other["vs_control"]["time"]["interval"][0] > 0
    assert other["vs_control"]["memory"]["saved_bytes"] == 0
