"""Memory of weight gradients that wait for the pipeline's flush (`defer_embedding_wgrad_compute`)."""

import pytest

from harness.experiment.experiment import ExperimentSpec
from harness.predict.ledger import deferred_bytes
from harness.predict.prediction import predict
from harness.predict.schedule import instants, schedule_of
from harness.predict.stages import Composer

# Megatron-LM's functional test gpt3_mcore_te_tp2_pp2_defer_embedding_wgrad_compute: the highest `mem-max-allocated-bytes`
# of the last rank, on A100, of the files golden_values_dev_dgx_a100.json and golden_values_lts_dgx_a100.json; and those of
# gpt3_mcore_te_tp2_pp2_ddp_average_in_collective, the same job without the deferral.
MEASURED_BYTES, WITHOUT_BYTES = (2_340_560_384, 2_338_462_720), (1_902_255_616, 1_900_157_952)
DEFERRED = {"defer_embedding_wgrad_compute": True, "wgrad_deferral_limit": 2}


def measured_run(**deferral) -> ExperimentSpec:
    """The arguments of that test."""
    return ExperimentSpec(
        recipe="gpt", family="gpt", gpu="a100", num_gpus=8, gpus_per_node=8, compute_dtype="bf16",
        model={
            "num_layers": 12, "hidden_size": 512, "ffn_hidden_size": 2048, "num_attention_heads": 8, "vocab_size": 50257,
            "share_embeddings_and_output_weights": True, "gated_linear_unit": False, "activation_func": "gelu",
            "add_bias_linear": True, "normalization": "LayerNorm", "position_embedding_type": "learned_absolute",
            "attention_dropout": 0.1, "hidden_dropout": 0.1,
        },
        parallelism={"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2, **deferral},
        batch={"micro_batch_size": 4, "global_batch_size": 32, "seq_length": 1024},
        optimizer={"use_distributed_optimizer": False}, ddp={"grad_reduce_in_fp32": True},
        kernels={"transformer_impl": "transformer_engine", "attention_backend": "unfused",
                 "cross_entropy_loss_fusion": False},
        env={"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
    )  # fmt: skip


@pytest.mark.train
@pytest.mark.slow
def test_the_measured_peak_of_the_last_stage_is_predicted_with_what_waits_and_not_without_it(tracing):
    """These runs freed the output layer's weight gradient. megatron-core keeps it since August 2025, so the prediction contains it."""
    spec, implementation = measured_run(**DEFERRED), "transformer_engine"
    composer = Composer(spec, implementation)
    traces = tracing.traces(composer.cases(), implementation).even
    with_it, without = (predict(asked, implementation, traces).stages[-1].total for asked in (spec, measured_run()))
    weight_gradient_bytes = 50432 // 2 * 512 * 2  # the padded vocabulary over TP 2, in BF16
    for measured, measured_without in zip(MEASURED_BYTES, WITHOUT_BYTES, strict=True):
        assert with_it - weight_gradient_bytes == pytest.approx(measured, rel=0.004)
        assert with_it - without == pytest.approx(measured - measured_without, abs=2048)


def test_a_micro_batch_waits_with_its_logits_gradient_and_the_output_layers_input_and_the_stages_input_and_gradient():
    tokens, vocab = 4 * 1024, 50432  # padded to 128 x TP
    assert deferred_bytes(measured_run(**DEFERRED)) == 2 * (tokens * vocab // 2 + 3 * tokens * 512)


@pytest.mark.parametrize(("limit", "most"), [(2, 2), (0, 4), (22, 4)])
def test_at_most_the_limit_of_micro_batches_wait_and_zero_means_all(limit, most):
    spec = measured_run(defer_embedding_wgrad_compute=True, wgrad_deferral_limit=limit)
    first, last = (schedule_of(spec, pp_rank) for pp_rank in (0, 1))
    assert (first.num_deferred, last.num_deferred) == (0, most)
    waiting = [instant.deferred for instant in instants(last)]
    assert waiting == sorted(waiting)
    assert max(waiting) == min(most, 3)  # the last micro-batch's own gradient belongs to its backward pass


def test_nothing_waits_unless_asked_for():
    assert schedule_of(measured_run(wgrad_deferral_limit=2), 1).num_deferred == 0
