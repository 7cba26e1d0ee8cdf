"""Saved activations per layer against the closed formulas of Korthikanti et al. 2022 (arXiv 2205.05198, section 4)."""

import pytest

pytestmark = [pytest.mark.train, pytest.mark.slow]

SEQUENCE = 2048
MODELS = {"22B": (6144, 64, 4), "175B": (12288, 96, 1), "530B": (20480, 128, 1)}


def formula_bytes(model, tp, sp, recompute):
    """Table 2 of the paper: bytes per layer in 16-bit precision."""
    hidden, heads, batch = MODELS[model]
    sbh = SEQUENCE * batch * hidden
    attention = 5 * heads * SEQUENCE / hidden
    if recompute == "full:uniform:1":
        return 2 * sbh / (tp if sp else 1)
    scores = 0 if recompute == "core_attn" else attention / tp
    return round(sbh * (34 / tp + scores) if sp else sbh * (10 + 24 / tp + scores))


def norm_statistics_bytes(model, tp, sp, recompute):
    """Mean and reciprocal deviation of two LayerNorms in fp32, which the paper leaves out."""
    if recompute == "full:uniform:1":
        return 0
    return 2 * 2 * 4 * SEQUENCE * MODELS[model][2] / (tp if sp else 1)


def test_the_formulas_hold_to_the_byte_but_for_norm_statistics(script):
    rows = script("korthikanti.py")
    expected = {}
    for row in rows:
        key = (row["model"], row["tp"], row["sp"], row["recompute"])
        expected[key] = formula_bytes(*key) + norm_statistics_bytes(*key)
    assert expected == {(r["model"], r["tp"], r["sp"], r["recompute"]): r["bytes"] for r in rows}
    assert len(rows) == 21
