"""The prediction follows whether Apex's kernel for weight gradients is installed."""

import pytest

from harness.experiment.software import Software
from harness.predict.assumptions import APEX_MISSING, APEX_THERE
from harness.predict.prediction import predict
from harness.predict.stages import Composer

TE = "transformer_engine"


def predicted(spec, by_hand, apex, implementation=TE):
    traces = by_hand(Composer(spec, implementation).cases()).even
    return predict(spec, implementation, traces, software=Software(transformer_engine="2.11", apex=apex))


def test_without_apex_the_output_layer_keeps_no_dummy_and_allocates_its_weight_gradient(make_spec, by_hand):
    """`tests/real_te/test_weight_gradients.py` finds the same bytes under transformer-engine's own code."""
    spec = make_spec()
    there, missing = (predicted(spec, by_hand, apex).stages for apex in (True, False))
    assert there[:-1] == missing[:-1]
    weight_gradient = 128512 // 4 * 8192 * 2  # the padded vocabulary over TP 4, in bf16
    assert there[-1].overhead - missing[-1].overhead == weight_gradient
    assert missing[-1].peaks["loss and logits"] == there[-1].peaks["loss and logits"]


@pytest.mark.parametrize(("apex", "row"), [(None, APEX_THERE), (False, APEX_MISSING), (True, None)])
def test_a_plan_for_another_machine_says_that_apex_is_assumed(make_spec, by_hand, apex, row):
    found = predicted(make_spec(), by_hand, apex).assumptions
    assert [assumption for assumption in found if assumption in (APEX_THERE, APEX_MISSING)] == ([row] if row else [])
