"""Turns values of a Megatron-Bridge `ConfigContainer` into values of an ExperimentSpec.

Each function takes the container and the path of the setting that its row in `container_fields` found.
"""

from harness.errors import BadRequestError
from harness.experiment.gpu import PRECISIONS, Precision
from harness.experiment.recompute import NoRecompute
from harness.foreign.container_file import Container
from harness.records.reading import PlainValue
from harness.resolve.recipe import Value
from harness.resolve.recompute import Field as RecomputeField
from harness.resolve.recompute import policy_from_fields

DTYPES = {"float32": "fp32", "float64": "fp64", "bfloat16": "bf16", "float16": "fp16", "uint8": "fp8"}
"""Short names of torch's types, as megatron-core's optimizer spells them."""

FP8_RECIPES: dict[str, Precision] = {
    str(row.transformer_config["fp8_recipe"]): row for row in PRECISIONS.values() if "fp8" in row.transformer_config
}
"""The precision of each `fp8_recipe` of megatron-core."""

_DTYPES = {f"torch.{name}": short for name, short in DTYPES.items()} | {n: n for n in ("fp32", "bf16", "fp16", "fp64")}
_LAYERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}


def precision(container: Container, path: str) -> Value:
    """Derive `compute_dtype` from the model's fp4, fp8 and bf16 settings."""
    if container.value("model.fp4"):
        return "nvfp4"
    if container.value("model.fp8"):
        names = {recipe: row.name for recipe, row in FP8_RECIPES.items()}
        return _known(container, "model.fp8_recipe", names)
    if container.value("model.fp16"):
        raise BadRequestError(f"{container.place('model.fp16')}: fp16 training is not supported", remedy="use bf16")
    return "bf16" if container.value(path) else "fp32"


def world_size(container: Container, path: str) -> Value:
    """Return data-parallel copies times TP x PP x CP; a file that is not finalised does not state it."""
    size = container.value(path)
    for each in ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"):
        cut = container.value(f"model.{each}")
        size = size * cut if isinstance(size, int) and isinstance(cut, int) else None
    return size


def whole_number(container: Container, path: str) -> Value:
    """Return a count; Bridge writes some as floats, such as 500000.0."""
    value = container.value(path)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def short_name(container: Container, path: str) -> Value:
    """Return the last part of a dotted name: `silu` of `torch.nn.functional.silu`."""
    value = container.value(path)
    return value.rpartition(".")[2] if isinstance(value, str) else value


def rope_scaling_factor(container: Container, path: str) -> Value:
    """Return the factor of Llama 3.1's scaling; None if the scaling is off."""
    return container.value(path) if container.value("model.rope_scaling") else None


def dtype(container: Container, path: str) -> Value:
    """Return a dtype's short name."""
    return _known(container, path, _DTYPES)


def router_dtype(container: Container, path: str) -> Value:
    """Return the precision of routing; None if it is bf16, the precision of the activations."""
    name = None if container.value(path) is None else dtype(container, path)
    return None if name == "bf16" and container.value("model.bf16") else name


def layout(container: Container, path: str) -> Value:
    """Return the layers per chunk as megatron-core's letters; Bridge also writes one list of layer names per chunk."""
    value = container.value(path)
    if isinstance(value, str) and "." in value:
        raise BadRequestError(
            f"{container.place(path)}: Megatron-Bridge wrote an object without its layout",
            remedy="write the layout's text",
        )
    if not isinstance(value, tuple):
        return value
    return "|".join("".join(_letter(container, path, name) for name in _items(chunk)) for chunk in value)


def deferral_limit(container: Container, path: str) -> Value:
    """Return the number of micro-batches whose embedding gradients wait; 0 (megatron-core: -1) without deferral."""
    return container.value(path) if container.value("model.defer_embedding_wgrad_compute") else 0


def recompute(container: Container, path: str) -> Value:
    """Return the recompute policy of megatron-core's fields; selective recompute without a list means `core_attn`."""
    granularity = container.value(path)
    if granularity is None:
        return NoRecompute()
    names: tuple[str, ...] = (
        ("recompute_modules",) if granularity == "selective" else ("recompute_method", "recompute_num_layers")
    )
    if granularity == "full" and container.value("model.distribute_saved_activations"):
        names += ("distribute_saved_activations",)
    fields = {"granularity": RecomputeField("recompute_granularity", granularity, container.place(path))}
    for name in names:
        value = container.value(f"model.{name}")
        if name == "recompute_modules":
            if value == ():
                return NoRecompute()
            value = ("core_attn",) if value is None else value
        key = name.removeprefix("recompute_")
        fields[key] = RecomputeField(name, value, container.place(f"model.{name}"))
    return policy_from_fields(fields, container.place(path))[0]


def implementation(container: Container, path: str) -> Value:
    """Return an enum's member or text in lower case; null means the default."""
    value = container.value(path)
    if value is None:
        return "none" if path.endswith("cuda_graph_impl") else "auto"
    return value.lower() if isinstance(value, str) else value


def graph_modules(container: Container, path: str) -> Value:
    """Return the captured parts, also given as `cuda_graph_scope`; null, an empty list and `full` mean whole layers."""
    value = container.value(path)
    if value in (None, "full"):
        value = container.value("model.cuda_graph_scope")
    return (
        ()
        if value in (None, "full")
        else tuple(each.lower() if isinstance(each, str) else each for each in _items(value))
    )


def cpu_offloading_layers(container: Container, path: str) -> Value:
    """Return the number of layers whose activations move to the host; 0 if `cpu_offloading` is off."""
    return container.value(path) if container.value("model.cpu_offloading") else 0


def offloaded_modules(container: Container, path: str) -> Value:
    """Return the modules of fine-grained offloading; empty if it is off."""
    return (container.value(path) or ()) if container.value("model.fine_grained_activation_offloading") else ()


def user_buffers(container: Container, path: str) -> Value:
    """Return the buffers per GEMM; None if `tp_comm_overlap` is off. Bridge writes fp8_buf of a pipeline as a list."""
    value = container.value(path)
    if not container.value("model.tp_comm_overlap") or not isinstance(value, dict):
        return None
    return {gemm: _buffer(container, f"{path}.{gemm}", each) for gemm, each in value.items() if each is not None}


def environment(container: Container, path: str) -> Value:
    """Return the environment variables, with their values as text."""
    value = container.value(path)
    return {name: str(each) for name, each in value.items()} if isinstance(value, dict) else {}


def _buffer(container: Container, path: str, value: PlainValue) -> PlainValue:
    if not isinstance(value, dict):
        raise BadRequestError(f"{container.place(path)}: must be a mapping", remedy="write the file with to_yaml")
    if value.get("atomic_gemm"):
        raise BadRequestError(f"{container.place(path)}.atomic_gemm: not supported", remedy="set it to false")
    unread = (
        {"atomic_gemm"} if value.get("method") == "pipeline" else {"atomic_gemm", "fp8_buf"}
    )  # by transformer-engine
    kept = {key: each for key, each in value.items() if key not in unread}
    if isinstance(kept.get("fp8_buf"), tuple):
        kept["fp8_buf"] = any(_items(kept["fp8_buf"]))
    return kept


def _known(container: Container, path: str, names: dict[str, str]) -> str:
    value = container.value(path)
    if not isinstance(value, str) or value not in names:
        raise BadRequestError(f"{container.place(path)}: no such value {value!r}", remedy=f"known: {', '.join(names)}")
    return names[value]


def _letter(container: Container, path: str, name: PlainValue) -> str:
    if not isinstance(name, str) or name not in _LAYERS:
        raise BadRequestError(f"{container.place(path)}: no such layer {name!r}", remedy=f"known: {', '.join(_LAYERS)}")
    return _LAYERS[name]


def _items(value: PlainValue) -> tuple[PlainValue, ...]:
    return value if isinstance(value, tuple) else (value,)
