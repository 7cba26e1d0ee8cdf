"""The arguments that Megatron-LM prints in its log: taken where the request is open, refused where it contradicts them."""

import gzip
import json
import os
from pathlib import Path

import pytest

from harness.foreign import megatron_args
from harness.measure.logged import logged_arguments
from harness.records.golden import golden_text
from harness.resolve.recipe import ForeignSource
from tests.imports.logs import megatron_lm_log, memory_mb

BLOCK = Path(__file__).parents[1] / "data" / "megatron_lm" / "dense_v0.16.1.arguments.gz"
OOM = (
    "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB"
    " of which 1.00 GiB is free. Including non-PyTorch memory, this process has 78.00 GiB memory in use. Of the allocated"
    " memory 70.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated.\n"
)


LLAMA_3_8B = {
    "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "rope_theta": 500000.0,
}  # fmt: skip


def arguments():
    return gzip.decompress(BLOCK.read_bytes()).decode()


@pytest.fixture
def log(tmp_path, monkeypatch):
    """A job of the size of Llama 3 8B on 16 GPUs, TP 2, PP 2, full recompute."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "job.log"
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_3_8B))
    path.write_text(
        arguments() + megatron_lm_log([9.0] * 20, memory=[(1, memory_mb(0, 1, 20000, 40000, 45000, 46000))])
    )
    return path


@pytest.fixture
def imported(mbr_perf, log):
    """The answer of an import on H100, as JSON."""

    def importing(*words):
        answer = mbr_perf("import", "--log", "job.log", "-g", "h100", *words, "--results_dir", "results", "--json")
        return json.loads(answer.out)

    return importing


@pytest.fixture
def refused(mbr_perf, log):
    def refusing(*words):
        answer = mbr_perf("import", "--log", "job.log", "-g", "h100", *words, "--results_dir", "results")
        assert answer.code == 2
        return answer.err

    return refusing


def test_a_log_without_a_recipe_describes_the_whole_job(imported):
    run = imported()
    spec = run["spec"]
    assert (spec["num_gpus"], spec["model"]["num_layers"], spec["recipe"]) == (16, 32, "log_32x4096")
    assert spec["parallelism"]["tensor_model_parallel_size"] == 2
    assert run["sources"]["model.hidden_size"].startswith("job.log:")
    assert any(" job.log " in note for note in run["notes"])


def test_what_a_recipe_leaves_open_is_taken_from_the_log(imported):
    run = imported("-mr", "llama3_8b")
    spec = run["spec"]
    assert (spec["num_gpus"], spec["recipe"], spec["batch"]["seq_length"]) == (16, "llama3_8b", 8192)
    cut = spec["parallelism"]
    assert (cut["tensor_model_parallel_size"], cut["pipeline_model_parallel_size"], cut["sequence_parallel"]) == (
        2,
        2,
        True,
    )
    assert spec["recompute"] == {
        "granularity": "full", "method": "uniform", "num_layers": 1, "distribute_saved_activations": False,
    }  # fmt: skip
    assert any("tensor_model_parallel_size 2" in note for note in run["notes"])


def test_what_a_config_json_leaves_open_is_taken_from_the_log(imported):
    run = imported("--hf", "config.json")
    spec = run["spec"]
    assert (spec["num_gpus"], spec["batch"]["seq_length"]) == (16, 8192)
    assert spec["parallelism"]["tensor_model_parallel_size"] == 2
    assert any("num_gpus 16" in note for note in run["notes"])


def test_options_that_agree_are_no_contradiction(imported):
    spec = imported("-mr", "llama3_8b", "-tp", "2", "--recompute", "full:uniform:1", "-ng", "16")["spec"]
    assert spec["parallelism"]["pipeline_model_parallel_size"] == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-mr", "llama3_70b"), "num_layers is 32, but -mr llama3_70b has 80"),
        (("-mr", "llama3_70b"), "hidden_size is 4096, but -mr llama3_70b has 8192"),
        (("-mr", "qwen3_30b_a3b"), "num_moe_experts is null, but -mr qwen3_30b_a3b has 128"),
        (("-mr", "llama3_8b", "-tp", "4"), "tensor_model_parallel_size is 2, but --tensor_model_parallel_size sets 4"),
        (("-mr", "llama3_8b", "-pp", "1"), "pipeline_model_parallel_size is 2, but --pipeline_model_parallel_size sets 1"),
        (("-mr", "llama3_8b", "-sl", "4096"), "seq_length is 8192, but --seq_length sets 4096"),
        (("-mr", "llama3_8b", "--recompute", "mlp"), "is full:uniform:1, but --recompute sets mlp"),
        (("-mr", "llama3_8b", "-ng", "8"), "world_size is 16, but --num_gpus sets 8"),
        (("-mr", "llama3_8b", "--set", "batch.micro_batch_size=2"), "micro_batch_size is 1, but --set"),
        (("-tp", "4"), "tensor_model_parallel_size is 2, but --tensor_model_parallel_size sets 4"),
        (("-ng", "32"), "world_size is 16, but --num_gpus sets 32"),
        (("--num_layers", "16"), "num_layers is 32, but --num_layers sets 16"),
        (("--hf", "config.json", "-pp", "4"), "is 2, but --pipeline_model_parallel_size sets 4"),
        (("--hf", "config.json", "--num_layers", "16"), "num_layers is 32, but --num_layers sets 16"),
    ],
)  # fmt: skip
def test_what_the_log_contradicts_is_an_error_at_its_line(refused, words, message):
    text = refused(*words)
    assert message in text
    assert "job.log:" in text or "the log's" in text


def test_the_next_command_for_a_log_with_arguments_asks_for_the_gpu_type_alone(mbr_perf, log):
    log.write_text(arguments() + OOM.replace("70.00", "76.00"))
    answer = mbr_perf("diagnose", "job.log", "-v")
    assert "   mbr-perf diagnose job.log -g GPU\n" in answer.out
    log.write_text(OOM.replace("70.00", "76.00"))
    assert "diagnose job.log -mr RECIPE -g GPU -c DTYPE" in mbr_perf("diagnose", "job.log", "-v").out


def test_a_compressed_log_is_imported_with_its_arguments(imported, log):
    plain = imported()
    packed = gzip.compress(log.read_bytes())
    log.write_bytes(packed)
    assert imported()["fingerprint"] == plain["fingerprint"]


def test_a_log_with_arguments_needs_only_the_gpu_type_and_one_without_a_recipe(mbr_perf, log):
    answer = mbr_perf("import", "--log", "job.log")
    assert (answer.code, "add the GPU type" in answer.err) == (2, True)
    log.write_text(megatron_lm_log([9.0] * 20))
    answer = mbr_perf("import", "--log", "job.log", "-g", "h100")
    assert (answer.code, "-mr" in answer.err) == (2, True)


def test_a_log_with_other_arguments_than_a_golden_gets_no_verdict(mbr_perf, log, make_golden, make_record):
    golden = make_golden(make_record(), {"tflops_per_gpu": 700.0, "step_time_s": 9.0})
    log.with_name("g.json").write_text(golden_text(golden))
    answer = mbr_perf("compare", "job.log", "g.json")
    assert answer.code == 6
    assert "recompute full:uniform:1 (the golden: " in answer.out


def test_arguments_that_mbr_perf_does_not_model_do_not_stop_an_import_with_a_recipe(imported, log):
    text = log.read_text().replace(
        "  optimizer ....................................... adam", "  optimizer ....... muon"
    )
    log.write_text(text)
    assert "muon" in text
    assert imported("-mr", "llama3_8b")["spec"]["num_gpus"] == 16


def test_diagnose_takes_the_settings_of_a_failed_job_from_its_log(mbr_perf, log):
    log.write_text(log.read_text() + OOM)
    answer = mbr_perf("diagnose", "job.log", "-g", "h100", "--no_plan", "-v")
    assert answer.code == 0
    assert " job.log " in answer.out and " -g " not in answer.out
    without_gpu = mbr_perf("diagnose", "job.log", "-v")
    assert " -g h100" in without_gpu.out
    contradicted = mbr_perf("diagnose", "job.log", "-g", "h100", "-mr", "llama3_8b", "-pp", "4", "--no_plan")
    assert contradicted.code == 2
    assert "pipeline_model_parallel_size is 2, but --pipeline_model_parallel_size sets 4" in contradicted.err


def test_a_pipe_is_not_read_for_arguments(tmp_path):
    os.mkfifo(tmp_path / "pipe")  # reading it would wait for ever
    assert logged_arguments([str(tmp_path / "pipe")]) is None
    assert logged_arguments([]) is None


def test_the_head_of_a_large_log_has_its_arguments(tmp_path, monkeypatch):
    monkeypatch.setattr(megatron_args, "MOST_BYTES", 100_000)
    path = tmp_path / "large.log"
    path.write_bytes(arguments().encode() + b"\xff more text\n" * 10_000)
    assert path.stat().st_size > megatron_args.MOST_BYTES
    found = megatron_args.read_arguments(ForeignSource("megatron_args", str(path)))
    assert found.given["num_layers"].value == 32


@pytest.mark.slow
def test_the_rank_that_failed_first_is_the_same_in_the_log_the_import_and_the_run(imported, mbr_perf, log):
    """Rank 3 failed first, in the order of the log; rank 1 followed."""
    frame = '[rank0]: Traceback (most...):\n[rank0]:   File "/opt/core/schedules.py", line 7, in backward_step\n'
    each = [(frame + OOM).replace("[rank0]", f"[rank{rank}]").replace("GPU 0", f"GPU {rank}") for rank in (3, 1)]
    log.write_text(arguments() + megatron_lm_log([9.0] * 2, total=20) + "".join(each))
    run = imported()
    assert run["failure"].startswith("rank 3 ") and " iteration 2 (" in run["failure"]
    assert run["out_of_memory"]["rank"] == 3
    assert run["metrics"]["problems"]["counted_flops_per_step"]
    assert [rank["rank"] for rank in run["ranks"] if rank["failure"]] == [1, 3]
    for path in ("job.log", run["run_dir"]):
        found = json.loads(mbr_perf("diagnose", path, "--no_plan", "--json").out)["verdict"]
        assert (found["rank"], found["when"]) == (3, "in forward_backward after iteration 2")


def test_settings_that_nobody_models_cost_a_diagnosis_its_prediction_only(mbr_perf, log):
    more = f"  my_fork_flag ....... True\n  heterogeneous_layers_config_path ....... x.json\n{OOM}"
    log.write_text(arguments().replace("  heterogeneous_layers_config_path", "  tensorboard_x") + more)
    found = json.loads(mbr_perf("diagnose", log, "-g", "h100", "--json").out)
    assert (found["exit_code"], found["verdict"]["class"]) == (0, "outside_allocator")
    assert [text for text in found["evidence"] if text.startswith("No prediction: ") and "heterogeneous" in text]
