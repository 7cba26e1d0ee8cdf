"""Fingerprints: a new field with a default changes none, every other value counts, and a changed default is noticed."""

from pathlib import Path

import pytest

from harness.experiment.experiment import BridgeEngine, PeftSpec, TrainSpec
from harness.experiment.model import LinearAttentionModel, YarnModel
from harness.records.golden import GoldenRecord, setting_differences, spec_like

ROOT = Path(__file__).parents[2]
# Of the requests of conftest.py. Another value here means that goldens of users are no longer found.
KNOWN = {"dense": "cd87d14c57097bf6", "deepseek": "608faade28038798"}
CHANGED = {
    "model.glu_linear_offset": 1.0,
    "model.linear_attention": LinearAttentionModel(linear_attention_freq=4),
    "model.yarn": YarnModel(),
    "model.moe.moe_shared_expert_gate": True,
    "parallelism.deallocate_pipeline_outputs": False,
    "parallelism.cp_comm_type": "a2a",
    "kernels.cross_entropy_fusion_impl": "native",
    "env": {"NCCL_ALGO": "Ring"},
    "peft": PeftSpec(),
    "measure.seed": 5,
    "engine": BridgeEngine(version="0.3.1", forward_step="package.module:name", rest="0" * 16),
}


@pytest.mark.parametrize("kind", KNOWN)
def test_the_fingerprint_of_a_request_stays(kind, request_for):
    assert request_for(kind).fingerprint == KNOWN[kind]


@pytest.mark.parametrize("path", sorted((ROOT / "results" / "golden" / "cpu").glob("*.json")), ids=lambda p: p.stem)
def test_a_shipped_golden_states_all_settings(path):
    golden = GoldenRecord.model_validate_json(path.read_text())
    spec = spec_like(golden)
    assert (spec.fingerprint, spec.identity()) == (golden.fingerprint, golden.spec)


@pytest.mark.parametrize("path", CHANGED)
def test_every_value_but_the_default_counts(path, request_for):
    changed = {path: CHANGED[path]} | ({"model.position_embedding_type": "yarn"} if path == "model.yarn" else {})
    assert request_for("deepseek", **changed).fingerprint != request_for("deepseek").fingerprint


def test_a_value_given_as_its_default_is_the_default(request_for):
    asked = {"train": TrainSpec(), "ddp.bucket_size": None, "kernels.cross_entropy_fusion_impl": "te", "env": {}}
    assert request_for("deepseek", **asked).fingerprint == request_for("deepseek").fingerprint


@pytest.fixture
def older(make_record, make_golden):
    """Return a golden from before `train` came, with changes to its spec."""

    def made(**changes) -> GoldenRecord:
        spec = {key: value for key, value in make_record().spec.identity().items() if key != "train"}
        return make_golden(make_record(), {}, spec=spec | changes)

    return made


def test_a_golden_from_before_a_field_has_its_default(older, make_record):
    golden, same = older(), make_record().spec
    spec = same.model_copy(update={"train": TrainSpec(manual_gc=True)})
    assert "train" not in golden.spec
    assert setting_differences(golden, same, same.fingerprint) == ()
    (found,) = setting_differences(golden, spec, spec.fingerprint)
    assert (found.name, found.before, found.after) == ("train.manual_gc", "False", "True")
