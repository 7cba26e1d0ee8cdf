"""Converts arguments of Megatron-LM's launcher to an ExperimentSpec, or says why that is impossible.

mbr-perf's own reader (`--megatron_args`) reads them. It refuses what has no leaf; here some of that is replaced by a setting whose
memory hardly differs, and the row says so.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from harness.errors import BadRequestError
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.gpu import GPUS
from harness.foreign.megatron_arguments import Arguments, argument_of, from_words, known, usual
from harness.foreign.megatron_fields import arguments_layer
from harness.foreign.shell_script import Word
from harness.resolve.recipe import Setting, build_spec, merge

Row = Mapping[str, Any]

# Features that no field of a spec expresses, by the argument that requests them.
INEXPRESSIBLE = {
    "optimizer": "an optimizer other than Adam",
    "export-te-mcore-model": "distillation",
    "outer-dp-sharding-strategy": "hybrid sharding",
    "no-masked-softmax-fusion": "megatron's own attention without its fused softmax",
}

# Folders of upstream's tests whose launchers build other models. Their arguments look like a GPT's.
OTHER_MODELS = {
    "bert": "BERT, whose launcher builds an encoder",
    "t5": "T5, whose launcher builds an encoder and a decoder",
    "multimodal-llava": "LLaVA, whose launcher adds a vision tower",
}

# Leaves that the kept comparisons leave at their defaults: no prediction of memory depends on them.
NOT_COMPARED = (
    "ddp.align_grad_reduce", "ddp.align_param_gather", "ddp.average_in_collective", "ddp.bucket_size", "optimizer.clip_grad",
    "model.layernorm_epsilon", "model.rotary_base", "model.mtp_loss_scaling_factor", "model.moe.moe_router_topk_scaling_factor",
    "model.moe.moe_router_bias_update_rate", "model.mla.rotary_scaling_factor", "model.mla.mscale",
    "model.mla.mscale_all_dim", "model.mla.apply_rope_fusion", "train.manual_gc", "train.manual_gc_interval",
)  # fmt: skip


class InexpressibleError(ValueError):
    """The run used a feature that a spec cannot express."""


# First day of the stacks that replaced older ones, by the days on which their traces first appear in the goldens: the LTS
# image with a flash-attn that is deterministic, the current image whose torch has Blackwell's workspace.
SECOND_LTS_IMAGE = "2025-11-01"
SECOND_DEV_IMAGE = "2025-06-01"
TORCH_KNOWS_BLACKWELL = "2026-05-01"
_WORKSPACE_BEFORE = {"CUBLAS_WORKSPACE_CONFIG": ":4096:2:16:8"}
# torch's deterministic mode refuses cuBLAS without this variable; upstream's tests of that mode set it to this value.
_WORKSPACE_OF_DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


@dataclass(frozen=True)
class Likeness:
    """A setting that a spec cannot express, and the arguments predicted instead, because their memory hardly differs."""

    text: str
    applies: Callable[[Row], bool]
    instead: Mapping[str, Any]


def _has(name: str, value: str) -> Callable[[Row], bool]:
    return lambda row: bool(row["arguments"].get(name) == value)


def _without(name: str, text: str) -> Likeness:
    """Return that a switch is taken for its absence."""
    return Likeness(text, lambda row: bool(row["arguments"].get(name)), {name: None})


_BALANCING = "moe-router-load-balancing-type"
LIKENESSES = (
    Likeness(
        "FP16 as BF16 with gradients of 16 bits", lambda row: bool(row["arguments"].get("fp16")), {"fp16": None, "bf16": True},
    ),
    Likeness(
        "routing by sinkhorn as without auxiliary loss: a few bytes per token and expert",
        _has(_BALANCING, "sinkhorn"), {_BALANCING: "none"},
    ),
    Likeness(
        "load balancing by the global auxiliary loss as by the local one",
        _has(_BALANCING, "global_aux_loss"), {_BALANCING: "aux_loss"},
    ),
    _without("overlap-p2p-communication-warmup-flush", "messages overlapped in warm-up and flush as not overlapped"),
    _without("first-last-layers-bf16", "first and last layers in BF16 as in FP8"),
    _without("use-transformer-engine-op-fuser", "transformer-engine's operation fuser as separate layers"),
    Likeness(
        "FP8 current scaling with weights stored in BF16 as with weights stored in FP8",
        lambda row: row["arguments"].get("fp8-recipe") == "tensorwise" and not row["arguments"].get("fp8-param-gather"),
        {"fp8-param-gather": True},
    ),
    _without("rotary-interleaved", "interleaved rotary embedding as a plain one"),
    _without("overlap-param-gather-with-optimizer-step", "parameters gathered inside the optimizer step as after it"),
    Likeness("the GPU, which the row does not name, as an A100", lambda row: row["hardware"].endswith("?"), {}),
    Likeness(
        "n instances of the distributed optimizer as a job of 1/n of the GPUs, which shards over as many ranks",
        lambda row: row["arguments"].get("num-distributed-optimizer-instances", 1) > 1,
        {"num-distributed-optimizer-instances": None},
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Reading:
    """A row as a spec, with the settings that were replaced by similar ones, and what became of each argument."""

    spec: ExperimentSpec
    taken_as: tuple[str, ...]
    treatments: Mapping[str, str]


# What becomes of an argument, given without its dashes. An argument that is none of these leaves its row out by name.
TREATMENTS = (
    "read", "taken for something alike", "of small effect, predicted without", "follows from others, or checked with them",
    "at Megatron-LM's default", "no influence on memory or time of a step",
)  # fmt: skip
_READ, _ALIKE, _SMALL, _DERIVED, _DEFAULT, _HARMLESS = TREATMENTS


def read(row: Row) -> Reading:
    """Return the run as a spec with `transformer_impl` and attention settled; InexpressibleError with the reason otherwise."""
    arguments = row["arguments"]
    for folder in str(row["path"]).split("/"):
        if folder in OTHER_MODELS:
            raise InexpressibleError(OTHER_MODELS[folder])
    for name, reason in INEXPRESSIBLE.items():
        if arguments.get(name) not in (None, False, "no_shard"):
            raise InexpressibleError(f"--{name} {arguments[name]}: {reason}")
    if not arguments.get("bf16") and not arguments.get("fp16"):
        raise InexpressibleError("FP32 training on a GPU")
    if _fuses_loss_natively(arguments) and _is_of_2024(row):
        raise InexpressibleError("megatron's fused cross entropy under a torch of 2024, which copies more logits")
    alike = [likeness for likeness in LIKENESSES if likeness.applies(row)]
    instead = {name: value for likeness in alike for name, value in likeness.instead.items()}
    plain = from_words(_words(arguments | instead), "row")
    spec = _spec(row, plain)
    samples = spec.batch.micro_batch_size * spec.data_parallel_size
    if not samples or spec.batch.global_batch_size % samples:
        raise InexpressibleError(f"the batch does not divide over the {row['world_size']} GPUs that the test declares")
    treatments = {name: _ALIKE if name in instead else _treatment(name, plain) for name in arguments}
    return Reading(spec, tuple(likeness.text for likeness in alike), treatments)


def _words(arguments: Mapping[str, Any]) -> Iterator[Word]:
    """Yield the words of a command line. False and None are options that were not given."""
    for name, value in arguments.items():
        if value is None or value is False:
            continue
        yield Word(f"--{name}", 1)
        values = value if isinstance(value, list) else [value]
        yield from (Word(str(each), 1) for each in values if each is not True)


def _treatment(name: str, plain: Arguments) -> str:
    """Return what became of an argument of a row that was read; ``plain``: the row's, after they were read."""
    argument = argument_of(f"--{name}")
    assert argument is not None  # unknown ones were refused
    own = argument.name
    if own not in plain.given or plain.fits(plain.given[own].value, usual(own)):
        return _DEFAULT
    if own in plain.read and own not in ("lr", "weight_decay"):  # which a figure never depends on
        return _READ
    kinds = {row.kind for row in known().get(own, ())}
    return _SMALL if kinds & {"small", "noted"} else _DERIVED if "refused" in kinds else _HARMLESS


def _spec(row: Row, plain: Arguments) -> ExperimentSpec:
    """Return the spec. Each of n instances of the distributed optimizer shards over 1/n of the GPUs, like a smaller job."""
    a, gpu = row["arguments"], row["hardware"].rstrip("?").lower()
    if gpu not in GPUS:
        raise InexpressibleError(f"no such GPU type here: {row['hardware']}")
    instances = a.get("num-distributed-optimizer-instances", 1)
    if "global-batch-size" not in a:
        raise InexpressibleError("no --global-batch-size: how many micro-batches a step has is not known")
    if row["world_size"] % instances or a["global-batch-size"] % instances:
        raise InexpressibleError("instances of the distributed optimizer that do not divide GPUs and batch")
    if not row["world_size"]:
        raise InexpressibleError("the number of GPUs is not known")
    world_size = row["world_size"] // instances
    keeps_16_bits = a.get("fp16") and not a.get("accumulate-allreduce-grads-in-fp32")
    own = {
        "recipe": "megatron_lm", "family": "gpt", "task": "pretrain", "gpu": gpu, "num_gpus": world_size,
        "gpus_per_node": min(8, world_size), "batch.global_batch_size": a["global-batch-size"] // instances,
        "kernels.attention_backend": _attention(row, gpu),
        "parallelism.expert_tensor_parallel_size": a.get("expert-tensor-parallel-size"), **({"ddp.grad_reduce_in_fp32": False} if keeps_16_bits else {}),
        **{f"env.{name}": value for name, value in _environment(row, gpu).items()},
    }  # fmt: skip
    if a.get("pipeline-model-parallel-layout"):  # it decides the number of chunks, which the kept comparisons leave out
        own["parallelism.virtual_pipeline_model_parallel_size"] = None
    try:
        read_ = arguments_layer(plain)
        if "model.vocab_size" not in read_:
            raise InexpressibleError(
                "the vocabulary's size is not known: no --vocab-size, and its tokenizer has no fixed size"
            )
        kept = {path: setting for path, setting in read_.items() if path not in NOT_COMPARED}
        return build_spec(merge(kept, {path: Setting(value, "row") for path, value in own.items()}), "row")
    except BadRequestError as error:
        raise InexpressibleError(
            "; ".join(problem.message.removeprefix("row: ") for problem in error.problems)
        ) from error


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
    """Return the row's own, or where none was recorded what deterministic mode needs.

    Before torch knew Blackwell, it took less for granted there.
    """
    is_old = GPUS[gpu].is_at_least(10) and row["date"] < TORCH_KNOWS_BLACKWELL
    needed = row["arguments"].get("deterministic-mode") and not row["environment"]
    return (
        (_WORKSPACE_BEFORE if is_old else {})
        | (_WORKSPACE_OF_DETERMINISTIC if needed else {})
        | dict(row["environment"])
    )
