"""The check as a whole, the rule table as people read it, and requests of Megatron-Bridge's performance scripts."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from harness.experiment.rules.check import RULES, check
from harness.experiment.rules.rule import SEVERITIES
from harness.experiment.rules.rulebook import entries, entries_named, readable
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
        ("cpu moe", {"dtype": "fp32", "recompute": "moe_act,layernorm"}, {"0.16.1": {"CPU08"}, "0.17.0": set()}),
    ],
)  # fmt: skip
def test_verdicts_follow_the_assumed_megatron_core(kind, changes, by_version, request_for):
    spec = request_for(kind, **changes)
    assert {version: errors(spec, version) for version in by_version} == by_version


def test_the_rules_import_neither_torch_nor_megatron():
    code = "import sys, harness.experiment.rules.check, harness.experiment.rules.rulebook; " \
           "sys.exit(any(m in sys.modules for m in ('torch', 'megatron', 'transformer_engine', 'pynvml')))"  # fmt: skip
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("num_gpus {s.spec.num_gpus} over TP {s.tp} x ETP {s.etp}", "num_gpus <num_gpus> over TP <TP> x ETP <ETP>"),
        ("on {s.gpu.name} with recompute {s.spec.recompute.text}", "on <gpu> with recompute <recompute>"),
        ("is {s.env[NVTE_FLASH_ATTN]}, not {old!r}", "is <NVTE_FLASH_ATTN>, not <old>"),
        ("no values", "no values"),
    ],
)
def test_values_of_a_request_are_shown_by_name(template, text):
    assert readable(template) == text


def test_the_rulebook_has_every_rule_in_words_and_in_the_order_of_its_number():
    found = entries()
    texts = [(e.id, text) for e in found for text in (e.message, e.fix, e.mcore_text or "")]
    assert [(rule, text) for rule, text in texts if "{" in text or "}" in text] == []
    words = {(e.id, e.message): re.sub(r"<\w+>", "", e.message).strip(" =,") for e in found}
    assert [said for said, rest in words.items() if len(rest) < 12] == []
    assert len(found) == len(RULES)
    assert {entry.severity for entry in found} == {"error", "warning", "note"}
    ids = [e.id for e in found if e.id.startswith("R") and not e.id.startswith("RUN")]
    assert (ids[0], ids[-1]) == ("R06", "R25")
    assert ids.index("R09") < ids.index("R10")
    assert [e.versions for e in entries_named("V04")] == ["before 0.19", "0.18 and later"]


DATA = Path(__file__).parents[2] / "data" / "bridge" / "requests.yaml"
REQUESTS = [request for group in yaml.safe_load(DATA.read_text()).values() for request in group]


def fields(request: dict) -> dict:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in request["changes"].items()}


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda r: str(r["changes"]))
def test_bridge_requests_are_judged_as_recorded_and_as_bridge_does_unless_the_record_says_why_not(
    request_, judge, request_for
):
    findings = judge(request_["kind"], fields(request_))
    errors = {f.id for f in findings if f.blocks}
    assert (request_["rule"] in errors) if request_["rule"] else errors == set()
    assert request_.get("warning") in {None, *(f.id for f in findings)}
    assert "why" in request_ or (request_["bridge"] == "refuses") == (request_["rule"] is not None)
    if isinstance(request_["bridge"], dict):
        spec = request_for(request_["kind"], **fields(request_))
        assert spec.data_parallel_size == request_["bridge"]["dp"]


def test_a_request_for_no_gpus_does_not_construct(request_for):
    with pytest.raises(ValidationError, match="num_gpus"):
        request_for("dense", num_gpus=0)


def test_a_tensor_size_that_divides_nothing_is_one_error_with_the_sizes_that_divide_all(judge):
    [found] = [f for f in judge("dense", {"num_gpus": 8, "tp": 3, "sp": True}) if f.blocks]
    assert (found.id, found.fix) == ("P03", "use -tp 1, 2, 4 or 8")
