"""What holds for the check as a whole, whatever is asked."""

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.experiment.rules.check import check
from harness.experiment.rules.rule import SEVERITIES
from harness.experiment.software import Software

VERSIONS = [None, "0.16.0", "0.16.1", "0.17.0", "0.18.2", "0.19.0", "0.20.0.dev0", "0.21.0"]
RECOMPUTE = ["none", "core_attn", "layernorm", "mlp,moe", "moe_act,shared_experts", "mla_up_proj", "gdn_norm_out",
             "full:uniform:3", "full:block:5"]  # fmt: skip


@pytest.mark.slow
@settings(max_examples=300)
@given(
    kind=st.sampled_from(["dense", "moe", "deepseek", "cpu", "cpu moe"]),
    mcore=st.sampled_from(VERSIONS),
    te=st.sampled_from([None, "1.5", "2.4", "2.11", "2.14"]),
    gpu=st.sampled_from(["a100", "h100", "b200", "cpu"]),
    recompute=st.sampled_from(RECOMPUTE),
    dtype=st.sampled_from(["bf16", "fp32", "fp8_cs", "fp8_ds", "fp8_mx", "nvfp4"]),
    graph=st.sampled_from(["none", "local", "transformer_engine", "full_iteration"]),
    scope=st.lists(st.sampled_from(["attn", "mlp", "moe", "moe_router"]), unique=True, max_size=3),
    env=st.sampled_from([None, {}, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}]),
)
def test_any_request_under_any_software_is_judged(
    *, kind, mcore, te, gpu, recompute, dtype, graph, scope, env, request_for
):
    spec = request_for(kind, gpu=gpu, recompute=recompute, dtype=dtype, graph=graph, scope=tuple(scope))
    findings = check(spec, Software(megatron_core=mcore, transformer_engine=te), env=env)
    severities = [SEVERITIES.index(f.severity) for f in findings]
    assert severities == sorted(severities)
    assert all("{" not in f.message.replace("{'", "") and f.message for f in findings)
    assert ("ENV00" in {f.id for f in findings}) == (mcore is None)


def errors(spec, mcore: str, te: str = "2.12") -> set[str]:
    return {f.id for f in check(spec, Software(megatron_core=mcore, transformer_engine=te)) if f.blocks}


@pytest.mark.parametrize(
    ("kind", "changes", "by_version"),
    [
        ("dense", {"pp": 2, "recompute": "full:uniform:3"}, {"0.16.1": {"T08"}, "0.17.0": set(), "0.20.0.dev0": set()}),
        ("deepseek", {"graph": "local", "recompute": "mla_up_proj", "capacity": 1.0, "pad": True},
         {"0.16.1": {"G25", "EFF01"}, "0.17.0": set(), "0.19.0": set()}),
        ("dense", {"graph": "local", "recompute": "mlp,mla_up_proj", "dtype": "fp8_cs"},
         {"0.16.1": {"R09", "G21", "G25"}, "0.19.0": {"R09", "G24"}}),
        ("dense", {"recompute": "mlp,gdn_norm_out"}, {"0.16.1": {"R07"}, "0.19.2": {"R23"}, "0.20.0.dev0": {"R23"}}),
        ("moe", {"offload_modules": ("fused_group_mlp",), "recompute": "moe"},
         {"0.16.1": {"F03", "F09"}, "0.19.0": {"F09"}}),
        ("cpu moe", {"dtype": "fp32", "recompute": "moe_act,layernorm"}, {"0.16.1": {"CPU08", "CPU09"}, "0.17.0": set()}),
    ],
)  # fmt: skip
def test_verdicts_follow_the_assumed_megatron_core(kind, changes, by_version, request_for):
    spec = request_for(kind, **changes)
    assert {version: errors(spec, version) for version in by_version} == by_version


def test_moe_act_without_experts_is_not_answered_with_settings_of_experts(request_for):
    found = {each.id: each.fix for each in check(request_for("cpu", recompute="moe_act"), Software()) if each.blocks}
    assert found.keys() == {"EFF01", "R08"}
    assert "moe_act" in found["R08"] and "moe_grouped_gemm" not in found["R08"]
    found = check(request_for("moe", recompute="moe_act", model__moe__moe_grouped_gemm=False), Software())
    assert next(each.fix for each in found if each.id == "R08").endswith(" model.moe.moe_grouped_gemm")


def test_the_rules_import_neither_torch_nor_megatron():
    code = "import sys, harness.experiment.rules.check, harness.experiment.rules.rulebook; " \
           "sys.exit(any(m in sys.modules for m in ('torch', 'megatron', 'transformer_engine', 'pynvml')))"  # fmt: skip
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
