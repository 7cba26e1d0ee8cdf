import pytest

from harness.experiment.experiment import CudaGraphSpec
from harness.experiment.recompute import NoRecompute, SelectiveRecompute, parse_recompute
from harness.predict.stages import Composer
from harness.predict.trace_book import AROUND
from harness.predict.trace_cases import CaseMaker

TE = "transformer_engine"


def costs_of(spec, by_hand):
    composer = Composer(spec, TE)
    return composer.chunk_costs(by_hand(composer.cases()).even)


def with_recompute(spec, text):
    return spec.model_copy(update={"recompute": parse_recompute(text)})


def test_twenty_chunks_of_four_layers_cost_one_trace_of_one_and_one_of_two(spec_of):
    composer = Composer(spec_of(), TE)
    assert sorted((c.num_layers, c.pre, c.post) for c in composer.cases()) == [
        (1, False, False), (1, False, True), (1, True, False), (2, False, False),
    ]  # fmt: skip


def test_every_stage_gets_its_chunks_and_the_ends_their_extras(spec_of, by_hand):
    costs = costs_of(spec_of(), by_hand)
    saved = [[chunk.sizes.saved for chunk in stage] for stage in costs]
    assert saved == [[412, 404, 404, 404, 404], [404] * 5, [404] * 5, [404, 404, 404, 404, 454]]


@pytest.mark.parametrize(
    ("text", "saved"),
    [("none", 404), ("mlp", 164), ("full:uniform:1", 68), ("full:uniform:4", 20), ("full:block:1", 320),
     ("full:block:3", 152)],
)  # fmt: skip
def test_a_setting_decides_what_a_chunk_of_four_keeps(spec_of, by_hand, text, saved):
    assert costs_of(with_recompute(spec_of(), text), by_hand)[1][0].sizes.saved == saved


@pytest.mark.parametrize(
    ("text", "layers"), [("none", 0), ("mlp", 4), ("full:uniform:1", 4), ("full:uniform:4", 1), ("full:block:3", 3)]
)
def test_a_chunk_of_four_has_the_hosts_work_around_each_checkpoint(spec_of, by_hand, text, layers):
    work = costs_of(with_recompute(spec_of(), text), by_hand)[1][0].work
    around = sum(count for op, count in work if op.phase == "recompute" and not op.flops)
    assert around == pytest.approx(AROUND * layers)


def test_a_module_that_cuda_graphs_keep_from_recompute_costs_nothing(moe_spec):
    """The graph of the router returns the norm's output, so that megatron-core does not recompute the norm."""
    graphs = {"impl": TE, "scope": ("attn", "moe_router")}
    spec = moe_spec.model_copy(update={"cuda_graph": CudaGraphSpec(**graphs)})
    with_norm, without = (Composer(with_recompute(spec, text), TE).cases() for text in ("layernorm,moe_act", "moe_act"))
    assert with_norm == without
    assert Composer(with_recompute(moe_spec, "layernorm,moe_act"), TE).cases() != without


def test_what_no_trace_shows_is_left_out_beside_a_traced_step(spec_of):
    spec = spec_of(kernels={"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "native"})
    plain, traced = (Composer(spec, TE, as_traced=each) for each in (False, True))
    assert min(plain.loss_scratch, plain.embedding_sums) > 0
    assert (traced.loss_scratch, traced.embedding_sums) == (0, 0)


def test_full_recompute_of_any_number_of_layers_needs_the_same_traces(spec_of):
    keys = [
        {case.key for case in Composer(with_recompute(spec_of(), text), TE).cases()}
        for text in ("full:uniform:1", "full:uniform:4", "full:block:2")
    ]
    assert keys[0] == keys[1] == keys[2]


def test_pipeline_and_data_parallel_sizes_need_no_new_trace(spec_of):
    layouts = ({"pipeline_model_parallel_size": 4}, {"pipeline_model_parallel_size": 8})
    keys = [
        {case.key for case in Composer(spec_of(parallelism={"tensor_model_parallel_size": 4} | sizes), TE).cases()}
        for sizes in layouts
    ]
    assert keys[0] == keys[1]


def test_a_module_that_a_kind_of_layer_lacks_is_not_traced_for_it(moe_spec):
    make = CaseMaker(moe_spec, TE)
    mlp = SelectiveRecompute(modules=("mlp",))
    assert make.layers("moe", mlp, 1) == make.layers("moe", NoRecompute(), 1)
    assert make.layers("dense", mlp, 1) != make.layers("dense", NoRecompute(), 1)


def test_layers_that_go_to_the_host_are_traced_away_beside_those_that_stay(spec_of):
    parallelism = {"tensor_model_parallel_size": 4, "sequence_parallel": True}
    composer = Composer(spec_of(parallelism=parallelism, offload={"cpu_offloading_num_layers": 20}), TE)
    assert sorted((c.num_layers, c.spec.offload.cpu_offloading_num_layers) for c in composer.cases() if not c.post) == [
        (1, 0), (1, 0), (1, 1), (2, 0), (2, 1),
    ]  # fmt: skip


def test_modules_that_go_to_the_host_are_traced_in_three_layers_beside_those_that_stay(spec_of):
    composer = Composer(spec_of(offload={"offload_modules": ("core_attn",)}), TE)
    traced = {(c.num_layers, c.spec.offload.offload_modules) for c in composer.cases() if not c.pre and not c.post}
    assert traced == {(1, ()), (2, ()), *((n, ("core_attn",)) for n in (1, 2, 3))}


def test_settings_of_one_request_share_their_cases_and_cost_what_each_costs_alone(spec_of, by_hand):
    first = Composer(spec_of(), TE)
    for text in ("none", "mlp", "full:uniform:2", "full:block:1"):
        shared = first.with_recompute(parse_recompute(text))
        alone = Composer(with_recompute(spec_of(), text), TE)
        assert [case.key for case in shared.cases()] == [case.key for case in alone.cases()]
        traces = by_hand(alone.cases()).even
        assert shared.chunk_costs(traces) == alone.chunk_costs(traces)
    kept = [case for text in ("none", "full:block:1") for case in first.with_recompute(parse_recompute(text)).cases()]
    assert len({id(case) for case in kept}) == len({case.key for case in kept})


def test_overlapped_experts_keep_their_shared_output_and_hold_gradients_of_two_layers(moe_spec, by_hand):
    """A hidden state has 16 bytes: each layer keeps one more, and 2 x (top-2 + 1) are alive beside its backward pass."""
    changes = {"moe_shared_expert_intermediate_size": 1024, "moe_layer_freq": 1}
    model = moe_spec.model.model_copy(update={"moe": moe_spec.model.moe.model_copy(update=changes)})
    spec = moe_spec.model_copy(update={"model": model})
    kernels = spec.kernels.model_copy(update={"overlap_moe_expert_parallel_comm": True})
    alone, overlapped = (
        costs_of(each, by_hand)[1][0].sizes for each in (spec, spec.model_copy(update={"kernels": kernels}))
    )
    assert (alone.saved, overlapped.saved) == (204, 204 + 2 * 16)
    assert (alone.backward_peak, overlapped.backward_peak) == (20, 20 + 6 * 16)
