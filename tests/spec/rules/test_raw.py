import warnings

import pytest

from harness.spec.rules.raw import RAW_RULES, RawRecompute, check_raw


def fields(**given):
    return given


CASES = [
    ("R01", fields(recompute_granularity="partial")),
    ("R02", fields(recompute_granularity="full", recompute_method="blocks", recompute_num_layers=1)),
    ("R03", fields(recompute_granularity="full", recompute_num_layers=1)),
    ("R04", fields(recompute_granularity="full", recompute_method="block")),
    ("R05", fields(recompute_granularity="selective", recompute_num_layers=2, recompute_modules=("mlp",))),
    ("R07", fields(recompute_granularity="selective", recompute_modules="mlp")),
    ("R07", fields(recompute_granularity="selective", recompute_modules=("",))),
    ("R14", fields(moe_layer_recompute=True, recompute_granularity="full", recompute_method="block",
                 recompute_num_layers=1)),
    ("R15", fields(moe_layer_recompute=True)),
    ("T01", fields(recompute_modules=("mlp",))),
    ("T02", fields(recompute_granularity="selective", recompute_method="block", recompute_modules=("mlp",))),
    ("T03", fields(recompute_granularity="selective", recompute_modules=())),
    ("T03", fields(recompute_granularity="selective")),
    ("T04", fields(recompute_granularity="full", recompute_method="block", recompute_num_layers=1,
                 recompute_modules=("mlp",))),
    ("T05", fields(recompute_granularity="full", recompute_method="uniform", recompute_num_layers=0)),
    ("T06", fields(recompute_granularity="full", recompute_method="block", recompute_num_layers=-1)),
    ("T09", fields(recompute_granularity="selective", recompute_modules=("mlp",), distribute_saved_activations=True)),
    ("T24", fields(num_microbatches_with_partial_activation_checkpoints=2)),
]  # fmt: skip
LEGAL = [
    fields(),
    fields(recompute_granularity="selective", recompute_modules=("mlp", "core_attn")),
    fields(recompute_granularity="full", recompute_method="block", recompute_num_layers=1),
    fields(recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1,
         distribute_saved_activations=True),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "given"), CASES)
def test_fields_from_elsewhere_are_judged(rule, given):
    assert rule in {finding.id for finding in check_raw(RawRecompute(**given))}


@pytest.mark.parametrize("given", LEGAL)
def test_legal_fields_are_without_findings(given):
    assert check_raw(RawRecompute(**given)) == ()


def test_every_row_is_fired_by_a_case():
    fired = {row for row in RAW_RULES for _, given in CASES if row.when(RawRecompute(**given))}
    assert set(RAW_RULES) - fired == set()


@pytest.mark.train
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("given", [given for _, given in CASES] + LEGAL)
def test_outcomes_are_those_of_the_installed_megatron_core(given):
    """A row that says `raises` or `warns` is met by that text; only those raise."""
    from megatron.core.transformer.transformer_config import TransformerConfig

    rows = [row for row in RAW_RULES if row.when(RawRecompute(**given))]
    texts = {f.id: f.mcore_text for f in check_raw(RawRecompute(**given))}
    raising = [texts[row.id] for row in rows if row.outcome == "raises"]
    as_lists = {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}
    refused = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            TransformerConfig(num_layers=4, hidden_size=64, num_attention_heads=4, **as_lists)
        except (ValueError, AssertionError) as error:
            refused = str(error)
    if refused is None:
        assert raising == []
    else:
        assert any(text is not None and refused.startswith(text) for text in raising), refused
    warned = [texts[row.id] for row in rows if row.outcome == "warns" and row.mcore_text]
    assert all(any(str(w.message).startswith(str(text)) for w in caught) for text in warned)
