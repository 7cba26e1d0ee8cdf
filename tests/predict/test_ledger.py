"""The memory of each stage by part, also under FSDP."""

from dataclasses import replace

import pytest

from harness.experiment.recompute import parse_recompute
from harness.predict.compose import Parameters
from harness.predict.ledger import stage_memory
from harness.predict.model_states import gathered_bytes, model_states
from harness.predict.prediction import Constants
from harness.predict.stages import Composer

TE = "transformer_engine"


def stages(spec, by_hand, text="none"):
    spec = spec.model_copy(update={"recompute": parse_recompute(text)})
    composer = Composer(spec, TE)
    costs = composer.chunk_costs(by_hand(composer.cases()).even)
    return [stage_memory(spec, pp_rank, chunks) for pp_rank, chunks in enumerate(costs)]


def parts(stage) -> int:
    return (
        stage.weights + stage.gradients + stage.optimizer + stage.activations + stage.logits + stage.transient
        + stage.overhead
    )  # fmt: skip


# So few tokens that the embedding's backward kernel makes no sums.
SHORT = {"micro_batch_size": 1, "global_batch_size": 32, "seq_length": 2048}


@pytest.mark.parametrize("text", ["none", "mlp", "full:uniform:2", "full:block:1"])
def test_the_parts_of_every_stage_add_up_to_its_peak(spec_of, by_hand, text):
    assert [parts(stage) for stage in stages(spec_of(), by_hand, text)] == [
        stage.total for stage in stages(spec_of(), by_hand, text)
    ]


def test_a_stage_that_runs_ahead_holds_more(spec_of, by_hand):
    spec = spec_of(parallelism={"tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 4}, batch=SHORT)
    held = [stage.activations for stage in stages(spec, by_hand)]
    # 4, 3, 2, 1 micro-batches of 20 layers and their 4 bytes of tokens, 8 of embedding each on the first stage; hidden
    # states of 16 bytes that the loop still holds: a gradient on the first stage, two and an input in the middle
    assert held == [4 * 2012 + 16, 3 * 2004 + 48, 2 * 2004 + 48, 2004 + 16]


def test_the_last_stage_names_its_logits(spec_of, by_hand):
    spec = spec_of(parallelism={"tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 4})
    last = stages(spec, by_hand)[3]
    assert last.logits == 50 + 10  # saved, and the loss's backward pass above a layer's
    assert set(last.peaks) == {"schedule", "optimizer step", "loss and logits"}


def test_a_peak_in_the_optimizer_step_has_no_activations(spec_of, by_hand):
    spec = spec_of(ddp={"grad_reduce_in_fp32": False}, num_gpus=16)
    stage = stages(spec, by_hand, "full:uniform:1")[1]
    assert (stage.peak, stage.activations, stage.transient) == ("optimizer step", 0, 4 * 20_000)


def test_the_optimizer_step_counts_what_backward_passes_left_and_the_temporaries_of_torchs_adam(spec_of, by_hand):
    spec = spec_of(ddp={"grad_reduce_in_fp32": False}, num_gpus=16)
    composer = Composer(spec, TE)
    chunks = composer.chunk_costs(by_hand(composer.cases()).even)[1]
    left = (replace(chunks[0], sizes=replace(chunks[0].sizes, lingering=5000)), *chunks[1:])
    plain, other = stage_memory(spec, 1, chunks), stage_memory(spec, 1, left, adam="torch")
    assert other.peaks["optimizer step"] - plain.peaks["optimizer step"] == 5000 + 4 * 20_000
    assert (other.peak, other.activations, other.transient) == ("optimizer step", 5000, 2 * 4 * 20_000)
    assert parts(other) == other.total


def test_the_embeddings_backward_kernel_makes_sums_for_more_than_3072_tokens(spec_of, by_hand):
    """4,096 tokens over 32,128 rows; torch's allocator on a scripted GPU saw these bytes (results/scripted_gpu)."""
    composer = Composer(spec_of(), TE)
    chunk = composer.chunk_costs(by_hand(composer.cases()).even)[0][0]
    assert chunk.body.backward_peak == pytest.approx((409 + 4096) * 8192 * 4, abs=3000)


def graphed(spec_of, by_hand, scope, **sizes):
    """Stages of a job with graphs over ``scope``, whose layers leave these bytes alive, by part of the layer."""
    spec = spec_of(parallelism={"tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 4},
                   cuda_graph={"impl": "transformer_engine", "scope": scope}, batch=SHORT)  # fmt: skip
    composer = Composer(spec, TE)
    traces = {key: trace.model_copy(update=sizes) for key, trace in by_hand(composer.cases()).even.items()}
    return [stage_memory(spec, pp_rank, chunks) for pp_rank, chunks in enumerate(composer.chunk_costs(traces))]


def test_captured_parts_lie_in_private_pools_and_read_static_inputs(spec_of, by_hand):
    # a part that leaves 46 bytes alive has all of them in its pool, its output included; a static input stands for the
    # hidden state that it reads
    plain, found = graphed(spec_of, by_hand, ("moe_router",)), graphed(spec_of, by_hand, ("mlp",), mlp_bytes=46)
    pools = [4 * 20 * 46, 3 * 20 * 46, 2 * 20 * 46, 20 * 46]
    assert [stage.pool for stage in found] == pools
    assert [before.total - after.total for before, after in zip(plain, found, strict=True)] == pools
    assert [stage.peaks["eager steps"] for stage in found] == [stage.total for stage in plain]
    assert [parts(stage) for stage in found] == [stage.total for stage in found]


def test_parts_outside_of_the_scope_are_not_captured(spec_of, by_hand):
    assert {stage.pool for stage in graphed(spec_of, by_hand, ("moe_router",), mlp_bytes=46, attention_bytes=46)} == {0}
    whole = graphed(spec_of, by_hand, (), mlp_bytes=46, attention_bytes=36)
    assert whole[3].pool == 20 * (46 + 36)


def test_the_capture_holds_pools_and_inputs_and_the_optimizers_copies_of_gradients(spec_of, by_hand):
    last = graphed(spec_of, by_hand, (), mlp_bytes=66, attention_bytes=56)[3]
    states = last.weights + last.gradients + last.optimizer
    static = 20 * (16 + 2048**2)  # with attention goes a mask
    assert last.peaks["graph capture"] == states + last.overhead + last.pool + static + 20  # a layer's backward pass
    assert last.peaks["graph capture"] > last.total


def test_dispatchers_keep_routing_of_their_latest_micro_batch_and_ranks_a_dummy_per_weight(moe_spec, by_hand):
    """Each stage has one dense layer and one with experts; all 4 micro-batches are in flight on the first."""
    spec = moe_spec.model_copy(update={"kernels": moe_spec.kernels.model_copy(update={"moe_permute_fusion": True})})
    composer = Composer(spec, TE)
    ((chunk,), *_) = composer.chunk_costs(by_hand(composer.cases()).even)
    assert chunk.latest == 4096 // 4 * 8 * (2 + 1)  # a bf16 probability and a flag for each token and expert
    assert chunk.shared == 7 + 3 * 4096 * 14336 // 4 * 2  # of the three products of the dense MLP; 7 by hand
    large = {"body": replace(chunk.body, saved=10**9), "sizes": replace(chunk.sizes, saved=10**9)}
    chunk, apart = replace(chunk, **large), replace(chunk, latest=0, **large)
    less = stage_memory(spec, 0, (apart,)).activations - stage_memory(spec, 0, (chunk,)).activations
    assert less == 3 * chunk.latest


def test_a_dispatcher_that_runs_again_keeps_row_maps_too(moe_spec, by_hand):
    kernels = moe_spec.kernels.model_copy(update={"moe_permute_fusion": True})
    spec = moe_spec.model_copy(update={"kernels": kernels, "recompute": parse_recompute("moe")})
    composer = Composer(spec, TE)
    ((chunk,), *_) = composer.chunk_costs(by_hand(composer.cases()).even)
    assert chunk.latest == 4096 // 4 * 8 * (2 + 1 + 8)


def test_what_the_allocator_holds_beside_tensors_is_in_every_peak(spec_of, by_hand):
    composer = Composer(spec_of(), TE)
    stage = stage_memory(composer.spec, 0, composer.chunk_costs(by_hand(composer.cases()).even)[0])
    held = Constants(allocator_bytes=300).added_to(stage)
    assert (held.total, held.overhead) == (stage.total + 300, stage.overhead + 300)
    for before, after in ((stage.peaks, held.peaks), (stage.passes, held.passes)):
        assert after == {name: peak + 300 for name, peak in before.items()} != {}


FSDP = {"use_megatron_fsdp": True, "grad_reduce_in_fp32": False}
# Llama3-70B: 80 layers of 856 million weights each, embedding and output layer of 1,050 million each
LAYER, ENDS = 855_638_016, 2 * 128256 * 8192
ALL = Parameters(dense=80 * LAYER + ENDS, stored_bytes=2 * (80 * LAYER + ENDS))


@pytest.fixture
def whole(spec_of):
    """All of the model on every rank: 32 ranks share the states."""
    return spec_of(parallelism={"tensor_model_parallel_size": 1}, ddp=FSDP)


def test_two_layers_of_weights_three_of_gradients_and_the_ends_are_whole(whole):
    # two layers are more than the 10^9 elements of a communication unit: one is fetched ahead, two may be queued
    assert gathered_bytes(whole, ALL, 2) == pytest.approx((2 * ENDS, 2 * 2 * LAYER, 2 * 3 * LAYER), rel=1e-6)


def test_small_layers_are_fetched_until_half_a_unit_is_in_flight(spec_of):
    model = {"num_layers": 32, "hidden_size": 4096, "ffn_hidden_size": 14336, "num_attention_heads": 32,
             "num_query_groups": 8, "vocab_size": 128256}  # fmt: skip
    layer, ends = 218_112_000, 2 * 128256 * 4096
    spec = spec_of(model=model, parallelism={"tensor_model_parallel_size": 1}, ddp=FSDP)
    parameters = Parameters(dense=32 * layer + ends, stored_bytes=2 * (32 * layer + ends))
    # 3 x 218 M reach 500 M, 4 x 218 M stay below 1,000 M
    expected = 2 * ends, 2 * (1 + 3) * layer, 4 * (1 + 4) * layer
    assert gathered_bytes(spec, parameters, 4) == pytest.approx(expected, rel=1e-6)


def test_at_the_loss_no_layer_is_whole(spec_of, by_hand):
    """A loss that takes more than the layers' weights hides them; one that takes less is hidden by them."""
    short = {"micro_batch_size": 1, "global_batch_size": 32, "seq_length": 2048}
    spec = spec_of(parallelism={"tensor_model_parallel_size": 1}, ddp=FSDP, batch=short)
    composer = Composer(spec, "transformer_engine")
    ((chunk,),) = composer.chunk_costs(by_hand(composer.cases()).even)
    chunk = replace(chunk, parameters=ALL)
    states = model_states(spec, ALL)
    held = {}
    for taken in (0, states.fetched + states.queued + 1000):
        sizes = replace(chunk.sizes, forward_peak=chunk.sizes.forward_peak + taken)
        held[taken] = stage_memory(spec, 0, (replace(chunk, sizes=sizes),))
    small, large = held.values()
    with_loss = large.activations + large.logits + large.transient
    assert with_loss == chunk.sizes.forward_peak + states.fetched + states.queued + 1000 + states.gathered
    assert small.total < large.total < small.total + states.fetched + states.queued + 1000
