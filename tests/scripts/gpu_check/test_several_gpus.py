"""Which settings are tried on which shape, and the parallel stage on one, two and four scripted GPUs."""

from dataclasses import replace

import pytest
from machine import find_target
from several_gpus import LAYOUTS, compare_layouts
from shapes import Shape, acts, legal_settings

from harness.errors import BadRequestError
from harness.experiment.rules.check import check
from harness.experiment.software import Software
from harness.launch.environment import Host
from harness.resolve.recipe import Request
from harness.resolve.resolve import resolve

NAMES = [f"parallel.{layout.name}" for layout in LAYOUTS]


def compared(runs):
    return {case.name: case for case in compare_layouts(runs, runs.programs)}


@pytest.mark.slow
def test_every_layout_is_run_without_and_with_its_overlap_and_passes(machine):
    cases = compared(machine(num_gpus=2, te="2.11.0"))
    assert sorted(cases) == sorted([*NAMES, *(f"{name}.plain" for name in NAMES)])
    assert {case.verdict for case in cases.values()} == {"pass"}
    assert [check.name for check in cases["parallel.user_buffers"].checks] == [
        "trained", "not_suspect", "memory_measured", "memory_in_order", "same_device", "recompute_acts", "clean_end",
        "same_losses",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("num_gpus", "te", "why"),
    [(1, "2.11.0", " 2 GPUs, "), (2, None, "transformer-engine ")],
)
def test_what_this_machine_cannot_do_is_skipped_by_name_and_nothing_is_started(machine, tmp_path, num_gpus, te, why):
    cases = compared(machine(num_gpus=num_gpus, te=te))
    assert {name: (case.verdict, why in case.checks[0].found) for name, case in cases.items()} == dict.fromkeys(
        NAMES, ("skipped", True)
    )
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "name", "check"),
    [
        ("other_loss", "parallel.user_buffers", "same_losses"),
        ("slow_end", "parallel.user_buffers", "clean_end"),
        ("no_end", "parallel.user_buffers", "clean_end"),
        ("throttled", "parallel.te_graphs", "not_suspect"),
    ],
)
def test_what_goes_wrong_with_several_gpus_fails_its_own_check_only(machine, fault, name, check):
    runs = machine(fault, num_gpus=2, te="2.11.0")
    case = next(case for case in compare_layouts(runs, runs.programs) if case.name == name)
    assert [each.name for each in case.checks if each.verdict == "fail"] == [check]


HAS = {
    "user_buffers": lambda spec: spec.kernels.tp_comm_overlap and spec.parallelism.sequence_parallel,
    "distributed_optimizer": lambda spec: spec.ddp.overlap_grad_reduce and spec.ddp.overlap_param_gather,
    "te_graphs": lambda spec: spec.cuda_graph.impl == "transformer_engine",
    "interleaved": lambda spec: spec.ddp.overlap_grad_reduce and spec.parallelism.num_virtual_stages == 2,
}


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
@pytest.mark.parametrize("num_gpus", [2, 4])
def test_each_layout_is_legal_and_has_on_a_gpu_what_its_name_says_and_its_control_has_not(machine, layout, num_gpus):
    runs = machine(num_gpus=num_gpus)
    shape = Shape("parallel", runs.programs / "parallel.yaml")
    software = Software(megatron_core="0.16.1", transformer_engine="2.11.0", torch="2.11.0")

    def built(*set_values):
        asked = shape.asked(runs.target, **layout.asked(runs.target), set_values=set_values)
        spec = resolve(Request(**asked)).spec
        kernels = spec.kernels.model_copy(update={"transformer_impl": "transformer_engine"})
        spec = spec.model_copy(update={"kernels": kernels})
        findings = check(spec, software)
        assert [finding.id for finding in findings if finding.blocks] == []
        return HAS[layout.name](spec)

    assert built()
    assert not built(*layout.plain)


FULL = ("full:uniform:1", "full:block:1")
NO_TE = {"megatron_core": "0.16.1", "transformer_engine": None}


@pytest.fixture
def settled(machine, shape):
    """A shape as understood on a scripted H200 with the given software."""

    def make(name, **software):
        found = shape(name).settle(machine().target)
        impl = "transformer_engine" if software["transformer_engine"] else "local"
        kernels = found.spec.kernels.model_copy(update={"transformer_impl": impl})
        return replace(found, spec=found.spec.model_copy(update={"kernels": kernels}), software=Software(**software))

    return make


@pytest.mark.parametrize(
    ("name", "single"),
    [
        ("dense", ("core_attn", "layernorm", "mlp")),
        ("moe", ("core_attn", "layernorm", "moe", "moe_act")),
        ("mla", ("core_attn", "layernorm", "mlp", "moe", "moe_act", "shared_experts", "mla_up_proj")),
    ],
)
def test_local_layers_are_tried_under_every_module_they_have(settled, name, single):
    assert legal_settings(settled(name, **NO_TE)) == ("none", *single, ",".join(single), *FULL)


def test_with_transformer_engine_a_dense_layer_has_no_norm_of_its_own(settled):
    found = settled("dense", megatron_core="0.16.1", transformer_engine="2.11.0")
    assert legal_settings(found) == ("none", "core_attn", "mlp", "core_attn,mlp", *FULL)


def test_a_module_that_does_nothing_is_not_tried(settled):
    assert not acts(settled("dense", **NO_TE), "core_attn,moe")
    assert "moe_act" not in legal_settings(settled("moe", megatron_core="0.19.2", transformer_engine=None))


@pytest.mark.parametrize("name", ["dense", "moe", "mla"])
@pytest.mark.parametrize("total_gb", [24, 141])
def test_two_layers_are_trained_at_real_widths(machine, shape, name, total_gb):
    spec = shape(name).settle(machine(total_bytes=total_gb * 10**9).target).spec
    assert (spec.gpu, spec.num_gpus, spec.compute_dtype, spec.model.num_layers) == ("h200", 1, "bf16", 2)
    assert spec.model.hidden_size == (7168 if name == "mla" else 4096)
    assert spec.batch.seq_length == (4096 if total_gb > 24 else 2048)


def test_a_machine_without_gpu_gets_a_remedy(tmp_path, program):
    python = program("""echo '{"error": "Driver Not Loaded (NVML 9)"}'""")
    host = Host(python=python, hostname="here", num_cores=1, shell={})
    with pytest.raises(BadRequestError, match=r"no NVIDIA GPU .*NVML 9.*\n.*--rehearse"):
        find_target(host, tmp_path, rehearse=False)
    assert find_target(host, tmp_path, rehearse=True).is_rehearsal
