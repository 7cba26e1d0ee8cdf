"""Reads values of an ExperimentSpec that follow from several arguments of Megatron-LM, or that it spells differently.

Defaults are those of Megatron-LM's `arguments.py`: a feed-forward of 4 h (with SwiGLU 8/3 h rounded to 64), dropout of
0.1, learned positions, biases, tied embeddings, gradients accumulated in FP32 for BF16 runs.
"""

from collections.abc import Callable

from harness.errors import BadRequestError
from harness.experiment.gpu import PRECISIONS
from harness.experiment.layout_text import LayoutSyntaxError, chunks_of_layout, parse_layout
from harness.experiment.recompute import NoRecompute
from harness.foreign.container_values import DTYPES, FP8_RECIPES
from harness.foreign.megatron_arguments import Arguments
from harness.resolve.options import read_layer_freq
from harness.resolve.recipe import Value
from harness.resolve.recompute import Field as RecomputeField
from harness.resolve.recompute import Policy, policy_from_fields, selective
from harness.units import shortened

Read = Callable[[Arguments], Value]

_BALANCINGS = ("aux_loss", "seq_aux_loss", "global_aux_loss", "none")
_VOCABULARIES = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000}


def own(a: Arguments, name: str) -> Value:
    """Return the value of an argument as it is."""
    value: Value = a.get(name)
    return value


def flag(name: str) -> Read:
    """Return a reader of an argument that is on or off."""
    return lambda a: bool(a.get(name))


def precision(a: Arguments) -> Value:
    """Return the row of `PRECISIONS`."""
    a.read.add("accumulate_allreduce_grads_in_fp32")
    if a.get("fp16"):
        a.refuse("fp16", "FP16 training is not supported", "use --bf16")
        return None
    low = "fp4" if a.get("fp4") else "fp8"
    recipe, gathers = (
        a.get(f"{low}_recipe"),
        bool(a.get(f"{low}_param_gather") or (low == "fp4" and a.get("fp4_param"))),
    )
    if not a.get(low):
        return "bf16" if a.get("bf16") else "fp32"
    row = PRECISIONS["nvfp4"] if low == "fp4" else FP8_RECIPES.get(str(recipe))
    if row is None or bool(row.transformer_config.get(f"{low}_param")) != gathers:
        what = f"{recipe} with{'' if gathers else 'out'} parameters gathered in {low.upper()}"
        a.refuse(low, f"{low.upper()} {what}", f"add or leave out --{low}-param-gather")
        return None
    return row.name


def _count(a: Arguments, name: str) -> int | None:
    value = a.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def ffn(a: Arguments) -> Value:
    """Return the inner width of a dense block."""
    hidden, given = _count(a, "hidden_size"), own(a, "ffn_hidden_size") or own(a, "intermediate_size")
    if given or hidden is None:
        return given
    return int(hidden * 4 * 2 / 3 / 64) * 64 if a.get("swiglu") else 4 * hidden


def vocabulary(a: Arguments) -> Value:
    """Return the tokens before padding: as given, or those of a tokenizer that always has the same."""
    size = own(a, "vocab_size") or own(a, "padded_vocab_size")
    kind = a.get("tokenizer_type")
    if size is None and kind is None and "merge_file" in a.given:
        kind = "GPT2BPETokenizer"
    return size or _VOCABULARIES.get(str(kind))


def positions(a: Arguments) -> Value:
    """Return how positions enter."""
    kind = a.get("position_embedding_type", "learned_absolute")
    by_flag = a.get("use_rotary_position_embeddings") or a.get("use_llama2_rotary_position_embeddings")
    kind = "rope" if by_flag or kind == "rotary" else kind
    if not a.get("add_position_embedding", True) and kind == "learned_absolute":
        return "none"
    if kind != "learned_absolute" or a.get("max_position_embeddings") == a.get("seq_length"):
        a.read.add("max_position_embeddings")
    if kind not in ("learned_absolute", "rope", "none"):
        a.refuse("position_embedding_type", f"{kind}: not supported", "known: learned_absolute, rope, none")
    return str(kind)


def activation(a: Arguments) -> Value:
    """Return the activation. The fusion of a GELU has no effect with SwiGLU or without biases."""
    if a.get("swiglu") or not a.get("add_bias_linear", True):
        a.read.add("bias_gelu_fusion")
    return "silu" if a.get("swiglu") else "quick_gelu" if a.get("quick_geglu") else "gelu"


def pattern(name: str) -> Read:
    """Return a reader of layers: every n-th, a tuple, or Megatron-LM's ``([0]*1+[1]*15)``, which is not run."""

    def read(a: Arguments) -> Value:
        value = a.get(name)
        if not isinstance(value, str):
            return own(a, name)
        try:
            return read_layer_freq(value)
        except BadRequestError as error:
            a.refuse(name, f"layer pattern: {error.message}", "write an integer or ([0]*3+[1]*58)")
            return None

    return read


def balancing(a: Arguments) -> Value:
    """Return how the router is balanced."""
    kind = first(a.get("moe_router_load_balancing_type"))
    if kind not in _BALANCINGS:
        a.refuse("moe_router_load_balancing_type", f"{kind} is not supported", f"known: {', '.join(_BALANCINGS)}")
    return kind


def first(value: Value) -> Value:
    """Return the only item of a tuple, any other value as it is."""
    return value[0] if isinstance(value, tuple) and len(value) == 1 else value


def dispatcher(a: Arguments) -> Value:
    """Return how tokens reach experts."""
    return "flex" if a.get("moe_enable_deepep") else own(a, "moe_token_dispatcher_type")


def dispatcher_backend(a: Arguments) -> Value:
    """Return the backend of the flex dispatcher."""
    backend = a.get("moe_flex_dispatcher_backend")
    return "deepep" if a.get("moe_enable_deepep") else backend if dispatcher(a) == "flex" else None


def chunks(a: Arguments) -> Value:
    """Return the number of model chunks per stage."""
    if "virtual_pipeline_model_parallel_size" in a.given:
        return own(a, "virtual_pipeline_model_parallel_size")
    per_chunk, layers = _count(a, "num_layers_per_virtual_pipeline_stage"), _count(a, "num_layers")
    stages = _count(a, "pipeline_model_parallel_size") or 1
    if isinstance(text := layout(a), str):
        of_layout = chunks_of_layout(text, stages)
        return of_layout if of_layout > 1 else None
    if not per_chunk or layers is None:
        return own(a, "num_virtual_stages_per_pipeline_rank")
    ends = bool(a.get("account_for_embedding_in_pipeline_split")) + bool(a.get("account_for_loss_in_pipeline_split"))
    return (layers + ends) // stages // per_chunk


def layout(a: Arguments) -> Value:
    """Return the layout with its MTP layers; before megatron-core 0.16 it did not name them: they precede the loss."""
    text, num_mtp = a.get("pipeline_model_parallel_layout"), a.get("mtp_num_layers") or 0
    if not isinstance(text, str):
        return own(a, "pipeline_model_parallel_layout")
    text = text.replace("\\", "").strip("'\"")
    try:
        parse_layout(text)
    except LayoutSyntaxError as error:
        a.refuse("pipeline_model_parallel_layout", f"{shortened(text)}: {error}", "write it as in Et*3|(tt|)*2L")
    return text if "m" in text else text.replace("L", "m" * num_mtp + "L")


def recompute(a: Arguments) -> Value:
    """Return the recompute policy; selective recompute without modules means `core_attn`."""
    granularity = "selective" if a.get("recompute_activations") else a.get("recompute_granularity")
    method, layers, modules = (a.get(f"recompute_{name}") for name in ("method", "num_layers", "modules"))
    distributes = a.get("distribute_saved_activations")
    if granularity is None:
        return NoRecompute()
    policy: Policy | None = None
    place = a.source("recompute_activations", "recompute_granularity")
    with a.problems.collecting():
        if granularity == "selective" and method is not None and "recompute_method" in a.given:
            also = ", or leave out --recompute-activations" if a.get("recompute_granularity") == "full" else ""
            message = f"{method}: Megatron-LM takes no method with selective recompute"
            a.refuse("recompute_method", message, f"leave it out{also}")
        elif granularity == "selective":
            policy = selective(names(modules) if modules else ["core_attn"], a.source("recompute_modules"))
        else:
            fields = {"granularity": granularity, "method": method, "num_layers": layers if layers is not None else 1}
            fields |= {"distribute_saved_activations": True} if distributes else {}
            written = {key: RecomputeField(key, value, place) for key, value in fields.items()}
            policy = policy_from_fields(written, place)[0]
    return policy


def names(value: object) -> tuple[str, ...]:
    """Return `mlp`, `[mlp moe_act]` or a tuple as a tuple of texts."""
    if value is None:
        return ()
    return (
        tuple(str(each) for each in value)
        if isinstance(value, tuple)
        else tuple(str(value).strip("[]").replace(",", " ").split())
    )


def graph(a: Arguments) -> Value:
    """Return who captures CUDA graphs."""
    if a.get("enable_cuda_graph"):
        return "local"
    return "transformer_engine" if a.get("external_cuda_graph") else own(a, "cuda_graph_impl")


def graph_parts(a: Arguments) -> Value:
    """Return the captured parts; `full` means whole layers."""
    parts = (
        names(a.get("cuda_graph_modules"))
        + names(a.get("cuda_graph_scope"))
        + names(a.get("cuda_graph_scope_deprecated"))
    )
    parts = tuple(dict.fromkeys(part.rpartition(".")[2] for part in parts))
    return () if parts == ("full",) or graph(a) == "none" else parts


def attention(a: Arguments) -> Value:
    """Return the attention kernel: local layers attend by scores."""
    kind = str(a.get("attention_backend", "auto")).rpartition(".")[2]
    if implementation(a) == "local" or kind == "local":
        a.read.add("use_flash_attn")
        return "unfused"
    return "flash" if kind == "auto" and a.get("use_flash_attn") else kind


def implementation(a: Arguments) -> Value:
    """Return whose layers run."""
    return str(a.get("transformer_impl", "transformer_engine"))


def dtype(name: str) -> Read:
    """Return a reader of a precision's short name."""
    return lambda a: DTYPES.get(str(a.get(name)).removeprefix("torch."), a.get(name))


def shards(a: Arguments) -> Value:
    """Return whether Megatron-FSDP shards weights, gradients and optimizer state, the one way that is modelled."""
    asked = bool(a.get("use_megatron_fsdp") or a.get("use_custom_fsdp"))
    a.read.add("data_parallel_sharding_strategy")
    named = a.given.get("data_parallel_sharding_strategy")  # its default differs by version
    strategy = named.value if named else None
    if asked and strategy != "optim_grads_params":
        a.refuse("data_parallel_sharding_strategy", "Megatron-FSDP that keeps some of its states whole",
                 "use --data-parallel-sharding-strategy optim_grads_params")  # fmt: skip
    return asked


def window(value: Value) -> Value:
    """Return `128,0` or a tuple of two numbers as a pair."""
    if isinstance(value, str):
        return tuple(int(part) if part.strip("- ").isdigit() else part for part in value.strip("()").split(","))
    return value if isinstance(value, tuple) else None
