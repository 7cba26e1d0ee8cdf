"""The exported file of a plan sets it on models that megatron-core's own builders made, and refuses another layout."""

import json
import shutil
from pathlib import Path

import pytest

from tests.engine.conftest import run_forked

pytestmark = [pytest.mark.train, pytest.mark.slow]
MEGATRON_LM = Path(__file__).parent / "megatron_lm"
PLAN = "plan:1xfull+1xmlp/2xcore_attn,mlp;1xlayernorm+1xnone/2xfull"
PLANNED = [[["full", "mlp"], ["core_attn,mlp"] * 2], [["layernorm", "none"], ["full"] * 2]]
JOB = ("-mr", "llama3_8b", "-g", "cpu", "-ng", "2", "-pp", "2", "-vp", "2", "--num_layers", "8")


@pytest.fixture(name="folder")
def _folder(tmp_path, mbr_perf):
    """A folder of Megatron-LM with the exported file in it."""
    folder = tmp_path / "megatron_lm"
    shutil.copytree(MEGATRON_LM, folder)
    done = mbr_perf("recipes", "export", *JOB, "--recompute", PLAN, "--as", "python")
    assert done.code == 0, done.err
    (folder / "planned.py").write_text(done.out)
    return folder


@pytest.mark.parametrize(("program", "stage"), [("planned.py", 0), ("planned.py", 1), ("bridge.py", 1)])
def test_the_plan_is_set_on_the_layers_of_every_stage(folder, program, stage):
    done = run_forked(folder / program, 2, 2, 8, stage, "none", folder=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == PLANNED[stage]


@pytest.mark.parametrize(
    ("program", "job"),
    [
        ("planned.py", (4, 2, 16, "none")),
        ("planned.py", (2, 2, 8, "full")),
        ("planned.py", (2, 2, 12, "none")),
        ("bridge.py", (2, 1, 8, "none")),
    ],
)
def test_a_job_that_the_plan_was_not_made_for_is_refused(folder, program, job):
    *sizes, recompute = job
    done = run_forked(folder / program, *sizes, 0, recompute, folder=folder)
    assert done.returncode != 0
    assert "OtherLayoutError" in done.stderr.splitlines()[-1]
