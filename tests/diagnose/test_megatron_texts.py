"""megatron-core's own errors: every text is in its source, and names its cause and fix."""

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from harness.diagnose.judge import diagnose
from harness.diagnose.symptoms import LAYOUT_TEXTS, MEGATRON_TEXTS, RANKS, names_symptom, recognised
from harness.diagnose.values import FailedRank
from harness.experiment.rules.rulebook import entries

TEXTS = (*MEGATRON_TEXTS, *LAYOUT_TEXTS)
IN_SOURCE = [row for row in TEXTS if row.file]


@cache
def texts_of(file):
    """Every string of a file of megatron-core, adjacent literals joined, ``{}`` for values."""
    (root,) = find_spec("megatron.core").submodule_search_locations
    found = []
    for node in ast.walk(ast.parse((Path(root) / file).read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
        if isinstance(node, ast.JoinedStr):
            found.append("".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values))
    return found


@pytest.mark.parametrize("row", IN_SOURCE, ids=[f"{row.rule}: {row.text[:40]}" for row in IN_SOURCE])
def test_the_text_is_in_megatron_cores_source(row):
    assert any(row.text in text for text in texts_of(row.file))


@pytest.mark.parametrize("row", TEXTS, ids=[f"{row.rule}: {row.text[:40]}" for row in TEXTS])
def test_an_error_names_its_own_cause_and_fix_only(case, row):
    line = f"[rank0]: ValueError: {row.text}"
    assert names_symptom(line)
    (found,) = recognised(case(line, spec=None))
    assert (found.id, found.cause, found.fix) == (row.rule, row.cause, row.fix)


def test_every_row_belongs_to_a_rule():
    assert {row.rule for row in TEXTS} | {RANKS.id} <= {entry.id for entry in (*entries(), *entries("closed"))}


def test_a_number_of_layers_with_selective_recompute_is_diagnosed_by_its_message(case):
    words = "ValueError: When using recompute_granularity: selective recompute_num_layers must be None."
    answer = diagnose(case(words, spec=None, failed=FailedRank(0, "error", words, where="rank.log:1")))
    assert (answer.verdict.oom_class, answer.verdict.confidence) == ("not_oom", "high")
    assert answer.verdict.reason.startswith("recompute_num_layers belongs to full recompute")
    assert answer.fixes[0].text.startswith("Drop --recompute_num_layers")


def test_a_number_of_layers_out_of_range_is_answered_with_the_largest(case):
    words = "ValueError: When using recompute_granularity: full recompute_num_layers must be between 1 and "
    (row,) = recognised(case(f"{words}num_layers_per_pipeline_rank: 20", spec=None))
    assert row.fix.endswith("from 1 to the layers of a pipeline rank, here 20")


def test_a_wrong_number_of_ranks_is_known_by_its_message(case):
    (row,) = recognised(case("RuntimeError: world_size (32) is not divisible by 48", spec=None))
    assert (row.id, row.cause) == ("A01", RANKS.cause)
