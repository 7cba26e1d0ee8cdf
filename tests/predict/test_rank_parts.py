"""Requests of a rank: gradients of the loss and of weights with and without Apex, and what transformer-engine quantises."""

import pytest

from harness.experiment.experiment import PeftSpec
from harness.experiment.software import Software
from harness.predict.assumptions import APEX_MISSING, APEX_THERE
from harness.predict.prediction import predict
from harness.predict.rank_events import _Memory, _weights
from harness.predict.rank_parts import ChunkParts, MissingEventsError, Passes, Requests, Unit, _with_loss
from harness.predict.stages import Composer
from harness.records.events import OWN, Part, freed
from tests.conftest import LLAMA3_70B


def _loss(forward: tuple[int, ...], backward: tuple[int, ...], *asked: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    unit = Unit((Passes.of(Part(forward=forward, backward=backward)),))
    (passes,) = _with_loss(unit, *asked).passes
    return passes.forward, passes.backward


def test_the_first_of_two_own_gradients_waits_for_the_second():
    """Two uses of an output layer under MTP: hidden gradients of 56 and 28 MiB, an own gradient of 892, logits of 510."""
    own, mib = 892 << 20, 1 << 20
    forward = (510 * mib, 510 * mib)
    backward = (56 * mib, 28 * mib, freed(OWN, 2), freed(OWN, 1), 56 * mib, 28 * mib, freed(OWN, 4), freed(OWN, 0), own, freed(OWN, 6))  # fmt: skip
    found = _loss(forward, backward, own, 510 * mib, 0, 2)
    assert found == (forward, (56 * mib, 28 * mib, own, freed(OWN, 2), freed(OWN, 1),
                               56 * mib, 28 * mib, own, freed(OWN, 5), freed(OWN, 0), freed(OWN, 7), freed(OWN, 4)))  # fmt: skip


def test_an_own_gradient_has_the_gradient_of_the_logits_beside_it_and_no_fp32_logits():
    """As a scripted rank of Qwen3-Next asks (tests/scripted_cuda/one_rank.py); exponentials go beside fp32 logits."""
    mib = 1 << 20
    logits, wide, own = 2374 * mib, 4748 * mib, 593 * mib
    backward = (logits, wide, freed(OWN, 3), freed(OWN, 1), 64 * mib, freed(OWN, 2))
    found = _loss((logits, wide, freed(OWN, 0)), backward, own, logits, wide, 1)
    assert found == (
        (logits, wide, wide, freed(OWN, 2), freed(OWN, 0)),
        (logits, wide, freed(OWN, 4), freed(OWN, 1), 64 * mib, own, freed(OWN, 3), freed(OWN, 6)),
    )


def test_where_the_gradient_of_the_logits_is_not_known_nothing_is_composed():
    with pytest.raises(MissingEventsError, match="gradient of the logits"):
        _loss((8 << 20,), (4 << 20, freed(OWN, 1)), 16 << 20, 8 << 20, 0, 1)


def test_a_dummy_gradient_is_made_once_for_each_shape():
    end = Unit((), stay=(7, 7, 9, 11))
    parts = ChunkParts((Unit((), stay=(9,)), end), (), (), (), has_loss=True)
    assert parts.without((7, 9, 13)).units == (parts.units[0], Unit((), stay=(7, 11)))


def test_what_is_quantised_expert_by_expert_is_one_request_for_each():
    size, mib = 4 * (8 << 20) + 16, 1 << 20
    unit = Unit((), label=("layers",), split=frozenset({size}), num_experts=4)
    memory = _Memory(None)
    memory.enter(unit, 0)
    own = Requests()
    memory.run((3 * mib, size, freed(OWN, 1)), own, Requests(), Requests())
    events = memory.steps().events
    assert [n for _, n, _ in events] == [3 * mib, *[size // 4] * 4, None, None, None, None]
    assert [*memory.alive.values()] == [3 * mib]


def test_experts_are_quantised_once_all_of_one_size_are_there():
    whole, memory = 4 << 20, _Memory(None)
    moved = _weights([whole + 8, whole + 8, 3 << 20], memory, grouped=True)
    asked = [n and n >> 20 for _, n, _ in memory.steps().events]
    assert asked == [4, 4, 2, 2, 2, 2, None, None, 3]
    assert [memory.alive[key] >> 20 for key in moved] == [2, 2, 3]
    single = _Memory(None)
    _weights([whole + 8, whole + 8], single, grouped=False)
    assert [n and n >> 20 for _, n, _ in single.steps().events] == [4, 2, 2, None, 4, 2, 2, None]


TE = "transformer_engine"
WEIGHT_GRADIENT = 128512 // 4 * 8192 * 2  # the padded vocabulary over TP 4, in bf16
LOGITS = 4096 * 128512 // 4 * 2
GATHERED = 4096 * 8192 * 2 * 5 // 4  # hidden states of all ranks, and the gradient of this rank's


def predicted(spec, by_hand, apex, implementation=TE):
    traces = by_hand(Composer(spec, implementation).cases()).even
    return predict(spec, implementation, traces, software=Software(transformer_engine="2.11", apex=apex))


def without_less_with(make_spec, by_hand, **changes):
    """The peak beside the loss, without Apex less with it; the traces by hand have next to nothing there."""
    there, missing = (predicted(make_spec(**changes), by_hand, apex).stages for apex in (True, False))
    assert there[:-1] == missing[:-1]
    assert there[-1].overhead - missing[-1].overhead == WEIGHT_GRADIENT
    return missing[-1].peaks["loss and logits"] - there[-1].peaks["loss and logits"]


@pytest.mark.parametrize(
    ("changes", "more"),
    [
        ({}, GATHERED),  # tests/scripted_cuda/test_layers.py finds the same by torch's allocator (row "without Apex")
        ({"model": LLAMA3_70B | {"mtp_num_layers": 1}}, GATHERED + WEIGHT_GRADIENT - LOGITS),  # two such gradients meet
        # FP32 logits are gone before that gradient is made; exponentials in the forward pass are more.
        ({"kernels": {"cross_entropy_fusion_impl": "native"}}, -WEIGHT_GRADIENT),
        ({"kernels": {"cross_entropy_loss_fusion": False}}, GATHERED - LOGITS),
    ],
)
def test_without_apex_the_output_layer_keeps_no_dummy_and_allocates_its_weight_gradient(
    make_spec, by_hand, changes, more
):
    assert without_less_with(make_spec, by_hand, **changes) == pytest.approx(more, abs=64)


def test_with_adapters_the_output_layer_is_frozen_and_apex_makes_no_difference(make_spec, by_hand):
    made = [predicted(make_spec(task="peft", peft=PeftSpec()), by_hand, apex) for apex in (True, None, False)]
    assert made[0].stages == made[1].stages == made[2].stages
    assert not {APEX_THERE, APEX_MISSING} & {assumption for each in made for assumption in each.assumptions}


@pytest.mark.parametrize(("apex", "row"), [(None, APEX_THERE), (False, APEX_MISSING), (True, None)])
def test_a_plan_for_another_machine_says_that_apex_is_assumed(make_spec, by_hand, apex, row):
    found = predicted(make_spec(), by_hand, apex).assumptions
    assert [assumption for assumption in found if assumption in (APEX_THERE, APEX_MISSING)] == ([row] if row else [])
