import pytest

from harness.experiment.recompute import parse_recompute
from harness.experiment.rules.check import check
from harness.experiment.software import Software
from harness.predict.search import candidates

TE = "transformer_engine"
SOFTWARE = Software(megatron_core="0.16.1", transformer_engine="2.11", torch="2.9")


def texts(spec) -> list[str]:
    return [row.text for row in candidates(spec, SOFTWARE, TE).rows]


def test_llama_has_ten_settings_that_differ(spec_of):
    # chunks of four layers; full:block:4 is full:uniform:1, layernorm and the expert modules do nothing
    assert texts(spec_of()) == [
        "none", "core_attn", "mlp", "core_attn,mlp", "full:uniform:1", "full:uniform:2", "full:uniform:4",
        "full:block:1", "full:block:2", "full:block:3",
    ]  # fmt: skip


def test_the_asked_setting_is_among_them_in_its_own_spelling(spec_of):
    assert "mlp,core_attn" in texts(spec_of(recompute=parse_recompute("mlp,core_attn")))
    assert "core_attn,mlp" not in texts(spec_of(recompute=parse_recompute("mlp,core_attn")))


@pytest.mark.parametrize("text", ["layernorm", "moe_act", "mlp,moe_act"])
def test_an_asked_setting_that_rules_refuse_hides_no_other_one(spec_of, text):
    """``layernorm`` has no effect here, so it computes what ``none`` computes, but it may not run."""
    rows = {row.text: row.is_legal for row in candidates(spec_of(recompute=parse_recompute(text)), SOFTWARE, TE).rows}
    assert rows.pop(text) is False
    assert list(rows) == texts(spec_of())


def test_parts_of_moe_are_never_combined_with_it(moe_spec):
    assert "moe" in texts(moe_spec)
    assert "moe_act" in texts(moe_spec)
    assert not [text for text in texts(moe_spec) if "moe," in f"{text}," and "moe_act" in text]


def test_a_setting_that_a_rule_forbids_is_kept_with_its_rule(spec_of):
    graphs = spec_of(cuda_graph={"impl": "transformer_engine", "scope": ("mlp",)})
    rows = {row.text: row for row in candidates(graphs, SOFTWARE, TE).rows}
    assert rows["none"].is_legal
    assert not rows["full:uniform:1"].is_legal
    assert rows["full:uniform:1"].rules == ("R20",)


def test_uniform_units_must_fit_every_chunk(spec_of):
    uneven = spec_of(parallelism={
        "tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 4, "num_layers_in_first_pipeline_stage": 8,
    })  # fmt: skip
    legal = [row.text for row in candidates(uneven, SOFTWARE, TE).rows if row.is_legal]
    assert [text for text in legal if "uniform" in text] == [
        "full:uniform:1", "full:uniform:2", "full:uniform:4", "full:uniform:8",
    ]  # fmt: skip


def test_which_steps_a_run_would_measure_forbids_no_setting(make_spec):
    limited = make_spec(gpu="cpu", measure={"max_steps": 6, "eval_time_start_step": 0, "memory_limit_bytes": 2**27})
    assert "CPU17" in [finding.id for finding in check(limited, SOFTWARE)]
    assert candidates(limited, SOFTWARE, "local").rows[0].is_legal
