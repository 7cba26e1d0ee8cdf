"""How layers are laid out: over pipeline stages, and which have experts, a sliding window or a gated delta net."""

import pytest
from pydantic import ValidationError

from harness.experiment.layout import chunks, layout_problem, num_virtual_stages
from harness.experiment.layout_text import Chunk, LayoutError, LayoutSyntaxError, parse_layout
from harness.experiment.model import LinearAttentionModel, ModelSpec, ParallelismSpec, YarnModel

DEEPSEEK_V3 = "Et*3|(tt|)*29m|L"


def fields(**given):
    return given


def model(num_layers: int, mtp: int | None = None) -> ModelSpec:
    return ModelSpec(
        num_layers=num_layers, hidden_size=64, ffn_hidden_size=64, num_attention_heads=4, vocab_size=128,
        mtp_num_layers=mtp,
    )  # fmt: skip


def cut(num_layers: int, pp: int, vp: int | None = None, mtp: int | None = None, **fields):
    par = ParallelismSpec(pipeline_model_parallel_size=pp, virtual_pipeline_model_parallel_size=vp, **fields)
    return chunks(model(num_layers, mtp), par)


def sizes(stages) -> list[list[int]]:
    return [[len(chunk.layers) for chunk in stage] for stage in stages]


def test_an_even_split_numbers_layers_through_the_ranks_of_each_virtual_stage():
    assert cut(8, pp=2, vp=2, mtp=1) == (
        (Chunk((0, 1), has_embedding=True), Chunk((4, 5))),
        (Chunk((2, 3)), Chunk((6, 7), has_loss=True, mtp_layers=1)),
    )


def test_both_ends_have_a_layer_less_where_embedding_and_loss_count():
    both = {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}
    llama31_405b = sizes(cut(126, 8, 8, **both))
    assert (llama31_405b[0], llama31_405b[7]) == ([1, *[2] * 7], [*[2] * 7, 1])
    assert sum(map(sum, llama31_405b)) == 126
    qwen3_235b = sizes(cut(94, 8, **both))
    assert [stage[0] for stage in qwen3_235b] == [11, *[12] * 6, 11]


def test_deepseek_v3_keeps_mtp_and_loss_in_chunks_without_decoder_layers():
    stages = cut(61, 16, mtp=1, pipeline_model_parallel_layout=DEEPSEEK_V3)
    assert sizes(stages) == [[3, 2]] + [[2, 2]] * 13 + [[2, 0], [2, 0]]
    assert stages[14][1] == Chunk((), mtp_layers=1)
    assert stages[15][1] == Chunk((), has_loss=True)
    par = ParallelismSpec(pipeline_model_parallel_size=16, pipeline_model_parallel_layout=DEEPSEEK_V3)
    assert num_virtual_stages(par) == 2


def test_uneven_ends_leave_the_rest_to_the_middle():
    stages = cut(13, 4, num_layers_in_first_pipeline_stage=2, num_layers_in_last_pipeline_stage=3)
    assert sizes(stages) == [[2], [4], [4], [3]]


@pytest.mark.parametrize(
    ("text", "stages"),
    [
        ("EttL", ("EttL",)),
        ("Et*3|(tt|)*2L", ("Ettt", "tt", "tt", "L")),
        ("E|(t|)*3,mL", ("E", "t", "t", "t", "mL")),
        ("E(|tt)*2,L", ("E", "tt", "ttL")),
        ("E(t*2|)*2L", ("Ett", "tt", "L")),
        ("t*0E", ("E",)),
    ],
)
def test_layout_strings_unroll(text, stages):
    assert parse_layout(text) == stages


@pytest.mark.parametrize("text", ["Ex", "E t", "((t)*2)*2", "(t*2", "t)", "(t)", "()*2", "*3", "t*", "t*2*2"])
def test_layout_strings_outside_the_grammar_are_refused(text):
    with pytest.raises(LayoutSyntaxError):
        parse_layout(text)


@pytest.mark.parametrize(
    ("rule", "num_layers", "given"),
    [
        ("P08", 9, fields(pipeline_model_parallel_size=2)),
        ("P08", 2, fields(pipeline_model_parallel_size=4)),
        ("P09", 8, fields(pipeline_model_parallel_size=2, virtual_pipeline_model_parallel_size=3)),
        ("A12", 8, fields(virtual_pipeline_model_parallel_size=2)),
        ("A12", 8, fields(pipeline_model_parallel_layout="Et*4|t*4L")),
        ("P15", 8, fields(pipeline_model_parallel_size=2, num_layers_in_first_pipeline_stage=8)),
        ("P15", 8, fields(num_layers_in_first_pipeline_stage=4, num_layers_in_last_pipeline_stage=4)),
        ("P15", 8, fields(pipeline_model_parallel_size=3, num_layers_in_first_pipeline_stage=6,
                        num_layers_in_last_pipeline_stage=6)),
        ("P13", 8, fields(pipeline_model_parallel_size=2, pipeline_model_parallel_layout="|")),
    ],
)  # fmt: skip
def test_a_cut_that_cannot_be_is_refused_with_its_rule(rule, num_layers, given):
    par = ParallelismSpec(**given)
    problem = layout_problem(model(num_layers), par)
    assert problem is not None and problem.rule == rule
    with pytest.raises(LayoutError):
        chunks(model(num_layers), par)


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
