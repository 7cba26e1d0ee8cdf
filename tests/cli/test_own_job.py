"""A job that a file of another program describes: one source, its name, and its way into requests and commands."""

from dataclasses import replace

import pytest

import harness.api
from harness.cli.commands import job_words
from harness.cli.options import ExperimentOptions
from harness.cli.requests import experiment_request, require_job
from harness.resolve.recipe import ForeignSource, Request
from harness.resolve.sweep_file import laid_over
from tests.commands import refused

OWN = ExperimentOptions(bridge_config="jobs/mine.yaml", gpu="h100")


def test_a_file_stands_in_place_of_the_recipe():
    request = experiment_request(OWN)
    assert request.source == ForeignSource("bridge_config", "jobs/mine.yaml")
    assert (request.job_name, request.job_words) == ("mine", ("--bridge_config", "jobs/mine.yaml"))
    require_job(request)
    recipe = experiment_request(ExperimentOptions(model_recipe_name="my/llama3_8b.yaml"))
    assert (recipe.source, recipe.job_name, recipe.job_words) == (None, "llama3_8b", ("-mr", "my/llama3_8b.yaml"))


@pytest.mark.parametrize(
    ("more", "problems"),
    [
        ({"model_recipe_name": "llama3_8b"}, ["-mr llama3_8b and --bridge_config jobs/mine.yaml: "]),
        ({"hf": "m", "megatron_args": "-"}, ["--bridge_config jobs/mine.yaml and --hf m and --megatron_args -: "]),
        ({"variant": "v", "point_gpu": "b200"}, ["-cv, --point_gpu: ", "--bridge_config"]),
        ({"bridge_config": ""}, ["--bridge_config : "]),
        ({"bridge_config": "-"}, ["--bridge_config -: "]),
        ({"hf": "m", "model_family_name": "llama", "virtual_pipeline_model_parallel_size": "x"},
         ["--bridge_config jobs/mine.yaml and --hf m: ", "-m: ", "--virtual_pipeline_model_parallel_size 'x' "]),
    ],
)  # fmt: skip
def test_all_that_contradicts_a_file_is_reported_at_once(more, problems):
    refused(lambda: experiment_request(replace(OWN, **more)), *problems, num=None)


def test_without_any_job_the_error_names_every_way_to_give_one():
    asked, options = experiment_request(ExperimentOptions()), ("-mr", "--bridge_config", "--hf", "--megatron_args")
    refused(lambda: require_job(asked, "--resume SWEEP"), *options, "--resume SWEEP")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("Meta Llama-3.yaml", "meta_llama-3"),
        ("exp/job_7/run_config.yaml", "job_7"),
        ("-", "bridge_config"),
        ("____.yaml", "bridge_config"),
        (f"{'x' * 80}.yaml", "x" * 64),
    ],
)
def test_a_job_has_a_name_that_a_folder_can_have(path, name):
    assert ForeignSource("bridge_config", path).name == name


def test_messages_never_name_a_file_like_an_option():
    assert ForeignSource("megatron_args", "-").label == "standard input"
    assert ForeignSource("megatron_args", "-x.sh").label == "./-x.sh"


def test_a_file_replaces_the_recipe_of_a_sweep_file():
    base = Request(model_recipe_name="llama3_8b", gpu="h100", variant="v", num_gpus=8)
    merged = laid_over(base, Request(model_recipe_name="", gpu="", source=ForeignSource("hf", "m")))
    assert (merged.job_name, merged.model_recipe_name, merged.variant, merged.num_gpus) == ("m", "", None, 8)


def test_a_recipe_option_on_a_file_of_bridge_names_the_other_option(mbr_perf, tmp_path):
    path = tmp_path / "run_config.yaml"
    path.write_text(
        "_target_: megatron.bridge.training.config.ConfigContainer\noptimizer: {grad_norm_skip_threshold: .inf}\n"
    )
    answer = mbr_perf("check", "-mr", path, "-g", "h100")
    assert answer.code == 2
    assert answer.err.startswith(f"error: -mr {path}: ") and answer.err.endswith(f"\n  --bridge_config {path}\n")


def test_the_python_interface_takes_a_file_and_needs_a_job():
    refused(lambda: harness.api.plan(ExperimentOptions(gpu="h100")), "job", "-mr")
    [problem] = refused(lambda: harness.api.plan(ExperimentOptions(model_family_name="llama3_70b")), "job")
    assert problem.remedy.endswith(" -mr llama3_70b")


@pytest.mark.parametrize(
    ("name", "text", "option"),
    [
        ("train.sh", "#!/bin/bash\ntorchrun pretrain_gpt.py --num-layers 2", "--megatron_args"),
        ("job.log", "iteration 1", "--megatron_args"),
        ("config.json", '{"model_type": "llama"}', "--hf"),
        ("own.yaml", "name: own\n", "-mr"),
        ("any.yaml", "_target_: megatron.bridge.training.config.ConfigContainer\n", "--bridge_config"),
        ("run_config.yaml", "model: {}\n", "--bridge_config"),
    ],
)
def test_a_file_in_the_first_place_is_known_by_its_content(tmp_path, name, text, option):
    file = tmp_path / name
    file.write_text(text)
    assert job_words(str(file)) == [option, str(file)]


def test_what_is_no_file_is_a_recipe_and_a_folder_one_of_another_program(tmp_path):
    assert job_words("llama3_8b") == ["-mr", "llama3_8b"]
    (tmp_path / "config.json").write_text("{}")
    assert job_words(str(tmp_path)) == ["--hf", str(tmp_path)]


@pytest.mark.slow
def test_a_file_behind_an_option_of_several_values_is_refused_with_the_right_order(mbr_perf, tmp_path):
    script = tmp_path / "train.sh"
    script.write_text("torchrun pretrain_gpt.py --num-layers 2")
    answer = mbr_perf("plan", "--over", "tp=2,4", str(script))
    assert (answer.code, answer.out) == (2, "")
    assert f"mbr-perf plan {script} --over" in answer.err
    assert mbr_perf("plan", "--only", "none", str(script), "-g", "h100").code == 2
    assert mbr_perf("check", "llama3_8b", "-g", "cpu").code == 0


def test_a_job_behind_an_option_is_refused_and_a_missing_file_is_no_recipe(mbr_perf):
    behind = mbr_perf("plan", "-g", "h100", "llama3_8b", "-tp", "2")
    assert behind.code == 2 and "mbr-perf plan JOB " in behind.err
    assert mbr_perf("plan", "llama3_8b", "-g", "h100", "llama3_70b").code == 2
    assert mbr_perf("check", "llama3_70b", "-mr", "llama3_8b", "-g", "h100").code == 2
    slip = mbr_perf("plan", "-m", "lama", "-g", "h100")
    assert slip.code == 2 and "-m lama" in slip.err and "'llama'" in slip.err
    missing = mbr_perf("plan", "nofile.sh", "-g", "h100")
    assert missing.code == 2 and missing.err.startswith("error: nofile.sh: ")
