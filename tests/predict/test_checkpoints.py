"""What the host does beside the operations of a trace: calls of modules, and checkpoints."""

import json

import pytest

from harness.experiment.recompute import parse_recompute
from harness.predict.time_model import ATTENTION, CALL
from harness.predict.trace_book import AROUND, work_around_checkpoints
from harness.records.folders import results_dir

MLA = {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_head_dim": 8, "qk_pos_emb_head_dim": 4, "v_head_dim": 8}


def beside(spec, recompute):
    """How many calls of modules run again, and how many checkpoints they are in. What is a call is no simple operation."""
    work = work_around_checkpoints(spec.model_copy(update={"recompute": parse_recompute(recompute)}))
    checkpoints = sum(count for _, count in work) / AROUND
    calls = sum(count for op, count in work if op.kind == "gemm")
    return pytest.approx(calls - AROUND * checkpoints), pytest.approx(checkpoints)


@pytest.fixture
def latent(moe_spec):
    model = type(moe_spec.model).model_validate(moe_spec.model.model_dump() | {"mla": MLA, "qk_layernorm": False})
    return moe_spec.model_copy(update={"model": model})


@pytest.mark.parametrize(
    ("recompute", "expected"),
    [
        ("none", (0, 0)),
        ("full:uniform:1", (6, 1)),  # a norm, four permutations of tokens, the experts' activation
        ("moe", (5, 1)),
        ("moe_act", (1, 1)),
        ("core_attn,moe_act", (1, 2)),
        ("layernorm", (1, 1)),  # the norm before attention is fused into the projection of Q, K and V
    ],
)
def test_modules_that_run_again_are_called_again(moe_spec, recompute, expected):
    assert beside(moe_spec, recompute) == expected


@pytest.mark.parametrize(
    ("kind", "recompute", "expected"),
    [("dense", "layernorm", (1, 1)), ("moe", "layernorm,mla_up_proj", (2, 3)), ("dense", "full:uniform:1", (2, 1))],
)
def test_layers_with_latent_attention_have_norms_of_their_own(latent, kind, recompute, expected):
    spec = latent.model_copy(update={"model": latent.model.of_kind(kind, 1)})
    assert beside(spec, recompute) == expected


def test_the_constants_are_those_that_the_command_measured():
    found = json.loads((results_dir() / "accuracy" / "host.json").read_text())
    assert [found[name] for name in ("around", "call", "attention")] == pytest.approx(
        [AROUND, CALL, ATTENTION], rel=0.1
    )
