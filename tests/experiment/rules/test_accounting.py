"""No known rule is forgotten: every id is a row of the table or closed for a reason that holds."""

import pytest

from harness.experiment.gpu import GPUS, PRECISIONS
from harness.experiment.rules.check import RULES
from harness.experiment.rules.rulebook import CLOSED_BY_CONSTRUCTION

# The numbering of what is known about megatron-core, per section, without gaps.
KNOWN = {"R": 22, "T": 30, "F": 11, "Q": 11, "G": 33, "P": 32, "A": 24, "B": 17, "V": 14, "K": 28}
EVERY_ID = [f"{section}{number:02d}" for section, count in KNOWN.items() for number in range(1, count + 1)]


def number(rule_id: str) -> str:
    """The id without the letter of a part: P28c is part of P28."""
    return rule_id.rstrip("abcdefgh")


@pytest.mark.parametrize("rule_id", EVERY_ID)
def test_every_known_rule_has_a_row_or_is_closed_by_construction(rule_id):
    in_table = rule_id in {number(row.id) for row in RULES}
    assert in_table != (rule_id in CLOSED_BY_CONSTRUCTION)


def test_nothing_is_closed_that_is_unknown():
    assert sorted(set(CLOSED_BY_CONSTRUCTION) - set(EVERY_ID)) == []


def test_rows_with_one_id_speak_about_different_versions_severities_or_conditions():
    rows = [(row.id, row.severity, row.since, row.until, row.message) for row in RULES]
    assert len(rows) == len(set(rows))


def test_rows_say_what_to_do_and_where_it_is_known_from():
    assert [row.id for row in RULES if not (row.message and row.fix and row.source)] == []


def test_precisions_never_set_what_the_closed_rules_rely_on():
    forbidden = {"fp8_dot_product_attention", "first_last_layers_bf16", "fp16", "fp8_quantizer_factory"}
    assert [name for name, row in PRECISIONS.items() if forbidden & set(row.transformer_config)] == []
    for row in PRECISIONS.values():
        config = row.transformer_config
        assert not ("fp8" in config and "fp4" in config)
        assert "fp8" in config or "fp8_param" not in config
        assert "fp4" in config or "fp4_param" not in config


def test_every_gpu_can_run_grouped_gemm():
    assert [name for name, gpu in GPUS.items() if gpu.capability and gpu.capability < (8, 0)] == []
