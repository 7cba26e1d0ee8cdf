"""Refuses arguments of Megatron-LM that change the memory or the time of a step and have no leaf in an ExperimentSpec.

It also refuses every other argument that no row reads and that is not at Megatron-LM's default, unless it is harmless.
"""

from collections.abc import Iterator
from dataclasses import replace

from harness.foreign.megatron_arguments import Argument, Arguments, arguments, derived, suggested
from harness.resolve.recipe import Setting
from harness.units import GIB, format_bytes, shortened

DETERMINISTIC_NETS = (
    "gated delta nets then run without the kernels of flash-linear-attention, the only ones that mbr-perf models"
)
"""Why a setting of small effect is refused in a model with gated delta nets (`ssm/gated_delta_net.py` forward)."""

_LOCAL = frozenset({"masked_softmax_fusion"})
"""Arguments that only the local layers read, not those of transformer-engine."""


def refuse_what_has_no_leaf(a: Arguments, layer: dict[str, Setting]) -> None:
    """Refuse every argument without a leaf; note in ``layer`` those of small effect or that change some steps."""
    small: list[str] = []
    noted = [*_missing_bytes(a)]
    for name, given in a.given.items():
        option = given.source.rpartition(" ")[2]
        if a.is_default(name) or _is_idle(a, name):
            continue
        known = arguments().get(name, Argument(name, {}))
        if known.refused:
            what, _, instead = known.refused.partition("; ")
            a.refuse(name, f"mbr-perf does not model {what}", instead or "plan the job without it")
        elif known.noted:
            noted.append(f"{option} {shortened(str(given.value))}: {known.noted}")
        elif name in a.read or name in derived():
            continue
        elif known.is_small:
            small.append(option)
        else:
            _refuse_unmodelled(a, name)
    _refuse_combinations(a)
    _refuse_context_communication(a)
    remarks = [f"The prediction leaves out: {'; '.join(sorted(noted))}"] if noted else []
    remarks += [f"Small effect, left out: {', '.join(sorted(small))}"] if small else []
    if remarks and "model.num_layers" in layer:
        note = f"{a.label}: {'. '.join(remarks)}"
        layer["model.num_layers"] = replace(layer["model.num_layers"], note=note)
    _note_idle_recompute(a, layer)


def _refuse_unmodelled(a: Arguments, name: str) -> None:
    known = arguments().get(name)
    if known is None:
        if a.is_whole:
            a.refuse(name, f"{shortened(str(a.given[name].value))}: no argument of Megatron-LM that mbr-perf knows",
                     suggested(name, arguments()))  # fmt: skip
    elif not known.harmless:
        usual = known.defaults[0]
        a.refuse(name, f"mbr-perf does not model it (Megatron-LM's default: {usual})", "plan the job without it")


def _is_idle(a: Arguments, name: str) -> bool:
    if name == "eval_micro_batch_size":
        sizes = a.get(name), a.get("micro_batch_size")
        return isinstance(sizes[0], int) and isinstance(sizes[1], int) and sizes[0] <= sizes[1]
    if name == "min_offloaded_tensor_size":
        return not a.get("fine_grained_activation_offloading")
    return name in _LOCAL and a.get("transformer_impl") != "local"


# From this size on a note names what the predicted peak leaves out.
_LEAST_NOTED_BYTES = GIB // 4


def _missing_bytes(a: Arguments) -> Iterator[str]:
    """Yield what the job holds and the prediction does not: masks of the loader, a second buffer of weights."""
    micro_batch, length = a.get("micro_batch_size"), a.get("seq_length")
    if isinstance(micro_batch, int) and isinstance(length, int) and a.get("create_attention_mask_in_dataloader", True):
        mask_bytes = micro_batch * length**2
        if mask_bytes >= _LEAST_NOTED_BYTES:
            yield (f"the attention mask of Megatron-LM's data loader ({format_bytes(mask_bytes)} for each micro-batch "
                   f"that holds it, avoid it with --no-create-attention-mask-in-dataloader)")  # fmt: skip
    stores_mxfp8 = a.get("fp8_recipe") == "mxfp8" and a.get("fp8_param_gather")
    if stores_mxfp8 and not a.get("reuse_grad_buf_for_mxfp8_param_ag"):
        yield "a buffer for gathered weights beside the gradients' (avoid it with --reuse-grad-buf-for-mxfp8-param-ag)"


def _note_idle_recompute(a: Arguments, layer: dict[str, Setting]) -> None:
    """Note arguments of recompute that no granularity turns on: the block of a log always has them."""
    idle = [name for name in _RECOMPUTE if a.get(name) is not None and name in a.given]
    if idle and not a.is_whole and a.get("recompute_granularity") is None and not a.get("recompute_activations"):
        note = f"{a.source(idle[0])} has no effect without --recompute-granularity: nothing is recomputed"
        layer["recompute"] = replace(layer["recompute"], note=note)


def _refuse_combinations(a: Arguments) -> None:
    """Refuse values of arguments that mbr-perf models with other values, or in other jobs, only."""
    known: dict[str, tuple[tuple[object, ...], str]] = {
        "optimizer": (("adam",), "an optimizer other than Adam"),
        "outer_dp_sharding_strategy": (("no_shard",), "hybrid sharding"),
        "transformer_impl": (("transformer_engine", "local"), "layers of another implementation"),
        "experimental_attention_variant": ((None, "gated_delta_net"), "another kind of attention"),
    }
    if a.get("use_megatron_fsdp"):
        low = (("fp32", "auto", None, "torch.float32"), "Megatron-FSDP with weights or gradients below fp32")
        known |= {f"megatron_fsdp_{name}_dtype": low for name in ("main_params", "main_grads", "grad_comm")}
    if not a.is_whole and any(a.get(name) for name in _CHUNKED):
        known["overlap_p2p_comm"] = ((True,), "interleaved stages without overlapped messages")
    tensor = a.get("tensor_model_parallel_size")
    for name in ("tensor_parallel_num_weight_shards", "expert_tensor_parallel_num_weight_shards"):
        known[name] = ((None, tensor, a.get("expert_tensor_parallel_size")), "weights in more shards than TP")
    known["encoder_num_layers"] = ((None, a.get("num_layers")), "a model with encoder and decoder")
    for name, (values, what) in known.items():
        value = a.get(name)
        if name in a.given and value not in values:
            listed = ", ".join(str(each) for each in dict.fromkeys(values) if each is not None)
            a.refuse(name, f"{shortened(str(value))}: mbr-perf does not model {what}", f"it models {listed or 'none'}")
    if a.get("experimental_attention_variant") and a.get("deterministic_mode"):
        a.refuse("deterministic_mode", DETERMINISTIC_NETS, "plan the job without it")


def _refuse_context_communication(a: Arguments) -> None:
    """Refuse context parallelism that does not pass keys and values between neighbours; say how many bytes it adds."""
    given = a.get("cp_comm_type")
    kinds = {str(kind) for kind in (given if isinstance(given, list | tuple) else [given])} - {"None"}
    cp_size = a.get("context_parallel_size")
    if "cp_comm_type" not in a.given or kinds <= {"p2p"} or cp_size in (None, 1):
        return
    remedy = "plan it with --cp-comm-type p2p"
    sizes = [a.get(name) for name in ("micro_batch_size", "seq_length", "num_attention_heads", "hidden_size")]
    if kinds <= {"a2a", "a2a+p2p"} and all(isinstance(size, int) for size in (*sizes, cp_size)):
        batch, length, heads, hidden = sizes
        width = a.get("v_head_dim") if a.get("multi_latent_attention") else a.get("kv_channels") or hidden // heads
        num_values = batch * length * heads * width // (cp_size * a.get("tensor_model_parallel_size", 1))
        remedy += (
            f", and add {format_bytes(2 * num_values)} per micro-batch in flight for each layer that does not "
            f"recompute core_attn: with a2a it keeps its attention output twice"
        )  # in BF16
    a.refuse("cp_comm_type", f"{', '.join(sorted(kinds))}: mbr-perf models context parallelism by p2p only", remedy)


_RECOMPUTE = ("recompute_modules", "recompute_method", "recompute_num_layers")
_CHUNKED = ("num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank")
