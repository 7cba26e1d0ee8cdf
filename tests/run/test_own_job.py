"""Commands on a job that a file of another program describes: what they print, record, and need later."""

import json
import re
import shlex
import shutil
import tarfile
from pathlib import Path

import pytest

from tests.imported_logs import EXPANDABLE, TABLE, job_log

RECORDED = Path(__file__).parents[1] / "data" / "bridge" / "containers_067f987.tar.xz"
SFT, SMALL = "llama3_70b_sft_32gpu_h100_fp8cs.yaml", "llama3_8b_pretrain_8gpu_h100_bf16.yaml"
SHRUNK = shlex.split(
    "--num_layers 2 --hidden_size 64 --set model.ffn_hidden_size=128 --set model.num_attention_heads=4 "
    "--set model.num_query_groups=2 --set model.kv_channels=16 --set model.vocab_size=256 -cp 1 -ng 1 -gb 2 -sl 64 -ms 5"
)


@pytest.fixture
def job(tmp_path):
    """A function that puts a recorded configuration into the folder, under a name of its own."""

    def put(name, as_name="job.yaml"):
        with tarfile.open(RECORDED) as archive:
            member = archive.extractfile(name)
            assert member is not None
            (tmp_path / as_name).write_bytes(member.read())
        return tmp_path / as_name

    return put


def test_check_explains_every_setting_by_the_file(mbr_perf, job):
    path = job(SFT)
    answer = mbr_perf("check", "--bridge_config", path, "-g", "h100", "--no_megatron", "--json", "--explain")
    document = json.loads(answer.out)
    assert (answer.code, document["spec"]["recipe"], document["spec"]["task"]) == (0, "job", "sft")
    assert re.fullmatch(rf"{re.escape(str(path))}:\d+: model\.recompute_granularity", document["sources"]["recompute"])
    text = mbr_perf(
        "check", "--bridge_config", path, "-g", "h100", "--no_megatron", "--explain", "--recompute", "mlp"
    ).out
    assert re.search(rf"{re.escape(str(path))}:\d+: model\.num_layers", text) and "--recompute" in text


def test_a_file_becomes_a_recipe_of_the_same_experiment(mbr_perf, job, tmp_path):
    path, recipe = job(SFT), tmp_path / "written" / "job.yaml"
    recipe.parent.mkdir()
    recipe.write_text(mbr_perf("recipes", "export", "--bridge_config", path, "-g", "h100", "--as", "yaml").out)
    asked = ("-g", "h100", "--no_megatron", "--json")
    ours = json.loads(mbr_perf("check", "-mr", recipe, "--task", "sft", "-c", "fp8_cs", *asked).out)
    assert ours["spec"] == json.loads(mbr_perf("check", "--bridge_config", path, *asked).out)["spec"]


def test_a_gpu_type_is_needed_where_the_machine_has_none(mbr_perf, job):
    answer = mbr_perf("check", "--bridge_config", job(SFT), "--no_megatron")
    assert answer.code == 2 and "names no GPU type" in answer.err


@pytest.mark.slow
def test_a_log_is_imported_and_diagnosed_as_the_job_of_the_file(mbr_perf, job, tmp_path):
    path, jobs = job(SFT), {each.label: each for each in TABLE}
    log, oom = tmp_path / "train.log", tmp_path / "oom.log"
    log.write_text(job_log(jobs[f"core_attn {EXPANDABLE}"]))
    oom.write_text(job_log(jobs["core_attn"]))
    own = ("--bridge_config", path, "-g", "h100", "--recompute_modules", "core_attn")
    done = mbr_perf("import", "--log", log, *own, "--results_dir", tmp_path / "results")
    assert done.code == 0, done.err
    (run,) = (tmp_path / "results" / "runs").iterdir()
    record = json.loads((run / "record.json").read_text())
    assert run.name.partition("-")[2].startswith("job-imported")
    assert record["sources"]["bridge_config"] == f"--bridge_config {path}"
    diagnosis = mbr_perf("diagnose", oom, *own, "--no_plan").out
    assert f"export {ALLOCATOR}=expandable_segments:True" in diagnosis
    fewer = mbr_perf("import", "--log", log, *own, "-ng", "16", "--results_dir", tmp_path / "results")
    assert fewer.code == 2 and "28 ranks" in fewer.err


@pytest.mark.train
@pytest.mark.slow
def test_a_shrunken_job_trains_on_a_cpu_and_its_sweep_resumes_without_the_file(mbr_perf, job, tmp_path):
    path = job(SMALL)
    over = ("--over", "recompute=none; mlp", "--results_dir", tmp_path)
    asked = ("sweep", "--bridge_config", path, "-g", "cpu", *SHRUNK, *over)
    planned = json.loads(mbr_perf(*asked, "--dryrun", "--json").out)
    assert [cell["name"] for cell in planned["cells"]] == ["none", "mlp"]
    begun = mbr_perf(*asked)
    assert begun.code in (0, 6), begun.err
    path.unlink()
    (sweep,) = (tmp_path / "sweeps").iterdir()
    shutil.rmtree(sweep / "cells" / "001" / "0")
    assert mbr_perf("sweep", "--resume", sweep, "--results_dir", tmp_path).code in (0, 6)
    runs = [json.loads(file.read_text()) for file in sweep.rglob("record.json")]
    assert sorted(run["spec"]["recompute"].get("modules", []) != [] for run in runs) == [False, True]
    assert {run["status"] for run in runs} == {"ok"}
    shutil.rmtree(sweep)


ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"


@pytest.fixture
def asked_of_script(mbr_perf, tmp_path):
    """A function that asks a command about a script that sets no variable, and returns its document."""
    script = tmp_path / "job.sh"
    script.write_text(
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --bf16 "
        "--seq-length 4096 --micro-batch-size 1 --vocab-size 128256 --tensor-model-parallel-size 2 --sequence-parallel "
        "--transformer-impl transformer_engine --use-distributed-optimizer"
    )

    def ask(command, *more):
        return json.loads(mbr_perf(command, "--megatron_args", script, "-g", "h100", *more, "--json").out)

    return ask


@pytest.mark.slow
@pytest.mark.parametrize("shell", [None, "max_split_size_mb:128"])
def test_a_job_that_mbr_perf_starts_has_the_allocator_of_its_launcher_or_of_the_shell(
    asked_of_script, monkeypatch, shell
):
    monkeypatch.delenv(ALLOCATOR, raising=False)
    if shell:
        monkeypatch.setenv(ALLOCATOR, shell)
    cell, _ = asked_of_script("sweep", "--over", "recompute=none;mlp", "--dryrun")["cells"]
    run = asked_of_script("run", "--dryrun")
    assert (cell["fate"], cell["fingerprint"]) == ("run", run["fingerprint"])
    assert cell["prediction"]["reserved_bytes"] == run["prediction"]["reserved_bytes"]
    [found] = [each for each in run["plan"]["environment"] if each["name"] == ALLOCATOR]
    known = (shell, "your shell") if shell else ("expandable_segments:True", "table")
    assert (found["value"], found["source"]) == known
    planned = asked_of_script("plan", "-E", f"{ALLOCATOR}={known[0]}")["settings"]
    assert run["prediction"]["reserved_bytes"] in [
        row["reserved_bytes"] for row in planned if row["recompute"] == "none"
    ]


@pytest.mark.parametrize("words", [("run", "--recompute_modules", "mlp"), ("sweep", "--over", "recompute=none;mlp")])
def test_a_value_of_the_shell_that_torch_refuses_ends_a_job_before_it_starts(mbr_perf, monkeypatch, words):
    monkeypatch.setenv(ALLOCATOR, "max_split_size_mb:5")
    refused = mbr_perf(*words, "-m", "mixtral", "-mr", "mixtral_8x7b", "-g", "a100", "--dryrun")
    assert (refused.code, f"{ALLOCATOR}=max_split_size_mb:5" in refused.err) == (2, True)


@pytest.mark.slow
def test_a_job_that_mbr_perf_does_not_start_has_torchs_default_in_plan_and_check(asked_of_script, monkeypatch):
    monkeypatch.setenv(ALLOCATOR, "expandable_segments:True")
    checked, [layout] = asked_of_script("check", "--no_megatron")["spec"], asked_of_script("plan")["layouts"]
    assert (layout["spec"], checked["env"][ALLOCATOR]) == (checked, "")
