from hypothesis import given
from hypothesis import strategies as st

from harness.resolve.recipe import Setting, merge
from harness.resolve.recompute import policy_from_text

PATHS = st.sampled_from(["recompute", "batch.seq_length", "model.moe.moe_router_topk", "env.A", "env.B"])
POLICY = st.sampled_from(["none", "mlp", "core_attn,mlp", "full:uniform:1"]).map(lambda t: policy_from_text(t, "t"))
VALUES = st.one_of(st.none(), st.integers(0, 9), POLICY)
LAYERS = st.dictionaries(PATHS, st.builds(Setting, VALUES, st.sampled_from(["default", "f:1", "--x"])), max_size=5)


@given(LAYERS, LAYERS, LAYERS)
def test_merging_in_two_steps_equals_merging_in_one(a, b, c):
    assert merge(merge(a, b), c) == merge(a, b, c) == merge(a, merge(b, c))


@given(LAYERS, LAYERS)
def test_the_later_layer_wins_where_it_speaks_and_nowhere_else(a, b):
    merged = merge(a, b)
    assert all(merged[path] == b[path] for path in b)
    assert all(merged[path] == a[path] for path in a if path not in b)
    assert set(merged) == set(a) | set(b)
