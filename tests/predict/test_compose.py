from dataclasses import replace

from harness.predict.compose import (
    Ends,
    Parameters,
    PassSizes,
    Piece,
    Work,
    compose,
    frame_piece,
    layer_piece,
    modules_piece,
    offloaded_piece,
    unit_piece,
)
from harness.records.trace import ChunkTrace, OpCost

NOTHING = Piece(saved=0, forward_over=0, backward_over=0, persistent=0, parameters=Parameters(), work=Work())
KEPT = replace(NOTHING, saved=100, forward_over=10, backward_over=30)
AGAIN = replace(NOTHING, saved=16, forward_over=12, backward_over=140)
LOSS = replace(NOTHING, saved=50, forward_over=5, backward_over=60)


def chunk(saved: int, forward: int, backward: int, persistent: int, num_layers: int) -> ChunkTrace:
    op = OpCost(phase="forward", kind="gemm", dtype="bf16", flops=7 * num_layers, count=num_layers)
    return ChunkTrace(
        saved_bytes=saved, forward_peak_bytes=forward, backward_peak_bytes=backward, persistent_bytes=persistent,
        hidden_bytes=16, num_parameters_dense=3 * num_layers, num_parameters_expert=num_layers,
        parameter_bytes=8 * num_layers, ops=(op,),
    )  # fmt: skip


ONE, TWO = chunk(104, 114, 30, 8, 1), chunk(204, 214, 30, 9, 2)


def sizes(saved: int, forward_peak: int, backward_peak: int) -> PassSizes:
    """Of a chunk that leaves nothing behind."""
    return PassSizes(saved, forward_peak, backward_peak, forward_again=forward_peak, backward_again=backward_peak)


def test_a_layer_is_the_difference_of_two_chunks_and_three_layers_are_three_times_one():
    layer = layer_piece(ONE, TWO)
    assert (layer.saved, layer.forward_over, layer.backward_over, layer.persistent) == (100, 10, 30, 1)
    assert layer.parameters == Parameters(dense=3, expert=1, stored_bytes=8)
    assert layer.work.flops() == 7
    cost = compose(frame_piece(ONE, layer), [layer] * 3, Ends(), hidden_bytes=16)
    assert cost.sizes == sizes(saved=304, forward_peak=314, backward_peak=30)
    assert (cost.persistent, cost.shared, cost.work.flops(), cost.parameters.dense) == (3, 7, 21, 9)


def test_recomputed_layers_behind_kept_ones_matter_only_once_the_kept_ones_are_gone():
    cost = compose(NOTHING, [AGAIN, KEPT], Ends(), hidden_bytes=16)
    assert cost.sizes.backward_peak == 140 - 100 + 16  # and the gradient that the chunk received
    assert compose(NOTHING, [AGAIN], Ends(), hidden_bytes=16).sizes.backward_peak == 140
    assert compose(NOTHING, [], Ends(), hidden_bytes=16).sizes == sizes(0, 0, 0)


def test_the_loss_comes_on_top_and_goes_first():
    cost = compose(NOTHING, [AGAIN], Ends(last=LOSS), hidden_bytes=16)
    assert cost.sizes == sizes(saved=66, forward_peak=71, backward_peak=140 - 50)
    assert cost.body == sizes(saved=16, forward_peak=28, backward_peak=140)
    assert cost.has_loss


def test_an_embedding_runs_backward_when_all_other_layers_are_gone():
    embedding = replace(NOTHING, saved=8, forward_over=1, backward_over=200)
    cost = compose(NOTHING, [KEPT, KEPT, KEPT], Ends(first=embedding), hidden_bytes=16)
    assert cost.sizes.saved == 308
    assert cost.sizes.backward_peak == 30  # 200 less the two layers behind the first
    assert compose(NOTHING, [KEPT], Ends(first=embedding), hidden_bytes=16).sizes.backward_peak == 200


def test_a_unit_of_three_keeps_one_input_and_holds_two_layers_while_it_recomputes():
    unit = unit_piece([AGAIN] * 3, [KEPT] * 3, input_bytes=16)
    assert (unit.saved, unit.forward_over, unit.backward_over) == (16, 12 + 16, 140 + 200)


DISPATCHER = replace(AGAIN, lingering=32, runs_again=True)


def test_a_gradient_counts_once_where_a_leftover_is_the_next_layer_s_own():
    # the layer before runs while 16 bytes less are kept, 32 were left and the chunk's gradient of 16 is held: 32 more,
    # of which the trace shows 6
    one = chunk(20, 32, 140, 8, 1)
    two = chunk(36, 48, 146, 8, 2).model_copy(update={"lingering_bytes": 32})
    assert layer_piece(one, two).shared_behind == 26


def test_leftovers_of_layers_behind_count_in_a_backward_pass_and_go_one_by_one_in_the_next_pass():
    cost = compose(NOTHING, [DISPATCHER] * 3, Ends(), hidden_bytes=16)
    assert cost.sizes.backward_peak == 140 + 2 * (32 - 16) + 16
    assert (cost.sizes.lingering, cost.sizes.replaced) == (96, 96)
    assert cost.sizes.forward_peak == 3 * 16 + 12
    assert cost.sizes.forward_again == max(16 + 12 + 64, 32 + 12 + 32, 48 + 12)
    assert cost.sizes.backward_again == 140 + 2 * 32  # the first layer that runs backward has none behind it
    # Those of a layer that is kept are not replaced by a backward pass.
    kept = compose(NOTHING, [replace(KEPT, lingering=32)] * 2, Ends(), hidden_bytes=16)
    assert (kept.sizes.lingering, kept.sizes.replaced, kept.sizes.backward_again) == (64, 0, 30)


GOES = replace(KEPT, offloadable=90)


def test_offloaded_layers_leave_only_as_many_on_the_device_as_are_not_offloaded():
    # four layers of 100 bytes, two of them away once the forward pass is over, 10 bytes of each stay
    cost = compose(NOTHING, [GOES] * 4, Ends(), hidden_bytes=16, window=2)
    assert cost.sizes.saved == 4 * 10 + 2 * 90
    assert cost.sizes.forward_peak == cost.sizes.saved + 10
    # backward: the layer that leaves makes room for the one that comes back, beside the chunk's gradient
    assert cost.sizes.backward_peak == 30 - 100 + 90 + 16
    # with leftovers: they share the device while a later pass begins
    cost = compose(NOTHING, [replace(GOES, lingering=32)] * 4, Ends(), hidden_bytes=16, window=2)
    assert cost.sizes.forward_peak == 400 - 180 + 10
    assert cost.sizes.forward_again == max(100 + 10 + 96, 200 + 10 + 64, 300 - 90 + 10 + 32, 230)


def test_what_an_offloaded_layer_keeps_is_measured_with_all_layers_away():
    one, two = chunk(14, 114, 150, 8, 1), chunk(24, 124, 150, 9, 2)
    piece = offloaded_piece(layer_piece(ONE, TWO), one, two)
    assert (piece.saved, piece.offloadable) == (100, 90)
    assert piece.backward_over == 150 - 90


def test_modules_are_away_in_all_layers_but_the_last_one_of_the_chunk_that_runs_backward_next():
    one = chunk(104, 114, 30, 8, 1).model_copy(update={"leaving_over_bytes": 25})
    two, three = chunk(149, 159, 35, 9, 2), chunk(189, 199, 36, 10, 3)
    piece = modules_piece(layer_piece(ONE, TWO), 100, one, two, three)
    assert (piece.saved, piece.awaited, piece.received, piece.backward_over) == (40, 60, 5, 36)
    assert piece.leaving == 25 - 10
    cost = compose(NOTHING, [piece] * 4, Ends(), hidden_bytes=16)
    assert cost.sizes.saved == 4 * 40  # of every micro-batch in flight
    assert cost.sizes.forward_peak == 3 * 40 + 100 + 10
    assert cost.sizes.backward_peak == 60 + 36
