"""User buffers are made as transformer-engine's own Python wants them, and its layers find them."""

import json
from pathlib import Path

import pytest

from harness.experiment.user_buffers import UserBuffers
from harness.predict.ledger import user_buffer_bytes
from tests.engine.conftest import answer_of

pytestmark = pytest.mark.train
PROGRAM = Path(__file__).parent / "made_buffers.py"
TUNED_BF16 = "userbuffers_bf16_h100_h8192_tp4_mbs1_seqlen8192"
TUNED_FP8 = "userbuffers_fp8_h100_h8192_tp4_mbs1_seqlen8192"
METHODS = {"proj_fprop": "pipeline", "fc2_fprop": "pipeline", "qkv_fprop": "ring_exchange", "fc1_fprop": "ring_exchange",
           "proj_dgrad": "ring_exchange", "fc2_dgrad": "ring_exchange", "qkv_dgrad": "bulk", "qkv_wgrad": "bulk",
           "fc1_dgrad": "bulk", "fc1_wgrad": "bulk"}  # fmt: skip
BY_METHOD = UserBuffers.model_validate({gemm: {"method": method} for gemm, method in METHODS.items()})


@pytest.fixture(scope="module")
def made(te_folder, tmp_path_factory, models):
    """What transformer-engine makes for each spec."""
    folder = tmp_path_factory.mktemp("buffers")
    asked, out = folder / "specs.json", folder / "out.json"
    specs = {
        "tuned": overlapping(models, TUNED_BF16),
        "fp8": overlapping(models, TUNED_FP8, dtype="fp8_cs", context_parallel_size=2, mbs=2),
        "own": overlapping(models),
        "own, by name": overlapping(models, BY_METHOD),
        "without sequence parallelism": overlapping(models, TUNED_BF16, sp=False),
        "TP 1": overlapping(models, TUNED_BF16, tensor_model_parallel_size=1),
    }
    asked.write_text(json.dumps({name: spec.model_dump_json() for name, spec in specs.items()}))
    answer_of(PROGRAM, te_folder, asked, out)
    answers = json.loads(out.read_text())
    return {name: answers[name] | {"predicted": user_buffer_bytes(spec)} for name, spec in specs.items()}


def overlapping(models, configuration=None, **options):
    """Llama3-70B with TP 4, whose communication overlaps."""
    return models.llama(changes={"tp_comm_overlap": True, "tp_comm_overlap_cfg": configuration}, **options)


def test_layers_with_overlap_run_and_save_what_those_without_do(real_trace, models):
    """Without buffers the first forward pass of the README's own example would fail."""
    specs = {}
    for dtype, named in (("bf16", TUNED_BF16), ("fp8_cs", TUNED_FP8)):
        specs |= {
            f"{dtype}, overlap": overlapping(models, named, dtype=dtype),
            f"{dtype}, plain": models.llama(dtype=dtype),
        }
    traced = real_trace([models.case(name, spec) for name, spec in specs.items()])
    assert {name: trace["failed"] for name, trace in traced.items() if "failed" in trace} == {}
    for dtype in ("bf16", "fp8_cs"):
        assert traced[f"{dtype}, overlap"]["saved_bytes"] == traced[f"{dtype}, plain"]["saved_bytes"]


def test_the_recipe_s_buffers_reach_transformer_engine_and_are_destroyed(made):
    answer = made["tuned"]
    assert (answer["modes"], answer["left"]) == (["none"], False)
    kind, shape, dtype, settings = answer["made"]["proj_fprop"]
    assert (kind, shape, dtype) == ("CommOverlap", [4096, 8192], "torch.bfloat16")
    assert (settings["num_comm_sm"], settings["comm_cga_size"], settings["num_splits"]) == (24, 2, 4)
    assert answer["made"]["qkv_wgrad"][3]["num_comm_sm"] == 24
    assert answer["made"]["fc1_fprop"][0] == "CommOverlapP2P"


def test_buffers_that_are_gathered_hold_fp8_where_gemms_do(made):
    answer = made["fp8"]
    assert answer["modes"] == ["fp8"]
    kinds = {name: (shape, dtype) for name, (_kind, shape, dtype, _settings) in answer["made"].items()}
    assert kinds["qkv_fprop"] == ([4096, 8192], "torch.uint8")  # 4096 tokens x 2 sequences / CP 2
    assert kinds["fc2_fprop"] == ([4096, 8192], "torch.bfloat16")


def test_settings_that_are_left_out_are_transformer_engine_s_own(made):
    assert made["own, by name"]["made"] == made["own"]["made"]
    for idle in ("without sequence parallelism", "TP 1"):  # nothing can overlap
        assert (made[idle]["made"], made[idle]["modes"], made[idle]["bytes"]) == ({}, [], 0)


def test_their_bytes_are_those_that_the_planner_counts(made):
    assert {name: answer["bytes"] for name, answer in made.items()} == {
        name: answer["predicted"] for name, answer in made.items()
    }
    assert made["tuned"]["bytes"] == 12 * 4096 * 8192 * 2
