import pytest

from harness.experiment.experiment import OptimizerSpec
from harness.experiment.optimizer_states import host_state_bytes
from tests.engine import shapes

ON_HOST = {"use_precision_aware_optimizer": True, "optimizer_cpu_offload": True}


@pytest.mark.parametrize(
    ("num_gpus", "optimizer", "expected"),
    [
        (64, ON_HOST, 8 * 4 * (10**9 + 10**9 / 64)),  # copies of whole weights, before the states are there
        (2, ON_HOST, 2 * 16 * 10**9 / 2),
        (2, ON_HOST | {"optimizer_offload_fraction": 0.25}, 2 * 16 * 10**9 / 2 / 4),
        (2, {}, 0),
    ],
)
def test_a_node_holds_the_states_of_its_ranks(num_gpus, optimizer, expected):
    spec = shapes.experiment(shapes.DENSE, num_gpus=num_gpus).model_copy(
        update={"optimizer": OptimizerSpec(**optimizer)}
    )
    assert host_state_bytes(spec, 10**9, 0) == expected
