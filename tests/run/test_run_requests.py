"""A wrong request, folder or limit ends with exit code 2 and names the nearest right one. Nothing is started."""

import os
import re
from importlib.util import find_spec

import pytest

from harness.records.store import read_run

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="without torch that is reported first")
RECIPE = ("-mr", "llama3_8b", "-g", "cpu")


@pytest.mark.parametrize(
    "row",
    [
        (("-mr", "llama3_8bb"), "'llama3_8bb'", "'llama3_8b'"),
        (("-mr", "llama3_8b", "-m", "lama"), "-m lama: ", "'llama3_8b'", "-m llama"),
        ((*RECIPE, "--recompute_modules", "core_atn"), "module 'core_atn'", "'core_attn'"),
        ((*RECIPE, "--set", "model.num_layer=3"), "--set model.num_layer: ", "'model.num_layers'"),
        ((*RECIPE, "--launcher", "torchrum"), "--launcher 'torchrum': ", "'torchrun'"),
        (("-mr", "llama3_8b", "-g", "h1000"), "--gpu: ", "'h1000'", "a100, h100, h200, b200"),
        ((*RECIPE, "-vp", "two"), "--virtual_pipeline_model_parallel_size 'two' "),
        ((*RECIPE, "--max_steps", "0"), "--max_steps: ", " 1, ", " 0\n"),
        ((*RECIPE, "--timeout", "-1"), "--timeout -1 "),
        ((*RECIPE, "--timeout", "inf"), "--timeout inf "),
        ((*RECIPE, "--hang_timeout", "nan"), "--hang_timeout nan "),
        ((*RECIPE, "--memory_limit", "inf"), "--memory_limit inf "),
        ((*RECIPE, "-E", "PGPASSWORD=hunter2"), "PGPASSWORD "),
        ((*RECIPE, "--repeats", "0"), "--repeats 0 ", " 10,000"),
        ((*RECIPE, "--repeats", "2", "--run_dir", "somewhere"), "--run_dir ", "--repeats "),
        ((*RECIPE, "--launcher", "replay"), "replay ", "--from RUN_FOLDER"),
        ((*RECIPE, "-E", "RANK=3"), " RANK "),
        ((*RECIPE, "--pass_env", "NO_SUCH_NAME"), "--pass_env NO_SUCH_NAME: "),
        ((*RECIPE, "--recompute_granularity", "full"), "--recompute_method", "--recompute full:uniform:1", "--recompute_num_layers"),
        ((*RECIPE, "-mq", "3"), "-mq (did you mean '-q' or '-m' or '-ms'?)"),
        ((*RECIPE, "--recompute_modles", "mlp"), " --recompute_modles"),
        ((*RECIPE, "--max_steps", "many"), "--max_steps: 'many' "),
        ((*RECIPE, "--recompute", "full:uniform:1", "--cuda_graph_impl", "transformer_engine", "--cuda_graph_scope", "attn"),
         "megatron-core's message: "),
        ((*RECIPE, "-gb", "5", "-mb", "2"), "megatron-core's message: "),
        ((*RECIPE, "-pp", "3"), "num_gpus 2 ", "TP 1 x PP 3 x CP 1"),
    ],
)  # fmt: skip
def test_a_wrong_request_says_what_is_wrong_and_what_to_do(mbr_perf, tmp_path, row):
    arguments, *names = row
    answer = mbr_perf("run", *arguments, "--results_dir", tmp_path / "results")
    assert (answer.code, answer.out, [name for name in names if name not in answer.err]) == (2, "", []), answer.err
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        (("-c", "bf61", "--recompute_modules", "core_atn", "--set", "model.num_layer=3"), ("bf61", "core_atn", "model.num_layer:")),
        (("-E", "RANK=3", "--timeout", "-1", "-tp", "3"), (" RANK ", "--timeout -1", "P03: ")),
        (("-tp", "3", "-vp", "3"), ("P03: ", "P09: ")),
        (("--recompute", "mlp,foo", "-tp", "0", "-mb", "0", "-E", "FOO"),
         ("module 'foo'", "--env FOO: no '='", "--tensor_model_parallel_size: ", "--micro_batch_size: ")),
    ],
)  # fmt: skip
def test_problems_of_several_stages_are_reported_together(mbr_perf, typed, named):
    message = mbr_perf("run", *RECIPE, *typed, "--dryrun").err
    assert [name for name in named if name not in message] == [], message


def test_a_rule_can_be_overruled_and_the_record_will_say_so(mbr_perf):
    without_effect = ("run", *RECIPE, "--recompute_modules", "moe", "--dryrun")
    refused = mbr_perf(*without_effect)
    assert refused.code == 2
    assert "EFF01: recompute moe " in refused.err and "--force EFF01 " in refused.err
    forced = mbr_perf(*without_effect, "--force", "EFF01")
    assert forced.code == 0
    assert "Forced: EFF01: recompute moe " in forced.out


@needs_torch
def test_a_gpu_run_without_the_gpus_is_refused_before_anything_is_written(mbr_perf, tmp_path):
    answer = mbr_perf("run", "-mr", "llama3_8b", "-g", "b300", "--results_dir", tmp_path / "results")
    assert answer.code == 2
    assert ": 8; it has 0 " in answer.err
    assert not (tmp_path / "results").exists()


@needs_torch
@pytest.mark.parametrize("options", [(), ("--dryrun",)])
def test_goldens_that_are_not_there_are_reported_before_anything_is_written(mbr_perf, tmp_path, options):
    goldens, results = tmp_path / "nowhere", tmp_path / "results"
    answer = mbr_perf("run", *RECIPE, "--golden_values_path", goldens, "--results_dir", results, *options)
    assert (answer.code, str(goldens) in answer.err) == (2, True), answer.err
    assert not results.exists()


@pytest.mark.slow
@pytest.mark.skipif(find_spec("transformer_engine") is not None, reason="with it nothing hangs on what GPUs there are")
def test_gpus_that_nvml_does_not_tell_are_noted_by_check_and_start_nothing(mbr_perf, tmp_path, monkeypatch):
    (tmp_path / "pynvml.py").write_text("raise SystemExit('the driver is gone')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    asked, message = ("-mr", "llama3_8b", "-g", "h100"), "exit code 1: the driver is gone"
    checked = " ".join(mbr_perf("check", *asked, "-v").out.split())
    assert f"{message}): transformer-engine " in checked
    shown = " ".join(mbr_perf("run", *asked, "--dryrun", "-v").out.split())
    assert message in shown
    suite = tmp_path / "suite.yaml"
    suite.write_text("title: t\ndefaults: {request: {model_recipe_name: llama3_8b, gpu: h100}}\ncases: [{name: a}]\n")
    for words in (("sweep", *asked, "--over", "recompute=none; mlp"), ("nightly", suite)):
        answer = mbr_perf(*words, "--results_dir", tmp_path / "results")
        assert (answer.code, message in answer.err) == (2, True), answer.err
    run = mbr_perf("run", *asked, "--results_dir", tmp_path / "results")
    assert (run.code, "nvidia-smi" in run.err) == (2, True), run.err
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("command", [("sweep", *RECIPE, "--over", "recompute=mlp"), ("nightly", "cpu_smoke")])
@pytest.mark.parametrize(("option", "value"), [("--timeout", "nan"), ("--timeout", "inf"), ("--hang_timeout", "nan")])
def test_a_limit_that_is_no_number_is_refused_for_many_runs_as_for_one(mbr_perf, tmp_path, command, option, value):
    answer = mbr_perf(*command, option, value, "--dryrun", "--results_dir", tmp_path / "results")
    assert (answer.code, answer.out) == (2, "")
    assert f"{option} {value} " in answer.err


GIB = 1024**3
SMALL = ("-mr", "llama3_8b", "-g", "cpu", "--num_layers", "4", "-sl", "256", "-ms", "4", "--eval_time_start_step", "2")


@pytest.mark.parametrize("limit", ["0", "-1", "nan", "inf", "1e-12"])
def test_a_limit_that_is_none_is_refused(mbr_perf, limit):
    answer = mbr_perf("run", *SMALL, "--memory_limit", limit, "--dryrun")
    assert answer.code == 2
    assert f"--memory_limit {float(limit):g} must be a finite number above 0" in answer.err


def test_a_step_cannot_be_both_watched_and_measured(mbr_perf):
    answer = mbr_perf("run", *SMALL[:-1], "1", "--memory_limit", "1", "--dryrun")
    assert answer.code == 2
    assert re.search(r"CPU17: .* 0 and 1; .* step 1\n", answer.err)


@pytest.mark.slow
def test_a_limit_above_what_the_gpu_has_is_refused(mbr_perf):
    answer = mbr_perf("check", "-mr", "llama3_8b", "-g", "h100", "--memory_limit", "96")
    assert answer.code == 2
    assert "RUN06" in answer.out + answer.err


@pytest.mark.parametrize("gpu", ["cpu", "h100"])
def test_a_limit_makes_another_experiment_on_a_gpu_only(make_spec, gpu):
    measure = make_spec(gpu=gpu).measure.model_copy(update={"memory_limit_bytes": GIB})
    assert (make_spec(gpu=gpu, measure=measure).fingerprint == make_spec(gpu=gpu).fingerprint) is (gpu == "cpu")


@pytest.mark.parametrize("left", ["rank_000.json", "rank_000.progress.jsonl"])
def test_ranks_of_a_run_that_was_never_committed_are_not_taken_for_this_ones(replay, tmp_path, left):
    ranks = tmp_path / "mine" / "ranks"
    ranks.mkdir(parents=True)
    (ranks / left).write_text("")
    answer = replay("ok", "--run_dir", tmp_path / "mine")
    assert answer.code == 2
    assert "already holds a run\n  name a new folder" in answer.err
    assert not (tmp_path / "mine" / "record.json").exists()


def test_a_run_folder_that_cannot_be_made_is_a_wrong_request(replay, tmp_path):
    (tmp_path / "file").write_text("")
    answer = replay("ok", "--run_dir", tmp_path / "file" / "run")
    assert answer.code == 2
    assert re.search(f"error: --run_dir {tmp_path / 'file' / 'run'}: .*Not a directory", answer.err)


def test_every_fault_of_a_golden_is_reported_with_the_run_that_is_kept(replay, tmp_path):
    (tmp_path / "golden.json").write_text('{"kind": "measured", "recipe": 3}')
    answer = replay("ok", "--golden_values_path", tmp_path / "golden.json")
    assert answer.code == 2
    (kept,) = (tmp_path / "results" / "runs").iterdir()
    assert f" {kept}" in answer.err
    assert "golden.json:1: recipe: " in answer.err
    assert "golden.json:1: metrics: " in answer.err
    assert read_run(kept).status == "ok"


@pytest.mark.parametrize(("name", "code"), [("ok", 0), ("oom", 4), ("killed", 3)])
def test_a_further_node_says_how_the_run_ended_and_leaves_the_record_to_the_first(replay, tmp_path, name, code):
    node = ("--nnodes", "2", "--node_rank", "1", "--master_addr", "node0", "--run_dir", tmp_path / "shared")
    assert replay(name, *node).code == code
    assert not (tmp_path / "shared" / "record.json").exists()
