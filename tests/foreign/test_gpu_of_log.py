"""A log says which GPU its job had, by name or by the memory in a message of torch."""

import json

import pytest

from harness.errors import SeveralMatchError
from harness.foreign.gpu_of_log import gpu_of_log

OOM = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of {} GiB of which 1.00 GiB is free."
SPEED = " iteration 2/ 9 | throughput per GPU (TFLOP/s/GPU): {} |"


@pytest.mark.parametrize(
    ("lines", "gpu"),
    [
        (["| 0  NVIDIA A100-SXM4-80GB   On |"], "a100"),
        (["| 0  NVIDIA GH200 480GB      On |"], "gh200"),
        ([OOM.format("79.11"), "using NVIDIA H100 80GB HBM3"], "h100"),
        ([OOM.format("139.80")], "h200"),
        ([OOM.format("184.31")], "gb200"),
        (["NPU out of memory. (NPU 2; 60.96 GiB total capacity)"], ""),
        ([SPEED.format("410.5"), OOM.format("79.15")], "h100"),
        (["NVIDIA H100 PCIe", SPEED.format("410.5")], ""),
    ],
)
def test_a_log_names_its_gpu_type(tmp_path, lines, gpu):
    log = tmp_path / "job.log"
    log.write_text("\n".join(["start", *lines, "end"]))
    assert gpu_of_log([str(log)])[0] == gpu


def test_a_memory_that_several_types_have_is_no_answer(tmp_path):
    log = tmp_path / "job.log"
    log.write_text(f"{SPEED.format('99.0')}\n{OOM.format('79.11')}\n")
    with pytest.raises(SeveralMatchError) as error:
        gpu_of_log([str(log)])
    assert error.value.choices == (("-g", "a100"), ("-g", "h100"))


def test_a_job_without_a_gpu_type_is_judged_for_the_one_of_its_log(mbr_perf, tmp_path):
    sizes = {"num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 32, "micro_batch_size": 1,
             "world_size": 1, "padded_vocab_size": 128, "bf16": "True", "max_position_embeddings": 32}  # fmt: skip
    lines = ["----- arguments -----", *(f"  {name} ..... {value}" for name, value in sizes.items()),
             "----- end of arguments -----", OOM.format("139.80")]  # fmt: skip
    log = tmp_path / "job.log"
    log.write_text("\n".join(lines))
    found = json.loads(mbr_perf("check", log, "--no_megatron", "--json").out)
    assert found["spec"]["gpu"] == "h200"
    assert any(note.startswith("assumed: h200") for note in found["notes"])
    answer = mbr_perf("diagnose", log, "--no_plan")
    assert answer.code == 0
    assert "Assumed   h200" in answer.out
