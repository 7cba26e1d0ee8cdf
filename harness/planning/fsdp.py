"""Whole weights and gradients that Megatron-FSDP gathers beside its shards, by megatron-core's own arithmetic.

The rules are those of 0.16.1 `megatron_fsdp.py` and `param_and_grad_buffer.py` under ``optim_grads_params``: a unit is a
transformer layer. Its weights are whole while it runs, and those of the next units are fetched until half the
communication unit of at least 10^9 elements is in flight. Reduced gradients are let go only once more than that unit is
queued. Weights outside of layers (embedding, output layer, last norm) are never cut again within a step.
"""

from math import ceil

from harness.planning.pieces import Parameters
from harness.spec.experiment import ExperimentSpec

_SMALLEST_UNIT = 1_000_000_000


def gathered_bytes(spec: ExperimentSpec, parameters: Parameters, gradient_bytes: int) -> int:
    """Most bytes of whole weights and gradients on a rank whose unsharded stage holds ``parameters``.

    ``gradient_bytes``: of one element of a gradient. The queue of gradients is full late in the backward pass only, so
    this is an upper bound where activations matter more.
    """
    total = parameters.dense + parameters.expert
    num_layers = max(1, spec.model.num_layers // spec.parallelism.pipeline_model_parallel_size)
    outside = min(total, _outside_of_layers(spec))
    layer = (total - outside) / num_layers
    if not layer:
        return parameters.stored_bytes
    communication_unit = max(_SMALLEST_UNIT, 2 * layer)
    whole_layers = min(num_layers, 1 + ceil(communication_unit / 2 / layer))
    queued_layers = min(num_layers, 1 + int(communication_unit // layer))
    weight_bytes = parameters.stored_bytes / total
    return round(weight_bytes * (outside + whole_layers * layer) + gradient_bytes * queued_layers * layer)


def _outside_of_layers(spec: ExperimentSpec) -> int:
    """Elements of embedding and output layer on one rank that has both; where a stage has one, of that."""
    model, tp = spec.model, spec.parallelism.tensor_model_parallel_size
    one = model.padded_vocab_size(tp) // tp * model.hidden_size
    both = spec.parallelism.pipeline_model_parallel_size == 1 and not model.share_embeddings_and_output_weights
    return 2 * one if both else one
