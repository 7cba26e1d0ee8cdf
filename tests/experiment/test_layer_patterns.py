"""Which decoder layers have experts, a sliding window or a gated delta net, as megatron-core reads the frequencies."""

import pytest
from pydantic import ValidationError

from harness.experiment.model import LinearAttentionModel, ModelSpec, YarnModel

SIZES = {"num_layers": 8, "hidden_size": 64, "ffn_hidden_size": 128, "num_attention_heads": 4, "vocab_size": 128}


@pytest.mark.parametrize(
    ("freq", "pattern"),
    [(None, (1,) * 8), (2, (1, 0) * 4), (4, (1, 1, 1, 0) * 2), (1, (0,) * 8), ((1, 1, 0, 0, 0, 0, 0, 1),) * 2],
)
def test_every_nth_layer_sees_all_tokens(freq, pattern):
    assert ModelSpec(**SIZES, window_size=(127, 0), window_attn_skip_freq=freq).window_pattern == pattern


def test_no_layer_has_a_window_without_a_window_size():
    assert ModelSpec(**SIZES, window_attn_skip_freq=2).window_pattern == (0,) * 8


@pytest.mark.parametrize(("freq", "pattern"), [(4, (1, 1, 1, 0) * 2), (3, (1, 1, 0, 1, 1, 0, 1, 1)), (1, (0,) * 8)])
def test_every_nth_layer_keeps_attention(freq, pattern):
    linear = LinearAttentionModel(linear_attention_freq=freq)
    assert ModelSpec(**SIZES, linear_attention=linear).linear_attention_pattern == pattern


def test_every_nth_layer_has_no_rotary_embedding():
    assert ModelSpec(**SIZES, no_rope_freq=4).layer_kinds == ("dense", "dense", "dense", "nope_dense") * 2
    with pytest.raises(ValidationError, match="no_rope_freq 3"):
        ModelSpec(**SIZES, no_rope_freq=3)
    with pytest.raises(ValidationError, match="window_size"):
        ModelSpec(**SIZES, no_rope_freq=4, window_size=(127, 0))


@pytest.mark.parametrize(
    "change",
    [{"window_attn_skip_freq": (1, 0)}, {"linear_attention": LinearAttentionModel(linear_attention_freq=(1,))}],
)
def test_a_pattern_of_another_depth_is_refused(change):
    with pytest.raises(ValidationError, match="num_layers 8"):
        ModelSpec(**SIZES, **change)


def test_yarn_and_its_settings_come_together():
    with pytest.raises(ValidationError, match="position_embedding_type yarn "):
        ModelSpec(**SIZES, position_embedding_type="yarn")
    with pytest.raises(ValidationError, match="position_embedding_type rope "):
        ModelSpec(**SIZES, yarn=YarnModel())
