"""`mbr-perf run --ab` as people call it, with recorded runs in place of training."""

import json
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
from tests.conftest import layers_of, record_run
from tests.diagnose.conftest import FRAGMENTED

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
