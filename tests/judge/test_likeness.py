"""What may be compared with what."""

import pytest

from harness.experiment.experiment import BridgeEngine
from harness.judge.derive import derive
from harness.judge.gate import Thresholds, judge
from harness.judge.likeness import impossible_names, is_for, likeness, own_devices
from harness.records.golden import MeasuredOn
from harness.records.rank import Device
from harness.records.run import DeviceSample, NodeSample
from tests.commands import refused

VALUES = {"tflops_per_gpu": 690.0, "peak_allocated_bytes": 58e9, "counted_flops_per_step": 32_000_000}


def verdicts(record, golden, accept=()):
    comparison = judge(derive(record), golden, Thresholds(0.05, 0.05), likeness=likeness(record, golden, accept))
    return {f.metric: str(f.verdict) for f in comparison.findings if f.metric in golden.metrics}


def names(record, golden, accept=()):
    return [d.name for d in likeness(record, golden, accept).differences]


def test_the_same_settings_and_machine_differ_in_nothing(make_record, make_golden):
    record = make_record(seconds=2.56)
    golden = make_golden(record, VALUES)
    assert likeness(record, golden).differences == ()
    assert verdicts(record, golden) == dict.fromkeys(VALUES, "pass")


def test_other_settings_are_named_by_their_path_and_block(make_spec, make_record, make_golden):
    golden = make_golden(make_record(), VALUES)
    parallelism = {"tensor_model_parallel_size": 8, "pipeline_model_parallel_size": 4, "sequence_parallel": True,
                   "virtual_pipeline_model_parallel_size": 5}  # fmt: skip
    record = make_record(make_spec(recompute="mlp", parallelism=parallelism), seconds=2.56)
    assert names(record, golden) == ["parallelism.tensor_model_parallel_size", "recompute"]
    assert set(verdicts(record, golden).values()) == {"inconclusive"}


def test_an_accepted_difference_is_kept_on_record_and_judged(make_spec, make_record, make_golden):
    golden = make_golden(make_record(), VALUES)
    record = make_record(make_spec(recompute="mlp"), seconds=3.0)
    found = likeness(record, golden, ("recompute",))
    assert [(d.name, d.before, d.after, d.accepted) for d in found.differences] == [
        ("recompute", "core_attn", "mlp", True)
    ]
    assert verdicts(record, golden, ("recompute",))["tflops_per_gpu"] == "regression"


BUILD = {"torch": "2.9.1", "megatron-core": "0.16.1", "transformer-engine": "2.11.0"}


@pytest.mark.parametrize(
    ("provenance", "name", "accept"),
    [
        ({"device_name": "NVIDIA H100 PCIe"}, "device_name", "hardware"),
        ({"device_name": None}, "device_name", "device_name"),
        ({"driver_version": "580.1"}, "driver_version", "software"),
        ({"versions": BUILD | {"torch": "2.10.0"}}, "torch", "torch"),
        ({"versions": BUILD | {"megatron-core": "0.17.0"}}, "megatron-core", "software"),
        ({"versions": BUILD | {"transformer-engine": None}}, "transformer-engine", "transformer-engine"),
    ],
)
def test_another_machine_or_build_blocks_until_accepted(make_record, make_golden, provenance, name, accept):
    golden = make_golden(make_record(), VALUES)
    record = make_record(seconds=2.56, provenance=provenance)
    assert names(record, golden) == [name]
    assert set(verdicts(record, golden).values()) == {"inconclusive"}
    assert set(verdicts(record, golden, (accept,)).values()) == {"pass"}


def test_on_a_cpu_another_processor_or_torch_build_takes_only_time_out(make_spec, make_record, make_golden):
    spec = make_spec(gpu="cpu")
    values = {"tflops_per_gpu": 1.0, "peak_allocated_bytes": 58e9, "counted_flops_per_step": 200_000_000}
    golden = make_golden(make_record(spec), values)
    expected = {"tflops_per_gpu": "not_gated", "peak_allocated_bytes": "pass", "counted_flops_per_step": "pass"}
    versions = {"torch": "2.13.0+cpu", "megatron-core": "0.16.1", "transformer-engine": None}
    for provenance in ({"processor": "Another Processor"}, {"versions": versions}):
        assert verdicts(make_record(spec, provenance=provenance), golden) == expected


def test_on_a_cpu_another_megatron_core_still_blocks(make_spec, make_record, make_golden):
    spec = make_spec(gpu="cpu")
    golden = make_golden(make_record(spec), {"peak_allocated_bytes": 58e9})
    versions = {"torch": "2.9.1", "megatron-core": "0.17.0", "transformer-engine": None}
    assert verdicts(make_record(spec, provenance={"versions": versions}), golden) == {
        "peak_allocated_bytes": "inconclusive"
    }


def test_another_formula_touches_throughput_only(make_record, make_golden):
    record = make_record(seconds=2.56)
    golden = make_golden(record, VALUES, formula_version="model-flops-0")
    assert verdicts(record, golden) == dict.fromkeys(VALUES, "pass") | {"tflops_per_gpu": "inconclusive"}


def external(make_record, make_golden, **changes):
    labels = {"kind": "external", "fingerprint": None, "spec": {}, "formula_version": None,
              "measured_on": MeasuredOn(gpu="h100"), "caveats": ("no control",)}  # fmt: skip
    return make_golden(make_record(), VALUES, **labels | changes)


def test_what_an_external_golden_does_not_say_is_a_caveat(make_record, make_golden):
    record = make_record(seconds=2.56)
    found = likeness(record, external(make_record, make_golden))
    unstated = "device_name, driver_version, torch, megatron-core, transformer-engine, formula_version"
    assert found.differences == ()
    control, caveat = found.caveats
    assert (control, caveat.endswith(f": {unstated}")) == ("no control", True)


@pytest.mark.parametrize(
    ("stated", "name"),
    [
        ({"spec": {"batch": {"seq_length": 8192}}}, "batch.seq_length"),
        ({"recompute": "mlp"}, "recompute"),
        ({"num_gpus": 64}, "num_gpus"),
        ({"measured_on": MeasuredOn(gpu="h100", versions={"torch": "2.1"})}, "torch"),
    ],
)
def test_what_an_external_golden_does_say_blocks(make_record, make_golden, stated, name):
    record = make_record(seconds=2.56)
    golden = external(make_record, make_golden, **stated)
    assert names(record, golden) == [name]
    assert verdicts(record, golden)["tflops_per_gpu"] == "inconclusive"


def test_what_options_set_and_an_external_golden_does_not_state_is_a_caveat(make_spec, make_record, make_golden):
    sources = {
        "ddp.bucket_size": "--set ddp.bucket_size", "batch.micro_batch_size": "--micro_batch_size", "env.A": "--env",
        "kernels.tp_comm_overlap_cfg": "--set kernels.tp_comm_overlap_cfg", "gpu": "--gpu", "ddp.nccl_ub": "a.yaml:3",
        "measure.max_steps": "--max_steps", "measure.seed": "--seed", "gpus_per_node": "--gpus_per_node",
    }  # fmt: skip
    record = make_record(spec=make_spec(gpu="h100", ddp={"bucket_size": 1000}), sources=sources)
    golden = external(make_record, make_golden, spec={"batch": {"micro_batch_size": 1}})
    named = "ddp.bucket_size, env.A, kernels.tp_comm_overlap_cfg, measure.seed"
    assert any(caveat.endswith(named) for caveat in likeness(record, golden).caveats)
    complete = make_golden(make_record(spec=make_spec(gpu="h100")), VALUES)
    assert not any("does not state" in caveat for caveat in likeness(record, complete).caveats)


def test_module_order_is_no_difference(make_spec, make_record, make_golden):
    golden = external(make_record, make_golden, recompute="mlp,core_attn")
    assert names(make_record(make_spec(recompute="core_attn,mlp")), golden) == []


def test_accepting_a_difference_that_cannot_be_is_an_error(make_record, make_golden):
    record = make_record()
    refused(lambda: likeness(record, make_golden(record, VALUES), ("megatron",)), "--accept_difference 'megatron'")


def test_names_that_no_case_can_differ_in_are_refused_before_a_night():
    known = ("driver_version", "model.moe.moe_router_topk", "parallelism", "recompute", "env.NCCL_ALGO")
    wrong = {"softwear": "'software'", "modell.x": "'model'", "model.hiden_size": "'model.hidden_size'"}
    problems = impossible_names((*known, *wrong, "weather"))
    assert [problem.message.split("'")[1] for problem in problems] == [*wrong, "weather"]
    assert [near in problem.remedy for near, problem in zip(wrong.values(), problems, strict=False)] == [True] * 3


BRIDGE = BridgeEngine(version="0.4.2", forward_step="gpt_step", rest="0")


@pytest.mark.parametrize(
    ("settings", "accept", "applies"),
    [
        ({}, (), True),
        ({"recompute": "mlp"}, (), False),
        ({"recompute": "mlp"}, ("recompute",), True),
        ({"engine": BRIDGE}, ("engine",), False),
        ({"engine": BRIDGE}, ("engine.name", "engine"), False),
    ],
)
def test_a_golden_is_for_runs_of_its_own_settings_and_never_for_another_training_loop(
    make_record, make_spec, make_golden, settings, accept, applies
):
    golden = make_golden(make_record(), VALUES)
    assert is_for(golden, make_record(make_spec(**settings)), accept) is applies


def test_the_devices_of_a_run_are_those_of_its_ranks_only(make_record, make_spec, make_rank):
    spec = make_spec(num_gpus=3, parallelism={})
    devices = (Device(kind="cuda", name="H100", uuid="GPU-a"), Device(kind="cuda", name="H100"), None)
    ranks = tuple(make_rank(spec, rank, device=device) for rank, device in enumerate(devices))
    own, other = (DeviceSample(uuid=uuid, name="H100", index=i) for i, uuid in enumerate(("gpu-A", "GPU-b")))
    record = make_record(spec, ranks=ranks, nodes=(NodeSample(hostname="node1", devices=(other, own)),))
    assert own_devices(record) == [("node1", own)]
