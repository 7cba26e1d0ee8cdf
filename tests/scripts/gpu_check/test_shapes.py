"""Which settings are tried on which shape: those that are legal and do something there."""

from dataclasses import replace

import pytest
from machine import find_target
from shapes import acts, legal_settings

from harness.errors import BadRequestError
from harness.experiment.software import Software
from harness.launch.environment import Host

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
