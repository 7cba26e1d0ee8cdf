"""Single ranks in a process of their own, for what whole runs cannot show on scripted GPUs."""

import pytest

from harness.experiment.software import Software
from harness.launch.environment import this_host
from harness.predict.compose import Parameters
from harness.predict.model_states import model_states
from harness.predict.prediction import predict
from harness.predict.stages import Composer
from harness.predict.tracer import Tracing
from tests.scripted_cuda.lane import MCORE
from tests.scripted_cuda.one_rank import spec_of

pytestmark = [pytest.mark.cuda, pytest.mark.slow]

GIB = 2**30
JOB = {
    "model_recipe_name": "llama3_8b", "gpu": "h100", "compute_dtype": "bf16", "tensor_model_parallel_size": "1",
    "context_parallel_size": "1", "num_layers": "4", "recompute": "none",
}  # fmt: skip


def found(machine, rank, steps, job):
    """Return the answer of one rank of the job."""
    return machine(num_devices=1).one_rank(str(rank), str(steps), *(f"{name}={job[name]}" for name in job))


@pytest.mark.parametrize(
    ("offload", "peak", "host", "copied"),
    [
        # torch rounds every pinned block up to a power of two
        ("offload.cpu_offloading_num_layers=2", 33102397952, 2493644848, 2283929632),
        ("offload.offload_modules=[core_attn,attn_proj] env.NVTE_CPU_OFFLOAD_V1=1", 34883011584, 939524096, 939524096),
    ],
)
def test_offloaded_activations_lie_in_host_memory(machine, offload, peak, host, copied):
    settings = f"kernels.transformer_impl=transformer_engine cuda_graph.impl=none {offload}"
    job = JOB | {"num_gpus": "1", "global_batch_size": "2", "set": settings}
    rank = found(machine, 0, 3, job)
    assert rank["peak_allocated_bytes"][1:] == [peak] * 2
    assert rank["host_peak_bytes"] == pytest.approx(host, abs=8)  # a few flags of either release
    composer = Composer(spec_of(job), "transformer_engine")
    traces = Tracing(this_host(), None).traces(composer.cases(), "transformer_engine")
    ((chunk,),) = composer.chunk_costs(traces.even)
    assert chunk.copied == copied


# Llama 3 70B on 32 GPUs at TP 4 and PP 4: what `plan --optimal --fit_into 56` finds.
PLAN = (
    "plan:3xfull+1xmlp/3xmlp+1xnone/3xmlp+1xnone/1xfull+3xmlp/2xmlp+2xnone;"
    "3xfull+1xmlp/1xmlp+3xnone/1xfull+2xmlp+1xnone/1xmlp+3xnone/1xfull+2xmlp+1xnone;"
    "3xmlp+1xnone/3xmlp+1xnone/3xmlp+1xnone/3xmlp+1xnone/4xnone;"
    "3xmlp+1xnone/3xmlp+1xnone/3xmlp+1xnone/1xfull+3xmlp/4xnone"
)


@pytest.mark.long  # four ranks of 40 s each
def test_every_stage_of_a_plan_by_layer_holds_what_is_predicted_at_full_size(machine):
    settings = "cuda_graph.impl=none kernels.tp_comm_overlap=false parallelism.defer_embedding_wgrad_compute=false"
    job = {
        "model_recipe_name": "llama3_70b", "task": "sft", "gpu": "h100", "compute_dtype": "bf16", "num_gpus": "32",
        "global_batch_size": "32", "recompute": PLAN, "set": settings,
    }  # fmt: skip
    spec = spec_of(job)
    traces = Tracing(this_host(), None).traces(Composer(spec, "transformer_engine").cases(), "transformer_engine")
    software = Software(megatron_core="0.16.1", transformer_engine="2.11.0", apex=False)
    predicted = predict(spec, "transformer_engine", traces.even, software=software)
    for stage in predicted.stages:
        rank = found(machine, stage.pp_rank * 8, 3, job)
        assert max(rank["peak_allocated_bytes"]) == pytest.approx(stage.total, rel=1e-4)


ON_HOST = (
    "kernels.transformer_impl=transformer_engine cuda_graph.impl=none optimizer.use_precision_aware_optimizer=true "
    "optimizer.optimizer_cpu_offload=true ddp.grad_reduce_in_fp32=false model.vocab_size=32000 "
    "model.ffn_hidden_size=4096 model.num_attention_heads=8 model.num_query_groups=8"
)


@pytest.mark.parametrize("num_gpus", [1, 4])
def test_optimizer_states_in_host_memory_leave_the_gpu(machine, num_gpus):
    """Of 99,095,552 parameters in bf16, all or none with states on the host. The first step has no moments yet."""
    sizes = {
        "num_layers": "2",
        "hidden_size": "1024",
        "num_gpus": str(num_gpus),
        "global_batch_size": str(2 * num_gpus),
    }
    peaks, specs = {}, {}
    for fraction in (1.0, 0.0):
        job = JOB | sizes | {"set": f"{ON_HOST} optimizer.optimizer_offload_fraction={fraction}"}
        peaks[fraction], specs[fraction] = found(machine, 0, 3, job)["peak_allocated_bytes"], spec_of(job)
    assert len(set(peaks[1.0])) == 1
    whole = Parameters(dense=99_095_552, stored_bytes=2 * 99_095_552)
    kept = {fraction: model_states(spec, whole).optimizer for fraction, spec in specs.items()}
    assert kept[1.0] == 0
    for step, share in ((0, 1 / 4), (1, 1), (2, 1)):
        assert peaks[0.0][step] - peaks[1.0][step] == pytest.approx(share * kept[0.0], rel=1e-4)


def test_megatron_fsdp_shards_all_but_the_moments_of_transformer_engine(machine):
    """Two processes fail in its `validate_uneven_dtensor`: it reads what the other rank sent. FusedAdam 2.11 asks for whole shapes."""
    settings = (
        "kernels.transformer_impl=local optimizer.use_precision_aware_optimizer=false ddp.use_megatron_fsdp=true "
        "ddp.average_in_collective=false"  # megatron-core 0.19 asks a dense model for its experts' group
    )
    job = JOB | {"num_gpus": "2", "global_batch_size": "4", "set": settings}
    answer = found(machine, 1, 3, job)
    assert answer["after_build_bytes"] == pytest.approx(answer["num_parameters"] * (2 + 2 + 4) / 2, rel=1e-3)
    # 0.16 has three layers whole at the loss
    peak = {"0.16": 42204889600, "0.19": 40896069632}[MCORE]
    assert answer["peak_allocated_bytes"][1:] == [peak] * 2
    spec = spec_of(job)
    traces = Tracing(this_host(), None).traces(Composer(spec, "local").cases(), "local")
    software = Software(megatron_core=answer["versions"]["megatron-core"], transformer_engine="2.11.0")
    low, high = predict(spec, "local", traces.even, software=software).range_bytes
    assert low < peak < high
