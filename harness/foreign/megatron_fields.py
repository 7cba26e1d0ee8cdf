"""Reads a job from arguments of Megatron-LM's launcher, and refuses or notes those that no setting stands for."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod

from harness.foreign.megatron_arguments import Arguments, families, known
from harness.foreign.settings import rows_of, settings_in
from harness.foreign.words import judge
from harness.resolve.recipe import Layer, Setting
from harness.units import GIB, format_bytes

REQUIRED: Mapping[str, str] = {
    "model.num_layers": "--num-layers", "model.hidden_size": "--hidden-size",
    "model.num_attention_heads": "--num-attention-heads",
    "batch.micro_batch_size": "--micro-batch-size", "batch.seq_length": "--seq-length",
}  # fmt: skip


def arguments_layer(a: Arguments, *, is_job: bool = False) -> Layer:
    """Return every setting, defaults too. ``is_job``: sizes are needed. BadRequestError with every other argument."""
    layer = settings_in(a, rows_of("megatron"))
    harmless = [name for name in a.given if name.startswith(families())]
    unknown = "" if a.is_whole else "no argument of Megatron-LM that mbr-perf knows"
    remarks = judge(a, known(), unknown, sections=harmless, also=_missing_bytes(a))
    if remarks and "model.num_layers" in layer:
        layer["model.num_layers"] = replace(layer["model.num_layers"], note=f"{a.label}: {remarks}")
    _note_idle_recompute(a, layer)
    if is_job:
        _refuse_missing(a, layer)
    a.problems.raise_if_any()
    if a.num_gpus is not None:
        layer["num_gpus"] = Setting(a.num_gpus.value, a.num_gpus.source)
    layer |= {f"env.{name}": Setting(str(given.value), given.source) for name, given in a.environment.items()}
    return layer


def _refuse_missing(a: Arguments, layer: Layer) -> None:
    if missing := [option for path, option in REQUIRED.items() if path not in layer]:
        a.problems.add(f"{a.label}: no {', '.join(missing)}", "give all arguments of the job")
    if "model.vocab_size" not in layer and "model.vocab_size" not in a.settled:
        kind = a.peek("tokenizer_type")
        a.problems.add(
            f"{a.label}: the vocabulary's size is not known; its tokenizer{f' ({kind})' if kind else ''} has it",
            "add --vocab_size N, e.g. --vocab_size 128256",
        )


# From this size on a note names what the predicted peak leaves out.
_LEAST_NOTED_BYTES = GIB // 4


def _missing_bytes(a: Arguments) -> Iterator[str]:
    sizes = [a.peek(name) for name in ("micro_batch_size", "seq_length", "seq_length")]
    num_bytes = prod(size if isinstance(size, int) else 0 for size in sizes)
    if num_bytes >= _LEAST_NOTED_BYTES and a.value("create_attention_mask_in_dataloader", usual=True):
        yield (
            f"the attention mask of Megatron-LM's data loader ({format_bytes(num_bytes)} for each "
            f"micro-batch that holds it, avoid it with --no-create-attention-mask-in-dataloader)"
        )
    if a.holds("fp8_recipe=mxfp8 fp8_param_gather !reuse_grad_buf_for_mxfp8_param_ag"):
        yield (
            "a buffer for gathered weights beside the gradients' (avoid it with --reuse-grad-buf-for-mxfp8-param-ag)"
        )


def _note_idle_recompute(a: Arguments, layer: dict[str, Setting]) -> None:
    names = [f"recompute_{name}" for name in ("modules", "method", "num_layers")]
    idle = [name for name in names if a.has(name) and a.peek(name) is not None]
    if idle and not a.is_whole and a.holds("!recompute_granularity !recompute_activations"):
        note = f"{a.place(idle[0])} has no effect without --recompute-granularity: nothing is recomputed"
        layer["recompute"] = replace(layer["recompute"], note=note)
