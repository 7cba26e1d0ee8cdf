"""The rows that say what TransformerConfig raises, against the installed megatron-core through the ranks' own mapping."""

import pytest

from harness.spec.recompute import MODULES
from harness.spec.rules.check import check
from harness.spec.software import parse_version

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
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


def test_the_text_is_the_one_that_the_config_raises(config_case, ask, transformer_config):
    spec, software, env = ask(config_case.kind, config_case.breaks)
    assert text_of(check(spec, software, env=env), config_case.rule) in refusal(transformer_config, spec)


def test_the_nearest_legal_request_does_not_raise_it(config_case, ask, transformer_config):
    spec, software, env = ask(config_case.kind, config_case.breaks)
    text = text_of(check(spec, software, env=env), config_case.rule)
    repaired, _, _ = ask(config_case.kind, config_case.breaks | config_case.keeps)
    assert text not in refusal(transformer_config, repaired)


def test_fp8_recompute_without_transformer_engine_fails_as_r13_says(ask, transformer_config):
    spec, software, _ = ask("moe", {"recompute": "moe_act", "dtype": "fp8_cs", "te": None})
    assert text_of(check(spec, software), "R13") in refusal(transformer_config, spec)


def test_the_modules_are_those_that_megatron_core_allows():
    import megatron.core
    from megatron.core.transformer.transformer_config import TransformerConfig

    with pytest.raises(AssertionError) as refused:
        TransformerConfig(num_layers=1, hidden_size=64, num_attention_heads=4, recompute_granularity="selective",
                          recompute_modules=["no such module"])  # fmt: skip
    allowed = set(str(refused.value).partition("Allowed modules are: ")[2].strip("{}").replace("'", "").split(", "))
    version = parse_version(megatron.core.__version__)
    assert {m.name for m in MODULES.values() if not version < parse_version(m.since_mcore)} == allowed
