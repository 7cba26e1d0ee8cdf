"""The same cuts, problems and texts as the installed megatron-core, for many drawn settings."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.experiment.layout import chunks, layout_problem
from harness.experiment.layout_text import parse_layout
from harness.experiment.model import ParallelismSpec
from tests.experiment.test_layout import model

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("ignore")]


def megatron_cut(num_layers: int, mtp: int | None, par: ParallelismSpec) -> list[list[tuple[int, ...]]]:
    """Layers per (pp_rank, vp_stage) as megatron-core builds them; raises what it raises."""
    import torch
    from megatron.core.transformer.enums import LayerType
    from megatron.core.transformer.transformer_block import get_num_layers_to_build
    from megatron.core.transformer.transformer_config import TransformerConfig
    from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

    vp_asked = par.virtual_pipeline_model_parallel_size
    config = TransformerConfig(
        num_layers=num_layers, hidden_size=64, num_attention_heads=4, mtp_num_layers=mtp,
        pipeline_dtype=torch.float32, **{**par.model_dump(exclude={"microbatch_group_size_per_vp_stage"}),
        "virtual_pipeline_model_parallel_size": None if vp_asked == 1 else vp_asked},
    )  # fmt: skip
    layout = config.pipeline_model_parallel_layout
    stages = []
    for pp_rank in range(par.pipeline_model_parallel_size):
        stage = []
        for vp_stage in range(config.virtual_pipeline_model_parallel_size or 1):
            if layout is not None:
                before = [
                    layout.layout[p][v].count(LayerType.decoder)
                    for v in range(vp_stage + 1)
                    for p in range(par.pipeline_model_parallel_size if v < vp_stage else pp_rank)
                ]
                first, size = sum(before), layout.layout[pp_rank][vp_stage].count(LayerType.decoder)
            else:
                first = get_transformer_layer_offset(config, vp_stage=vp_stage, pp_rank=pp_rank)
                size = get_num_layers_to_build(config, vp_stage=vp_stage, pp_rank=pp_rank)
            stage.append(tuple(range(first, first + size)))
        stages.append(stage)
    return stages


def assert_same(num_layers: int, mtp: int | None, par: ParallelismSpec) -> None:
    problem = layout_problem(model(num_layers, mtp), par)
    theirs, refused = [], None
    try:
        theirs = megatron_cut(num_layers, mtp, par)
    except (ValueError, AssertionError) as error:
        refused = squeezed(str(error))
    if refused is None:
        assert problem is None, problem
        assert [[chunk.layers for chunk in stage] for stage in chunks(model(num_layers, mtp), par)] == theirs
    else:
        assert problem is not None, f"megatron-core refuses: {refused}"
        assert squeezed(problem.mcore_text) in refused


def squeezed(text: str | None) -> str:
    assert text is not None
    return re.sub(r"\s+", " ", text)


ENDS = st.one_of(
    st.fixed_dictionaries({f"account_for_{end}_in_pipeline_split": st.booleans() for end in ("embedding", "loss")}),
    st.fixed_dictionaries({f"num_layers_in_{end}_pipeline_stage": st.sampled_from([None, 1, 2, 3]) for end in ("first", "last")}),
)  # fmt: skip


@settings(max_examples=500)
@given(num_layers=st.integers(6, 48), pp=st.sampled_from([3, 4, 6, 8]), vp=st.sampled_from([None, 2, 3]), ends=ENDS)
def test_equal_stages_and_uneven_ends_are_cut_as_megatron_core_cuts_them(num_layers, pp, vp, ends):
    par = ParallelismSpec(pipeline_model_parallel_size=pp, virtual_pipeline_model_parallel_size=vp, **ends)
    assert_same(num_layers, None, par)


@st.composite
def layout_strings(draw) -> str:
    """Stages of every spelling the grammar has; MTP layers and the loss anywhere behind the decoder layers or not."""
    single = st.sampled_from(["", "t", "tt", "t*3", "t,t"])
    group = st.sampled_from(["(t|)*2t", "(tt|)*3", "t(|t)*2", "(t*2|t|)*2"])
    parts = draw(st.lists(st.one_of(single, group), min_size=1, max_size=4))
    ending = draw(st.sampled_from(["L", "L", "L", "mL", "m|L", "m|tL", "m|mL", "mmL", ""]))
    return draw(st.sampled_from(["E", "E", "E", "tE"])) + "|".join(parts) + ending


@settings(max_examples=400)
@given(
    text=layout_strings(),
    pp=st.sampled_from([2, 3, 4]),
    mtp=st.sampled_from([None, 1, 2]),
    surplus=st.sampled_from([0, 0, 0, 1]),
)
def test_layout_strings_are_read_as_megatron_core_reads_them(text, pp, mtp, surplus):
    par = ParallelismSpec(pipeline_model_parallel_size=pp, pipeline_model_parallel_layout=text)
    assert_same(max(1, count_layers(text) + surplus), mtp, par)


@pytest.mark.parametrize(
    ("num_layers", "pp", "mtp", "text"),
    [(61, 16, 1, "Et*3|(tt|)*29m|L"), (61, 8, None, "Et*3|(t*4|)*14ttL"), (8, 2, None, "Et|(tt|)*2t*3L")],
)
def test_published_and_legal_layouts_are_cut_as_megatron_core_cuts_them(num_layers, pp, mtp, text):
    par = ParallelismSpec(pipeline_model_parallel_size=pp, pipeline_model_parallel_layout=text)
    assert layout_problem(model(num_layers, mtp), par) is None
    assert_same(num_layers, mtp, par)


def count_layers(text: str) -> int:
    return "".join(parse_layout(text)).count("t")
