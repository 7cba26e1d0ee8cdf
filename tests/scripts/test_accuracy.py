"""What scripts/accuracy reads from Megatron-LM's arguments, and how far predictions are from its published peaks."""

import importlib
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLAIN = {
    "num-layers": 12, "hidden-size": 512, "num-attention-heads": 8, "seq-length": 1024, "micro-batch-size": 4,
    "global-batch-size": 32, "bf16": True, "transformer-impl": "transformer_engine",
}  # fmt: skip


@pytest.fixture
def module(monkeypatch):
    """A module of scripts/accuracy.d by name; the folder is no package."""
    monkeypatch.syspath_prepend(ROOT / "scripts" / "accuracy.d")
    return importlib.import_module


def test_what_megatron_lm_takes_for_granted_is_filled_in(module):
    model = module("arguments").spec_of(PLAIN, "H100", 8).model
    assert (model.ffn_hidden_size, model.attention_dropout, model.position_embedding_type) == (
        2048, 0.1, "learned_absolute",
    )  # fmt: skip
    assert model.share_embeddings_and_output_weights
    assert model.add_bias_linear


def test_swiglu_shrinks_the_ffn_to_a_multiple_of_64(module):
    model = module("arguments").spec_of(PLAIN | {"swiglu": True}, "H100", 8).model
    assert (model.ffn_hidden_size, model.gated_linear_unit) == (1344, True)


def test_layers_per_virtual_stage_become_a_number_of_stages(module):
    sizes = {"pipeline-model-parallel-size": 4, "num-layers-per-virtual-pipeline-stage": 1}
    assert module("arguments").spec_of(PLAIN | sizes, "H100", 8).parallelism.virtual_pipeline_model_parallel_size == 3


def test_a_layer_pattern_is_read_without_being_run(module):
    experts = {"num-experts": 8, "moe-layer-freq": "([0]*3+[1]*9)", "moe-router-topk": 2}
    spec = module("arguments").spec_of(PLAIN | experts, "H100", 8)
    assert spec.model.moe.moe_layer_freq == (0,) * 3 + (1,) * 9
    with pytest.raises(module("arguments").InexpressibleError, match="layer pattern"):
        module("arguments").spec_of(PLAIN | experts | {"moe-layer-freq": "open('x')"}, "H100", 8)


@pytest.mark.parametrize(
    ("argument", "value", "reason"),
    [
        ("fp16", True, "FP16"),
        ("optimizer", "muon", "Adam"),
        ("cross-entropy-loss-fusion", True, "cross-entropy"),
        ("global-batch-size", 3, "does not divide"),
    ],
)
def test_what_a_spec_cannot_say_is_left_out_with_the_reason(module, argument, value, reason):
    arguments = module("arguments")
    with pytest.raises(arguments.InexpressibleError, match=reason):
        arguments.spec_of(PLAIN | {argument: value}, "H100", 8)


def test_every_published_row_is_compared_or_left_out(module):
    path = ROOT / "results" / "accuracy" / "inputs" / "megatron_lm_goldens.json"
    cases, left_out = module("published").read_cases(path)
    assert sum(len(case.paths) for case in cases) + len(left_out) == len(json.loads(path.read_text())["rows"])
    assert len(cases) > 100


@pytest.mark.train
@pytest.mark.slow
def test_eager_dense_h100_runs_are_predicted_within_three_percent(module):
    from harness.launch.environment import this_host

    published = module("published")
    cases, _ = published.read_cases(ROOT / "results" / "accuracy" / "inputs" / "megatron_lm_goldens.json")
    chosen = [case for case in cases if case.hardware == "H100" and case.kind.startswith(("dense, unfused", "dense, auto"))
              and "fp8" not in case.kind]  # fmt: skip
    compared, left_out = published.compare(chosen, this_host())
    assert not left_out
    assert len(compared) >= 15
    assert {row.case.name: row.error for row in compared if abs(row.error) > 0.03} == {}
