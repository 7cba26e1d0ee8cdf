"""What checkpoints cost the host beside the operations that they repeat."""

import json

import pytest

from harness.experiment.recompute import parse_recompute
from harness.predict.time_model import REPEATED
from harness.predict.trace_book import DISCARDING, PLAIN, work_around_checkpoints
from harness.records.folders import results_dir

MLA = {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_head_dim": 8, "qk_pos_emb_head_dim": 4, "v_head_dim": 8}


@pytest.mark.parametrize(
    ("recompute", "num_operations"),
    [
        ("none", 0),
        ("full:uniform:1", 10),
        ("moe", 10),
        ("moe_act", 15),  # its output is discarded and restored
        ("core_attn,moe_act", 10 + 15),
        ("layernorm", 15),  # the norm before attention is fused into the projection of Q, K and V
    ],
)
def test_a_checkpoint_takes_the_host_as_long_as_several_operations(moe_spec, recompute, num_operations):
    spec = moe_spec.model_copy(update={"recompute": parse_recompute(recompute)})
    assert sum(count for _, count in work_around_checkpoints(spec)) == num_operations


def test_the_constants_are_those_that_the_command_measured():
    found = json.loads((results_dir() / "accuracy" / "host.json").read_text())
    assert (round(found["plain"]), round(found["discarding"])) == (PLAIN, DISCARDING)
    assert round(found["repeated"], 2) == REPEATED


def test_a_dense_layer_with_latent_attention_has_one_norm_of_its_own(moe_spec):
    model = type(moe_spec.model).model_validate(moe_spec.model.model_dump() | {"mla": MLA})
    spec = moe_spec.model_copy(update={"model": model, "recompute": parse_recompute("layernorm")})
    dense = spec.model_copy(update={"model": model.of_kind("dense", 1)})
    assert sum(count for _, count in work_around_checkpoints(dense)) == 15


def test_a_layer_with_latent_attention_and_experts_has_two_norms_of_its_own(moe_spec):
    model = type(moe_spec.model).model_validate(moe_spec.model.model_dump() | {"mla": MLA})
    spec = moe_spec.model_copy(update={"model": model, "recompute": parse_recompute("layernorm,mla_up_proj")})
    assert sum(count for _, count in work_around_checkpoints(spec)) == 3 * 15
