"""The host's work around a checkpoint, which no trace shows: states of generators, hooks, a nested backward pass."""

from operator import mul

from harness.experiment.experiment import ExperimentSpec
from harness.experiment.modules import MODULES
from harness.experiment.recompute import FullRecompute, SelectiveRecompute
from harness.predict.compose import Op, Work

# How many simple operations take the host as long. Measured by hand in a rank of Moonlight 16B (TP 2, EP 8) on a
# scripted GPU: megatron-core 0.16 and transformer-engine 2.11 over torch's CUDA build, kernels do nothing. There a
# checkpoint takes 0.21 ms, or 0.39 ms if it discards and restores its output, and `layernorm` makes a micro-batch 12 %
# longer (median of 30), which sets the scale: 12.1 %. The others come out low: `moe_act` 5.9 % (measured 9 %),
# `core_attn` 4.7 % (7 %). The operations that run again explain 1, 0.5 and 2 of these.
PLAIN, DISCARDING = 12, 23
_LAUNCH = Op("recompute", "elementwise", "bf16", 0, 0, 0, None, overlapped=False)


def work_around_checkpoints(layer: ExperimentSpec) -> Work:
    """Return the work for a micro-batch of one layer; ``layer``: a request reduced to layers of its kind."""
    policy, model = layer.recompute, layer.model
    if isinstance(policy, FullRecompute):
        return Work({_LAUNCH: PLAIN})
    if not isinstance(policy, SelectiveRecompute):
        return Work()
    num_norms = 2 if model.mla and model.moe else 1  # modules of their own, not fused into the product behind them
    each = (DISCARDING if MODULES[name].discards_output else PLAIN for name in policy.modules)
    times = (num_norms if name == "layernorm" else 1 for name in policy.modules)
    return Work({_LAUNCH: sum(map(mul, each, times))})
