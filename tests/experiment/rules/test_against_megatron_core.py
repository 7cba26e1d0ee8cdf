"""The rows that say what TransformerConfig raises, against the installed megatron-core through the ranks' own mapping."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.experiment.modules import MODULES
from harness.experiment.rules.check import check
from harness.experiment.software import Software
from harness.units import parse_version

# Modules of megatron-core that no model of the recipes has: mbr-perf does not offer them. Release since which it has them.
NOT_OFFERED = {"gdp_in_proj": "0.20", "gdp_qkv": "0.20", "mhc": "0.20"}

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="session")
def transformer_config():
    from harness.engine.config import transformer_config

    return transformer_config


def refusal(transformer_config, spec) -> str:
    """What TransformerConfig says to ``spec`` with the layers that need no transformer-engine; empty if nothing."""
    kernels = spec.kernels.model_copy(update={"transformer_impl": "local"})
    try:
        transformer_config(spec.model_copy(update={"kernels": kernels}))
    except (ValueError, AssertionError, TypeError) as error:
        return " ".join(str(error).split())
    return ""


def text_of(findings, rule: str) -> str:
    return " ".join(next(f.mcore_text for f in findings if f.id == rule).split())


def test_the_text_is_the_one_that_the_config_raises(config_case, ask, installed_mcore, transformer_config):
    spec, software, env = ask(config_case.kind, config_case.breaks | {"mcore": installed_mcore})
    assert text_of(check(spec, software, env=env), config_case.rule) in refusal(transformer_config, spec)


def test_the_nearest_legal_request_does_not_raise_it(config_case, ask, installed_mcore, transformer_config):
    spec, software, env = ask(config_case.kind, config_case.breaks | {"mcore": installed_mcore})
    text = text_of(check(spec, software, env=env), config_case.rule)
    repaired, _, _ = ask(config_case.kind, config_case.breaks | config_case.keeps)
    assert text not in refusal(transformer_config, repaired)


CHANGES = {
    "tp": [1, 2, 3, 4], "sp": [False, True], "pp": [1, 2, 4], "vp": [None, 2, 3], "ep": [1, 2], "etp": [None, 1],
    "mtp": [None, 1, 2], "overlap": [False, True], "dispatcher": ["alltoall", "allgather", "flex"],
    "capacity": [None, 1.0], "pad": [False, True], "graph": ["none", "local", "transformer_engine", "full_iteration"],
    "scope": [(), ("attn",), ("mlp",), ("moe",), ("moe_router",), ("attn", "moe_preprocess"), ("moe", "moe_router")],
    "offload_layers": [0, 2, 8], "offload_modules": [(), ("core_attn",), ("attn_proj",), ("moe_act", "expert_fc1")],
    "recompute": ["none", "core_attn", "mlp", "moe", "moe_act", "layernorm,shared_experts", "mla_up_proj",
                  "full:uniform:1", "full:block:2", "full:uniform:1:distributed"],
    "dtype": ["bf16", "fp32"], "kernels__moe_shared_expert_overlap": [False, True],
    "model__hidden_dropout": [0.0, 0.1], "model__attention_dropout": [0.0, 0.1], "model__add_bias_linear": [False, True],
    "model__gated_linear_unit": [True, False], "model__activation_func": ["silu", "gelu"],
    "model__num_query_groups": [16, 6], "parallelism__account_for_loss_in_pipeline_split": [False, True],
    "parallelism__num_layers_in_first_pipeline_stage": [None, 2],
    "kernels__moe_flex_dispatcher_backend": [None, "deepep"],
}  # fmt: skip


@st.composite
def some_changes(draw) -> dict:
    names = draw(st.lists(st.sampled_from(sorted(CHANGES)), unique=True, max_size=7))
    return {name: draw(st.sampled_from(CHANGES[name])) for name in names}


@settings(max_examples=400)
@given(kind=st.sampled_from(["dense", "moe", "deepseek"]), changes=some_changes())
def test_the_config_refuses_what_the_rules_refuse_with_the_same_words(
    kind, changes, request_for, installed_mcore, transformer_config, raised_by_config
):
    spec = request_for(kind, **changes)
    text = refusal(transformer_config, spec)
    errors = [f for f in check(spec, Software(megatron_core=installed_mcore, transformer_engine="2.11")) if f.blocks]
    if text:
        assert any(f.mcore_text and " ".join(f.mcore_text.split()) in text for f in errors), (text, errors)
    else:
        assert raised_by_config.isdisjoint(f.id for f in errors)


def test_the_modules_are_those_that_megatron_core_allows():
    import megatron.core
    from megatron.core.transformer.transformer_config import TransformerConfig

    with pytest.raises(AssertionError) as refused:
        TransformerConfig(num_layers=1, hidden_size=64, num_attention_heads=4, recompute_granularity="selective",
                          recompute_modules=["nonsense"])  # fmt: skip
    allowed = set(str(refused.value).partition("Allowed modules are: ")[2].strip("{}").replace("'", "").split(", "))
    version = parse_version(megatron.core.__version__)
    offered = {m.name for m in MODULES.values() if not version < parse_version(m.since_mcore)}
    assert allowed - offered == {name for name, since in NOT_OFFERED.items() if not version < parse_version(since)}
    assert offered <= allowed
