"""What megatron-core says when it refuses settings: every text is in its source, and is recognised with its values."""

import ast
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from harness.experiment.rules.rulebook import _OF_OTHERS, _PARTS, entries, filled, refusals, without_unknown

LATER = ("should be divisible by config.pipeline_model_parallel_size",)  # than megatron-core 0.16.1
FILES = (
    "transformer/transformer_config.py", "transformer/transformer_block.py",
    "transformer/pipeline_parallel_layer_layout.py", "transformer/multi_token_prediction.py",
)  # fmt: skip


@cache
def source():
    """Every string of these files of megatron-core, adjacent literals joined, ``{}`` for values."""
    (root,) = find_spec("megatron.core").submodule_search_locations
    found = []
    for file in FILES:
        for node in ast.walk(ast.parse((Path(root) / file).read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
                found.append("".join(parts))
    return found


PARTS = [*(part for parts in _PARTS.values() for part in parts), *(text.partition("{")[0] for text, _, _ in _OF_OTHERS)]


@pytest.mark.parametrize("part", [part for part in PARTS if part not in LATER])
def test_a_part_of_a_message_is_in_megatron_cores_source(part):
    assert any(part in text for text in source())


def test_every_refusal_of_a_rule_belongs_to_one_and_no_message_stands_twice():
    found = refusals()
    assert {refusal.rule for refusal in found} - {""} <= {entry.id for entry in entries("error")}
    assert len({refusal.pattern for refusal in found}) == len(found) > 100


@pytest.mark.parametrize(
    ("line", "rule", "names", "fix"),
    [
        ("num_attention_heads (30) must be a multiple of tensor_model_parallel_size (8).", "P03",
         ["30", "TP 8"], "tensor_model_parallel_size"),
        ("global batch size (100) is not divisible by micro batch size (8) times data parallel size (4)", "A06",
         ["global_batch_size 100", "micro_batch_size 8 x DP 4"], "micro_batch_size x DP"),
        ("world_size (32) is not divisible by 48", "A01",
         ["num_gpus 32", "TP <TP> x PP <PP> x CP <CP>"], "48 GPUs"),
        ("recompute_num_layers must be between 1 and num_layers_per_pipeline_rank: 20", "", [],
         "--recompute_num_layers 1 to 20"),
        ("Invalid choices for recompute_modules: {'a', 'b'}. Allowed modules are: x", "R07", [], ""),
    ],
)  # fmt: skip
def test_a_message_is_recognised_and_lends_its_values(line, rule, names, fix):
    refusal = next(each for each in refusals() if re.search(each.pattern, f"[rank0]: ValueError: {line}"))
    values = re.search(refusal.pattern, line).groupdict()
    assert refusal.rule == rule
    assert [name for name in names if name not in filled(refusal.message, values)] == []
    assert fix in without_unknown(filled(refusal.fix, values))
