"""Fingerprints: fields that came later leave those of earlier versions as they were, and count at any other value."""

from pathlib import Path

import pytest

from harness.experiment.experiment import FORMER_VALUES, BridgeEngine, ExperimentSpec, PeftSpec, TrainSpec
from harness.experiment.model import LinearAttentionModel, YarnModel
from harness.records.golden import GoldenRecord, setting_differences, spec_like

ROOT = Path(__file__).parents[2]
# Made by version 0.1.0 at commit 7492481, from the requests of conftest.py.
EARLIER = {
    "dense": "5ea37fb88243c916",
    "moe": "1edfde5c754e1fcb",
    "deepseek": "6233f5155e288126",
    "cpu": "a4dc12be50483884",
}
CHANGED = {
    "model.glu_linear_offset": 1.0,
    "model.activation_func_clamp_value": 7.0,
    "model.add_qkv_bias": True,
    "model.attention_output_gate": True,
    "model.softmax_type": "learnable",
    "model.window_size": (127, 0),
    "model.window_attn_skip_freq": 2,
    "model.linear_attention": LinearAttentionModel(linear_attention_freq=4),
    "model.yarn": YarnModel(),
    "model.moe.moe_shared_expert_gate": True,
    "model.mla.apply_rope_fusion": True,
    "parallelism.defer_embedding_wgrad_compute": True,
    "parallelism.wgrad_deferral_limit": 22,
    "parallelism.deallocate_pipeline_outputs": False,
    "ddp.align_grad_reduce": True,
    "ddp.align_param_gather": True,
    "ddp.bucket_size": 2**27,
    "kernels.bias_activation_fusion": False,
    "kernels.cross_entropy_fusion_impl": "native",
    "kernels.tp_comm_overlap_cfg": "userbuffers_bf16_h100_h8192_tp4_mbs1_seqlen8192",
    "train.manual_gc": True,
    "train.manual_gc_interval": 5,
    "peft": PeftSpec(),
    "optimizer.optimizer": "sgd",
    "optimizer.sgd_momentum": 0.5,
    "optimizer.loss_scale": 4096.0,
    "optimizer.optimizer_cpu_offload": True,
    "optimizer.optimizer_offload_fraction": 0.5,
    "optimizer.overlap_cpu_optimizer_d2h_h2d": True,
    "engine": BridgeEngine(
        version="0.3.1", forward_step="megatron.bridge.training.gpt_step:forward_step", rest="0" * 16
    ),
}


@pytest.mark.parametrize("kind", EARLIER)
def test_a_request_has_the_fingerprint_that_the_earlier_version_gave_it(kind, request_for):
    assert request_for(kind).fingerprint == EARLIER[kind]


def test_another_fused_cross_entropy_was_in_the_fingerprint_before(request_for):
    changes = {"kernels__cross_entropy_fusion_impl": "native", "ddp__overlap_grad_reduce": True, "recompute": "mlp"}
    assert request_for("dense", **changes).fingerprint == "eb232e2c0efb2628"


@pytest.mark.parametrize("path", sorted((ROOT / "results" / "golden" / "cpu").glob("*.json")), ids=lambda p: p.stem)
def test_a_golden_of_an_earlier_version_still_names_its_own_settings(path):
    golden = GoldenRecord.model_validate_json(path.read_text())
    assert golden.fingerprint is not None
    assert spec_like(golden).fingerprint == golden.fingerprint


@pytest.mark.parametrize("path", FORMER_VALUES)
def test_a_later_field_counts_at_any_other_value(path, request_for):
    former, plain = FORMER_VALUES[path], request_for("deepseek")
    assert request_for("deepseek", **{path: former}).fingerprint == plain.fingerprint
    changed = {path: CHANGED[path]} | ({"model.position_embedding_type": "yarn"} if path == "model.yarn" else {})
    assert request_for("deepseek", **changed).fingerprint != plain.fingerprint


@pytest.mark.parametrize("path", FORMER_VALUES)
def test_the_former_value_of_a_later_field_is_its_default(path):
    section, _, leaf = path.rpartition(".")
    model = ExperimentSpec
    for name in filter(None, section.split(".")):
        annotation = model.model_fields[name].annotation
        model = next(arm for arm in (annotation, *getattr(annotation, "__args__", ())) if hasattr(arm, "model_fields"))
    assert model.model_fields[leaf].default == FORMER_VALUES[path]


def test_a_golden_from_before_a_field_lists_the_value_that_it_was_measured_with(make_record, make_golden):
    record = make_record()
    golden = make_golden(record, {})
    spec = record.spec.model_copy(update={"train": TrainSpec(manual_gc=True)})
    (found,) = setting_differences(golden, spec, spec.fingerprint)
    assert (found.name, found.before, found.after) == ("train.manual_gc", "False", "True")
