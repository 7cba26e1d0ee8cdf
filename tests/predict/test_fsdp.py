from dataclasses import replace

import pytest

from harness.predict.compose import Parameters
from harness.predict.ledger import stage_memory
from harness.predict.model_states import gathered_bytes, model_states
from harness.predict.stages import Composer

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
