"""The published jobs of Llama 3 70B on 32 H100 as logs in the words of Megatron-Bridge, with the table's figures."""

import math
from dataclasses import dataclass

from harness.foreign.golden import LOSS, MEMORY, THROUGHPUT, TIME_MS
from tests.imports.logs import memory_gb, step_time

NUM_RANKS, GLOBAL_BATCH, STEPS = 32, 32, 20
# FLOPs of one step of all GPUs: what the published TFLOP/s, and those of this program, are counted from.
MODEL_FLOPS = 56_771_083_876_958_208


@dataclass(frozen=True)
class Job:
    """A row of the table. ``gigabytes``: peak allocated, decimal. ``is_oom``: it ended after its second iteration."""

    label: str
    tflops: float
    gigabytes: float
    is_oom: bool = False
    tp: int = 4
    pp: int = 4

    @property
    def seconds(self):
        return MODEL_FLOPS / (self.tflops * 1e12 * NUM_RANKS)


EXPANDABLE = "env.PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
TABLE = (
    Job("core_attn", 704.0, 58.8, is_oom=True),
    Job("mlp", 593.6, 55.6),
    Job("mlp,core_attn", 586.8, 55.6),
    Job("core_attn,layernorm", 702.0, 59.6, is_oom=True),
    Job("core_attn pp=8", 668.0, 53.2, pp=8),
    Job("core_attn tp=8", 508.7, 50.2, tp=8),
    Job(f"core_attn {EXPANDABLE}", 704.0, 59.0),
    Job("core_attn vp=10", 705.0, 60.2),
)


def iteration(number, seconds, total=STEPS, loss=11.5, batch=GLOBAL_BATCH):
    return (
        f" [2026-08-01 10:00:01] iteration {number:8d}/{total:8d} | consumed samples: {number * batch:12d} |"
        f" elapsed time per iteration (ms): {seconds * 1000:.1f} | learning rate: 3.000000E-05 |"
        f" global batch size: {batch:5d} | lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: 1.234 |"
        " number of skipped iterations:   0 | number of nan iterations:   0 |"
    )


def out_of_memory(gigabytes):
    gib = gigabytes * 1e9 / 2**30
    return (
        "[rank0]: Traceback (most recent call last):\n"
        '[rank0]:   File "/opt/megatron-lm/megatron/core/pipeline_parallel/schedules.py", line 440, in backward_step\n'
        "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 896.00 MiB. GPU 0 has a total capacity of "
        "79.11 GiB of which 512.00 MiB is free. Process 77 has 78.60 GiB memory in use. Of the allocated memory "
        f"{gib:.2f} GiB is allocated by PyTorch, and 18.20 GiB is reserved by PyTorch but unallocated."
    )


def job_log(job):
    """What the ranks of a job print: rank 0, the last one, and one of every tensor- and pipeline-parallel place."""
    lines = []
    for number in range(1, (2 if job.is_oom else STEPS) + 1):
        lines += [step_time(job.seconds, job.tflops), iteration(number, job.seconds)]
        lines += [line for line in _memory(job, number) if number <= 2]
    if job.is_oom:
        lines.append(out_of_memory(job.gigabytes))
    return "\n".join(lines) + "\n"


def _memory(job, number):
    copies = NUM_RANKS // (job.tp * job.pp)
    for stage in range(job.pp):
        for place in range(job.tp):
            rank = stage * job.tp * copies + place
            peak = job.gigabytes - 2.0 * stage - 0.01 * place
            yield memory_gb(rank, number, max_allocated=round(peak, 3), max_reserved=round(peak + 4, 3))


MEGATRON_LM = """--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention
--num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192 --micro-batch-size 1 --global-batch-size 128
--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel --bf16 --swiglu --normalization RMSNorm
--disable-bias-linear --untie-embeddings-and-output-weights --position-embedding-type rope --rotary-base 500000
--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --attention-dropout 0 --hidden-dropout 0
--train-iters 100 --lr 1e-4 --mock-data --tokenizer-type NullTokenizer --vocab-size 128256 --recompute-granularity full
--recompute-method uniform --recompute-num-layers 1 --use-mcore-models""".replace("\n", " ")
"""Arguments of Megatron-LM for a model of the size of Llama 3 8B on 16 GPUs."""


def bridge_values(log):
    """The values of a log as golden values of Megatron-Bridge, as its evaluator writes them."""
    steps = {
        str(row.number - 1): {
            name: value
            for name, value in ((LOSS, row.loss), (TIME_MS, row.step_time_s and row.step_time_s * 1000),
                                (THROUGHPUT, row.tflops_per_gpu))
            if value is not None and math.isfinite(value)
        }
        for row in log.iterations
    }  # fmt: skip
    found = ((key, log.worst(counter, as_in_bridge=True)) for key, counter in MEMORY.items())
    return steps | {key: worst.value / 1e9 for key, worst in found if worst}
