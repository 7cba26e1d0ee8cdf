"""Defects of megatron-core that rules guard against, shown on the installed release: a test that fails frees a rule."""

import pytest
import torch

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("ignore")]  # torch and megatron warn on import


def test_a_parameter_that_a_checkpoint_returns_becomes_the_checkpoints_own_output():
    """Rule K28: `mlp` recompute returns (output, bias); from then on the bias's gradient re-runs the checkpoint."""
    from harness.engine import cpu_backend

    cpu_backend.block_transformer_engine()
    from megatron.core.tensor_parallel.random import CheckpointFunction

    bias = torch.nn.Parameter(torch.ones(3))

    class Region(CheckpointFunction):
        """The checkpoint without its RNG bookkeeping, which needs a process group."""

        @staticmethod
        def forward(ctx, run_function, *args):
            with torch.no_grad():
                return run_function(*args)

    assert bias.is_leaf
    Region.apply(lambda x: (x * 2, bias), torch.ones(3, requires_grad=True))
    assert not bias.is_leaf
