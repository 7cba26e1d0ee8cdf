"""`recipes new`: your own job as a recipe file, which plans as the job does."""

import json

import pytest

from harness.resolve.recipe import Request
from harness.resolve.resolve import resolve
from tests.imported_logs import MEGATRON_LM

CONFIG = {
    "architectures": ["MixtralForCausalLM"], "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
    "num_attention_heads": 8, "vocab_size": 1000, "rms_norm_eps": 1e-05,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "train.sh").write_text(f"torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py {MEGATRON_LM}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("job", ["--hf tiny -ng 8 -ep 2", "--megatron_args train.sh", "-mr llama3_8b --recompute mlp"])
def test_the_file_is_valid_and_is_the_same_job(mbr_perf, folder, job):
    words = [*job.split(), "-g", "h100"]
    assert mbr_perf("recipes", "new", *words, "-o", "mine.yaml").code == 0
    assert mbr_perf("recipes", "validate", "mine.yaml").code == 0
    new, old = (
        json.loads(mbr_perf("check", *given, "--no_megatron", "--json").out)["spec"]
        for given in (["-mr", "mine.yaml", "-g", "h100"], words)
    )
    assert new == old


def test_comments_name_the_sources_and_what_is_usual(mbr_perf, folder):
    mbr_perf("recipes", "new", "--hf", "tiny", "-g", "h100", "-ng", "8", "-o", "mine.yaml")
    text = (folder / "mine.yaml").read_text()
    assert "  hidden_size: 256  # tiny/config.json: hidden_size\n" in text
    assert "num_moe_experts: 8  # tiny/config.json: num_local_experts (absent: default of MixtralConfig)\n" in text
    assert "# assumed: bf16, micro 1, global 128, " in text
    assert resolve(Request(model_recipe_name="mine.yaml", gpu="h100")).spec.num_gpus == 8


@pytest.mark.parametrize(
    ("output", "message"),
    [("mine.txt", "-o mine.txt: "), ("there.yaml", "-o there.yaml: "), ("no/such/mine.yaml", "-o no/such/mine.yaml: ")],
)
def test_a_place_that_does_not_fit_is_refused_and_nothing_is_written(mbr_perf, folder, output, message):
    (folder / "there.yaml").write_text("mine\n")
    answer = mbr_perf("recipes", "new", "--hf", "tiny", "-g", "h100", "-ng", "8", "-o", output)
    assert answer.code == 2
    assert message in answer.err
    assert (folder / "there.yaml").read_text() == "mine\n"


def test_the_command_to_plan_the_file_names_the_gpu_of_the_only_point(mbr_perf, folder):
    answer = mbr_perf("recipes", "new", "-mr", "qwen25_7b", "-o", "mine.yaml")
    assert "mbr-perf plan -mr mine.yaml -g h100\n" in answer.out


def test_a_job_that_a_rule_refuses_is_written_with_the_rule_in_the_answer(mbr_perf, folder):
    words = ("recipes", "new", "--hf", "tiny", "-g", "h100", "-ng", "8", "-ep", "3")
    answer = mbr_perf(*words, "-o", "mine.yaml")
    assert (answer.code, (folder / "mine.yaml").exists()) == (0, True)
    remarks = json.loads(mbr_perf(*words, "-o", "again.yaml", "--json").out)["remarks"]
    [remark] = [each for each in remarks if "rule P06: " in each]
    assert remark in answer.out


def test_a_wrong_job_writes_no_file(mbr_perf, folder):
    (folder / "tiny" / "config.json").write_text(json.dumps(CONFIG | {"hidden_act": "relu"}))
    answer = mbr_perf("recipes", "new", "--hf", "tiny", "-g", "h100", "-ng", "8", "-o", "mine.yaml")
    assert (answer.code, (folder / "mine.yaml").exists()) == (2, False)
