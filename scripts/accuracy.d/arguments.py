"""Converts arguments of Megatron-LM's launcher to an ExperimentSpec, or says why that is impossible."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import sections
from pydantic import ValidationError
from sections import InexpressibleError

from harness.experiment.experiment import ExperimentSpec
from harness.experiment.gpu import GPUS

Row = Mapping[str, Any]

# Features that no field of a spec expresses, by the argument that requests them.
INEXPRESSIBLE = {
    "optimizer": "an optimizer other than Adam",
    "export-te-mcore-model": "distillation",
    "outer-dp-sharding-strategy": "hybrid sharding",
    "no-masked-softmax-fusion": "megatron's own attention without its fused softmax",
}


# Arguments that change neither the memory of a step nor the time that is compared: schedules, seeds, files, logs, figures of
# losses. What is neither here nor read below leaves its row out by name.
IRRELEVANT = frozenset({
    "adam-beta1", "adam-beta2", "async-save", "async-strategy", "ckpt-assume-constant-structure", "ckpt-format", "ckpt-fully-parallel-load", "clip-grad", "data-cache-path", "data-path",
    "dist-ckpt-strictness", "distributed-backend", "distributed-timeout-minutes", "eval-interval", "eval-iters",
    "exit-duration-in-mins", "exit-interval", "init-method-std", "load", "log-interval", "log-memory-to-tensorboard",
    "log-num-zeros-in-grad", "log-params-norm", "log-throughput", "log-timers-to-tensorboard",
    "log-validation-ppl-to-tensorboard", "logging-level", "lr", "lr-decay-iters", "lr-decay-style", "lr-warmup-fraction",
    "manual-gc", "manual-gc-interval", "merge-file", "min-lr", "save", "save-interval", "split", "tensorboard-dir",
    "timing-log-level", "train-iters", "use-checkpoint-opt_param-scheduler", "use-persistent-ckpt-worker", "vocab-file", "weight-decay",
    "no-check-for-nan-in-loss-and-grad", "norm-epsilon", "rotary-base", "rotary-scaling-factor", "mscale", "mscale-all-dim",
    "mtp-loss-scaling-factor", "moe-router-topk-scaling-factor", "moe-router-bias-update-rate", "cuda-graph-warmup-steps",
    "calculate-per-token-loss", "ddp-average-in-collective", "te-rng-tracker", "use-mcore-models", "use-tp-pp-dp-mapping",
    "muon-extra-scale-factor", "muon-momentum", "muon-scale-mode",
})  # fmt: skip
# Arguments whose effect on memory is known and is what every row that was compared has: fusions of small kernels, positions up
# to the sequence, scores in fp32 (which unfused attention always has here), kernels that are deterministic.
TAKEN_FOR_GRANTED = frozenset({
    "apply-query-key-layer-scaling", "attention-softmax-in-fp32", "deterministic-mode", "max-position-embeddings",
    "moe-router-fusion", "no-bias-gelu-fusion", "no-persist-layer-norm", "no-rope-fusion", "no-use-layer-wise-param-layout",
    "tp-comm-overlap-cfg",
})  # fmt: skip


class Watched(dict[str, Any]):
    """Arguments that remember which of them were read."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value as a dict does, and note that it was read."""
        self.read.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def unread(self) -> list[str]:
        """Return the set arguments that were not read and are not known to be harmless."""
        known = self.read | IRRELEVANT | TAKEN_FOR_GRANTED
        return sorted(name for name, value in self.items() if name not in known and value not in (None, False))


# First day of the stacks that replaced older ones, by the days on which their traces first appear in the goldens: the LTS
# image with a flash-attn that is deterministic, the current image whose torch has Blackwell's workspace.
SECOND_LTS_IMAGE = "2025-11-01"
SECOND_DEV_IMAGE = "2025-06-01"
TORCH_KNOWS_BLACKWELL = "2026-05-01"
_WORKSPACE_BEFORE = {"CUBLAS_WORKSPACE_CONFIG": ":4096:2:16:8"}


@dataclass(frozen=True)
class Likeness:
    """A setting that a spec cannot express, and the setting predicted instead, because their memory hardly differs."""

    text: str
    applies: Callable[[Row], bool]


def _asked(name: str) -> Callable[[Row], bool]:
    return lambda row: bool(row["arguments"].get(name))


LIKENESSES = (
    Likeness("FP16 as BF16 with gradients of 16 bits", _asked("fp16")),
    Likeness(
        "routing by sinkhorn as without auxiliary loss: a few bytes per token and expert",
        lambda row: row["arguments"].get("moe-router-load-balancing-type") == "sinkhorn",
    ),
    Likeness(
        "load balancing by the global auxiliary loss as by the local one",
        lambda row: row["arguments"].get("moe-router-load-balancing-type") == "global_aux_loss",
    ),
    Likeness(
        "messages overlapped in warm-up and flush as not overlapped", _asked("overlap-p2p-communication-warmup-flush")
    ),
    Likeness("first and last layers in BF16 as in FP8", _asked("first-last-layers-bf16")),
    Likeness("transformer-engine's operation fuser as separate layers", _asked("use-transformer-engine-op-fuser")),
    Likeness(
        "FP8 current scaling with weights stored in BF16 as with weights stored in FP8",
        lambda row: row["arguments"].get("fp8-recipe") == "tensorwise" and not row["arguments"].get("fp8-param-gather"),
    ),
    Likeness("interleaved rotary embedding as a plain one", _asked("rotary-interleaved")),
    Likeness(
        "parameters gathered inside the optimizer step as after it", _asked("overlap-param-gather-with-optimizer-step")
    ),
    Likeness("the GPU, which the row does not name, as an A100", lambda row: row["hardware"].endswith("?")),
)


@dataclass(frozen=True)
class Reading:
    """A row as a spec, with the settings that were replaced by similar ones."""

    spec: ExperimentSpec
    taken_as: tuple[str, ...]


def read(row: Row) -> Reading:
    """The run as a spec with `transformer_impl` and attention settled; InexpressibleError with the reason otherwise.

    Defaults are those of Megatron-LM's `arguments.py`: FFN of 4 h (with SwiGLU 8/3 h rounded to 64), dropout of 0.1,
    learned positions, biases, tied embeddings, gradients accumulated in FP32 for BF16 runs.
    """
    arguments = Watched(row["arguments"])
    row = {**row, "arguments": arguments}
    for name, reason in INEXPRESSIBLE.items():
        if arguments.get(name) not in (None, False, "no_shard"):
            raise InexpressibleError(reason)
    if row["arguments"].get("use-megatron-fsdp") and not sections.shards_all(row["arguments"]):
        raise InexpressibleError("Megatron-FSDP that keeps some of its states whole")
    if any(
        arguments.get(f"megatron-fsdp-{name}-dtype", "fp32") != "fp32"
        for name in ("main-params", "main-grads", "grad-comm")
    ):
        raise InexpressibleError("Megatron-FSDP with weights or gradients below fp32")
    if _fuses_loss_natively(row["arguments"]) and _is_of_2024(row):
        raise InexpressibleError("megatron's fused cross entropy under a torch of 2024, which copies more logits")
    spec = _spec(row)
    samples = spec.batch.micro_batch_size * spec.data_parallel_size
    if not samples or spec.batch.global_batch_size % samples:
        raise InexpressibleError(f"the batch does not divide over the {row['world_size']} GPUs that the test declares")
    taken_as = tuple(likeness.text for likeness in LIKENESSES if likeness.applies(row))
    if unknown := arguments.unread():
        raise InexpressibleError(f"not understood: {', '.join(f'--{name}' for name in unknown)}")
    return Reading(spec, taken_as)


def _spec(row: Row) -> ExperimentSpec:
    """Return the spec. Each of n instances of the distributed optimizer shards over 1/n of the GPUs, like a smaller job."""
    a, gpu = row["arguments"], row["hardware"].rstrip("?").lower()
    if gpu not in GPUS:
        raise InexpressibleError(f"no such GPU type here: {row['hardware']}")
    instances = a.get("num-distributed-optimizer-instances", 1)
    if row["world_size"] % instances or a["global-batch-size"] % instances:
        raise InexpressibleError("instances of the distributed optimizer that do not divide GPUs and batch")
    if not row["world_size"]:
        raise InexpressibleError("the number of GPUs is not known")
    world_size = row["world_size"] // instances
    try:
        return ExperimentSpec.model_validate(
            {
                "recipe": "megatron_lm",
                "family": "gpt",
                "gpu": gpu,
                "num_gpus": world_size,
                "gpus_per_node": min(8, world_size),
                "compute_dtype": sections.dtype(a),
                "model": sections.model(a),
                "parallelism": sections.parallelism(a),
                "batch": {
                    "micro_batch_size": a["micro-batch-size"],
                    "global_batch_size": a["global-batch-size"] // instances,
                    "seq_length": a["seq-length"],
                },
                "recompute": sections.recompute(a),
                "optimizer": sections.optimizer(a),
                "offload": {"offload_modules": sections.offloaded(a)},
                "ddp": {
                    "grad_reduce_in_fp32": not a.get("fp16") or bool(a.get("accumulate-allreduce-grads-in-fp32")),
                    "overlap_grad_reduce": bool(a.get("overlap-grad-reduce")),
                    "overlap_param_gather": bool(a.get("overlap-param-gather")),
                    "use_megatron_fsdp": bool(a.get("use-megatron-fsdp")),
                },
                "cuda_graph": sections.cuda_graph(a),
                "kernels": sections.kernels(a) | {"attention_backend": _attention(row, gpu)},
                "env": _environment(row, gpu),
            }
        )
    except ValidationError as error:
        raise InexpressibleError(f"{error.errors()[0]['loc']}: {error.errors()[0]['msg']}") from error


def _attention(row: Row, gpu: str) -> str:
    """Return the kernel that ran. Local layers attend by scores; `auto` is settled as transformer-engine settles it.

    Before Hopper it prefers flash-attn to cuDNN's kernel. In deterministic mode it takes neither a flash-attn before 2.4.1,
    nor cuDNN's kernel but on Hopper, or on Blackwell without dropout (`dot_product_attention/utils.py`
    get_attention_backend; pull request 2584).
    """
    a = row["arguments"]
    asked: str = a.get("attention-backend", "auto")
    if a.get("transformer-impl", "transformer_engine") == "local":
        return "unfused"
    is_deterministic = row["environment"].get("NVTE_ALLOW_NONDETERMINISTIC_ALGO") == "0"
    has_dropout = float(a.get("attention-dropout", 0.1)) > 0
    prefers_cudnn, is_blackwell = GPUS[gpu].is_at_least(9), GPUS[gpu].is_at_least(10)
    if asked != "auto" or (prefers_cudnn and not (is_blackwell and is_deterministic and has_dropout)):
        return asked
    return "unfused" if is_deterministic and row["software"] == "lts" and _is_of_2024(row) else "flash"


def _fuses_loss_natively(a: Mapping[str, Any]) -> bool:
    return bool(a.get("cross-entropy-loss-fusion")) and a.get("cross-entropy-fusion-impl", "native") == "native"


def _is_of_2024(row: Row) -> bool:
    """Return whether the row's image carried software of 2024."""
    date: str = row["date"]
    return date < (SECOND_LTS_IMAGE if row["software"] == "lts" else SECOND_DEV_IMAGE)


def _environment(row: Row, gpu: str) -> dict[str, str]:
    """Return the row's own, with what torch took for granted on Blackwell before it knew better."""
    is_old = GPUS[gpu].is_at_least(10) and row["date"] < TORCH_KNOWS_BLACKWELL
    return (_WORKSPACE_BEFORE if is_old else {}) | dict(row["environment"])
