"""The prediction follows whether Apex's kernel for weight gradients is installed."""

import pytest

from harness.experiment.experiment import PeftSpec
from harness.experiment.software import Software
from harness.predict.assumptions import APEX_MISSING, APEX_THERE
from harness.predict.prediction import predict
from harness.predict.stages import Composer
from tests.conftest import LLAMA3_70B

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


def test_without_apex_the_output_layer_keeps_no_dummy_and_allocates_its_weight_gradient(make_spec, by_hand):
    """`tests/scripted_cuda/test_layers.py` finds the same bytes by torch's allocator (row "without Apex")."""
    assert without_less_with(make_spec, by_hand) == pytest.approx(GATHERED, abs=64)


@pytest.mark.parametrize(
    ("kernels", "more"),
    [
        ({"cross_entropy_fusion_impl": "native"}, -WEIGHT_GRADIENT),  # exponentials in the forward pass are more
        ({"cross_entropy_loss_fusion": False}, GATHERED - LOGITS),
    ],
)
def test_fp32_logits_are_gone_before_that_gradient_is_made(make_spec, by_hand, kernels, more):
    assert without_less_with(make_spec, by_hand, kernels=kernels) == pytest.approx(more, abs=64)


def test_with_adapters_the_output_layer_is_frozen_and_apex_makes_no_difference(make_spec, by_hand):
    made = [predicted(make_spec(task="peft", peft=PeftSpec()), by_hand, apex) for apex in (True, None, False)]
    assert made[0].stages == made[1].stages == made[2].stages
    assert not {APEX_THERE, APEX_MISSING} & {assumption for each in made for assumption in each.assumptions}


def test_under_multi_token_prediction_two_such_gradients_meet(make_spec, by_hand):
    model = LLAMA3_70B | {"mtp_num_layers": 1}
    assert without_less_with(make_spec, by_hand, model=model) == pytest.approx(
        GATHERED + WEIGHT_GRADIENT - LOGITS, abs=64
    )


@pytest.mark.parametrize(("apex", "row"), [(None, APEX_THERE), (False, APEX_MISSING), (True, None)])
def test_a_plan_for_another_machine_says_that_apex_is_assumed(make_spec, by_hand, apex, row):
    found = predicted(make_spec(), by_hand, apex).assumptions
    assert [assumption for assumption in found if assumption in (APEX_THERE, APEX_MISSING)] == ([row] if row else [])
