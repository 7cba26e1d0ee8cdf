"""`mbr-perf run --dryrun`: the plan that would run, and nothing else happens."""

import json

import pytest

from harness.cli.options import ExperimentOptions, JudgeOptions, LaunchOptions
from harness.cli.requests import run_request
from harness.launch.environment import this_host
from harness.measure.understanding import understand
from harness.measure.values import launch_document
from tests.commands import json_of

PORT = 29511
REQUEST = ("-m", "llama", "-mr", "llama3_8b", "-g", "cpu", "--recompute_modules", "core_attn,layernorm")


def understood(run_dir, **launch):
    asked = ExperimentOptions(
        model_family_name="llama", model_recipe_name="llama3_8b", gpu="cpu", recompute_modules="core_attn,layernorm"
    )
    request = run_request(asked, JudgeOptions(), LaunchOptions(run_dir=run_dir, master_port=PORT, **launch))
    return understand(request, this_host(), run_dir)


def dry_run(mbr_perf, run_dir, *more):
    answer = mbr_perf("run", *REQUEST, "--dryrun", "--run_dir", run_dir, "--master_port", PORT, *more)
    assert (answer.code, answer.err) == (0, "")
    return answer.out


def test_the_plan_is_printed_as_the_plan_renders_itself_and_nothing_is_written_or_started(mbr_perf, tmp_path):
    expected = understood(tmp_path / "run").plan.render()
    assert f"--master-port={PORT}" in expected
    assert expected in dry_run(mbr_perf, tmp_path / "run", "--results_dir", tmp_path / "results")
    assert list(tmp_path.iterdir()) == []


def test_every_setting_is_listed_with_its_source(mbr_perf, tmp_path):
    lines = dry_run(mbr_perf, tmp_path / "run", "-v").splitlines()
    recompute = next(line for line in lines if line.startswith("recompute "))
    assert recompute.split() == ["recompute", "--recompute_modules", "core_attn,layernorm"]
    layers = next(line for line in lines if line.startswith("model.num_layers "))
    assert layers.split()[-1] == "8"
    assert "llama3_8b.yaml" in layers
    assert len([line for line in lines if line.startswith("model.num_layers ")]) == 1


def test_line_1_says_what_would_run_and_q_prints_only_that(mbr_perf, tmp_path):
    whole, brief = (dry_run(mbr_perf, tmp_path / "run", *more) for more in ((), ("-q",)))
    assert brief.splitlines() == whole.splitlines()[:1]
    assert brief.startswith("Would run llama3_8b pretrain, fp32, 2 CPU ranks") and len(brief) <= 161


def test_the_json_document_is_the_same_plan(mbr_perf, tmp_path):
    document = json.loads(dry_run(mbr_perf, tmp_path / "run", "--json"))
    expected = understood(tmp_path / "run")
    assert document["plan"] == json_of(launch_document(expected.plan))
    assert document["spec"] == expected.spec.model_dump(mode="json")
    assert document["prediction"].keys() >= {"reason"} or document["prediction"]["peak_bytes"] > 0
    assert document["fingerprint"] == expected.spec.fingerprint
    assert document["effective"]["modules"] == {"core_attn": 8, "layernorm": 8}
    assert [finding["id"] for finding in document["findings"]] == [finding.id for finding in expected.findings]
    assert (document["schema_version"], document["dryrun"]) == (1, True)


def test_a_job_for_a_gpu_that_is_not_here_is_planned_all_the_same(mbr_perf, tmp_path):
    run = ("run", "-mr", "llama3_70b", "-g", "gb200", "--nnodes", "8", "--master_addr", "node0")
    answer = mbr_perf(*run, "--dryrun", "-v", "--run_dir", tmp_path / "run")
    assert answer.code == 0
    assert "--nnodes=8" in answer.out
    assert "# GPU memory sampler" in answer.out
    assert "transformer-engine 2.11 " in answer.out


HEADLINE = ("run", "-mr", "llama3_70b", "--task", "sft", "-g", "h100", "-c", "fp8_cs", "-ng", "32", "--dryrun")


def test_a_dry_run_of_several_nodes_asks_for_no_node_options_and_names_those_of_each(mbr_perf, tmp_path):
    answer = mbr_perf(*HEADLINE, "-v", "--run_dir", tmp_path)
    assert (answer.code, answer.err) == (0, "")
    given = [line for line in answer.out.splitlines() if line.startswith("#   --nnodes")]
    assert given == [
        f"#   --nnodes 4 --node_rank {node} --master_addr HOST --run_dir {tmp_path}" for node in range(4)
    ]  # fmt: skip
    assert "# HOST " in answer.out
    assert "Predicted: peak " in answer.out  # from traces that mbr-perf brings


def test_programs_learn_the_options_of_each_node_and_the_overlap(mbr_perf, tmp_path):
    buffers = "kernels.tp_comm_overlap_cfg={proj_fprop: {method: pipeline, num_sm: 24}}"
    message = json.loads(mbr_perf(*HEADLINE, "--json", "--run_dir", tmp_path, "--set", buffers).out)
    options = message["plan"]["node_options"]
    assert [words[:6] for words in options] == [
        ["--nnodes", "4", "--node_rank", str(node), "--master_addr", "HOST"] for node in range(4)
    ]
    assert message["spec"]["kernels"]["tp_comm_overlap_cfg"]["proj_fprop"]["num_sm"] == 24


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ("run", "-mr", "llama3_8b", "-g", "cpu", "-ms", "3", "--dryrun"),
        ("check", "-mr", "llama3_8b", "-g", "cpu", "-ms", "3"),
        ("sweep", "-mr", "llama3_8b", "-g", "cpu", "--over", "recompute=none;mlp", "-ms", "3", "--dryrun"),
    ],
)
def test_too_few_steps_are_noted_before_anything_starts(mbr_perf, command):
    few = "only 2 of 3 steps will count"
    assert few in mbr_perf(*command, "-v").out
    assert few not in mbr_perf(*(word if word != "3" else "4" for word in command), "-v").out
