"""Traps and defects of megatron-core: the configuration, the type or a rule closes them."""

import pytest
import torch
from pydantic import ValidationError

from harness.experiment.recompute import FullRecompute, SelectiveRecompute, parse_recompute
from tests.engine import shapes
from tests.engine.conftest import answer_of

pytestmark = pytest.mark.filterwarnings("ignore")  # torch and megatron warn on import
INTERLEAVED = {"num_gpus": 2, "pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2}
PIPELINE = {"num_gpus": 2, "pipeline_model_parallel_size": 2}


@pytest.mark.train
@pytest.mark.parametrize("gpu", ["cpu", "h100"])
@pytest.mark.parametrize(
    ("layout", "overlaps"),
    [(INTERLEAVED, True), (PIPELINE | {"pipeline_model_parallel_layout": "Et|t|t|tL"}, True), (PIPELINE, False)],
)
def test_interleaving_never_uses_batched_messages_and_other_pipelines_always_do(engine, gpu, layout, overlaps):
    """Batched p2p pairs messages of model chunks wrongly on gloo; the 1F1B schedule refuses overlapped p2p.

    megatron-core derives the number of chunks from a layout, too; who only looks at VP sends batched messages.
    """
    config = engine.transformer_config(shapes.experiment(shapes.DENSE, **layout).model_copy(update={"gpu": gpu}))
    assert (config.overlap_p2p_comm, config.batch_p2p_comm) == (overlaps, not overlaps)
    assert (config.virtual_pipeline_model_parallel_size == 2) is overlaps


@pytest.mark.train
def test_outputs_in_flight_are_not_freed_on_cpu(engine):
    """gloo sends asynchronously from the tensor that deallocation would empty; NCCL's streams keep it alive."""
    spec = shapes.experiment(shapes.DENSE, **INTERLEAVED)
    assert engine.transformer_config(spec).deallocate_pipeline_outputs is False
    assert engine.transformer_config(spec.model_copy(update={"gpu": "h100"})).deallocate_pipeline_outputs is True
    assert engine.transformer_config(shapes.experiment(shapes.DENSE, **PIPELINE)).deallocate_pipeline_outputs is True
    kept = shapes.experiment(shapes.DENSE, **PIPELINE, deallocate_pipeline_outputs=False)
    assert engine.transformer_config(kept).deallocate_pipeline_outputs is False


@pytest.mark.parametrize("method", ["uniform", "block"])
@pytest.mark.parametrize("num_layers", [0, -1, None])
def test_full_recompute_of_no_layers_does_not_construct(method, num_layers):
    """uniform with 0 layers never ends its loop over layers."""
    with pytest.raises(ValidationError, match="num_layers"):
        FullRecompute(method=method, num_layers=num_layers)
    with pytest.raises(ValueError, match="full:uniform:N"):
        parse_recompute(f"full:{method}:{num_layers}")


def test_selective_recompute_of_nothing_or_of_layers_does_not_construct():
    """To megatron-core an empty list recomputes nothing, silently, and no list at all means core_attn.

    It refuses recompute_num_layers with selective recompute, long after the GPUs were taken.
    """
    with pytest.raises(ValidationError, match="at least 1 item"):
        SelectiveRecompute(modules=())
    with pytest.raises(ValueError, match="empty"):
        parse_recompute("")
    with pytest.raises(ValidationError, match="num_layers"):
        SelectiveRecompute.model_validate({"modules": ("mlp",), "num_layers": 2})


@pytest.mark.train
def test_the_reported_loss_is_not_divided_by_the_number_of_micro_batches():
    """The schedule divides the loss in place; a report that shares its memory would shrink with it."""
    import torch

    from harness.engine.training import _loss

    loss, report = _loss(torch.ones(4), torch.full((4,), 3.0))
    loss /= 8
    assert float(report["lm loss"]) == 3.0


@pytest.mark.train
def test_streams_without_cuda_are_of_a_type_that_annotations_can_name():
    """megatron-core 0.20 evaluates ``torch.cuda.Stream | None`` when a module is imported, maybe after the adaptations."""
    program = """
import torch
from harness.engine.trace import prepare
prepare(transformer_engine=True)
assert torch.cuda.Stream | None
assert isinstance(torch.cuda.current_stream(), torch.cuda.Stream) and isinstance(torch.cuda.Stream(priority=-1), torch.cuda.Stream)
"""
    answer_of("-c", program)


@pytest.mark.train
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
