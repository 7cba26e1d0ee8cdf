"""Turns values of other programs into those of an ExperimentSpec; defaults are of Megatron-LM's `arguments.py`."""

from collections.abc import Sequence
from math import prod

from pydantic import TypeAdapter, ValidationError

from harness.errors import BadRequestError
from harness.experiment.gpu import PRECISIONS, Precision
from harness.experiment.layout_text import LayoutSyntaxError, chunks_of_layout, parse_layout
from harness.experiment.recompute import NoRecompute, UniformRecompute, WrittenRecompute
from harness.foreign.words import Words
from harness.records.faults import faults
from harness.records.reading import PlainValue
from harness.resolve.options import read_layer_freq
from harness.resolve.recipe import Setting, Value
from harness.resolve.recompute import selective as selective_policy
from harness.units import shortened

DTYPES = {"float32": "fp32", "float64": "fp64", "bfloat16": "bf16", "float16": "fp16", "uint8": "fp8"}
"""Short names of torch's types, as megatron-core's optimizer spells them."""

FP8_RECIPES: dict[str, tuple[Precision, Precision]] = {
    str(row.transformer_config["fp8_recipe"]): (row, PRECISIONS[other])
    for name, row in PRECISIONS.items()
    if (other := f"{name}_{'bf16' if row.fp8_param_gather else 'fp8'}_weights") in PRECISIONS
}
"""The precisions of each `fp8_recipe` of megatron-core: as Megatron-Bridge keeps weights, and the other way."""

_LAYERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
_VOCABULARIES = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000}


def as_written(words: Words, *names: str) -> Value:
    """Return the first value; both sides spell it the same way."""
    found: Value = words.value(*names)
    return found


def any_of(words: Words, *names: str) -> Value:
    """Read several switches of the program that are one setting here."""
    return any(words.value(name) for name in names)


def listed_when(words: Words, name: str, switch: str) -> Value:
    """Return a list of names if its switch is on; else it is empty."""
    found: Value = words.value(name)
    return listed(found if words.value(switch) else None)


def listed(value: object) -> tuple[str, ...]:
    """Return `mlp`, `[mlp moe_act]` or a tuple as a tuple of texts."""
    texts = value if isinstance(value, tuple) else str(value or "").strip("[]").replace(",", " ").split()
    return tuple(str(each) for each in texts)


def only_one(words: Words, name: str) -> Value:
    """Return the only item of a list, any other value as it is."""
    value: Value = words.value(name)
    return value[0] if isinstance(value, tuple) and len(value) == 1 else value


def context_communication(words: Words, name: str, size: str) -> Value:
    """Return how ranks of context parallelism share attention; None if there are none and mbr-perf has no such way."""
    kinds = dict.fromkeys(kind for kind in listed(words.value(name)) if kind != "None")
    if len(kinds) < 2 and {"p2p", "a2a"}.issuperset(kinds):
        return next(iter(kinds), None)
    if (words.peek(size) or 1) != 1:
        words.refuse(
            name, f"{', '.join(kinds)}: mbr-perf models p2p and a2a, one for all layers", "plan it with p2p or a2a"
        )
    return None


def precision(words: Words, bf16: str, fp8: str, fp4: str, recipe: str, fp16: str, *gathers: str) -> Value:
    """Return the row of `PRECISIONS`. Arguments of Megatron-LM (``gathers``) decide how parameters are kept."""
    low = fp4 if words.value(fp4) else fp8
    beside = next((name for name in (low, bf16) if words.value(name)), None)
    if words.value(fp16) and beside:
        words.refuse(fp16, f"FP16 beside {beside.rpartition('.')[2].upper()} is not supported", "keep one of them")
        return None
    if not words.value(low):
        return next((kind for kind, name in (("fp16", fp16), ("bf16", bf16)) if words.value(name)), "fp32")
    kind = str(words.value(recipe))
    rows = (PRECISIONS["nvfp4"],) if low == fp4 else FP8_RECIPES.get(kind)
    if rows is None:
        words.refuse(recipe, f"no such value {kind!r}", f"known: {', '.join(FP8_RECIPES)}")
        return None
    return _gathered(words, low, rows, gathers) if gathers else rows[0].name


def _gathered(words: Words, low: str, rows: Sequence[Precision], gathers: Sequence[str]) -> str | None:
    is_gathered = any_of(words, *(name for name in gathers if name.startswith(f"{low}_param")))
    fitting = (row.name for row in rows if bool(row.transformer_config.get(f"{low}_param")) == is_gathered)
    name = next(fitting, None)
    if name is None:
        what, remedy = ("with", "leave out") if is_gathered else ("without", "add")
        words.refuse(low, f"not modelled {what} parameters gathered in {low.upper()}", f"{remedy} --{low}-param-gather")
    return name


def dtype(words: Words, name: str) -> Value:
    """Shorten ``torch.bfloat16`` or ``bfloat16`` to ``bf16``; other texts stay."""
    value: Value = words.value(name)
    return DTYPES.get(str(value).removeprefix("torch."), value)


def router_dtype(words: Words, name: str, bf16: str) -> Value:
    """Return the precision of routing; None if it is bf16, the precision of the activations."""
    found = dtype(words, name)
    return None if found == "bf16" and words.value(bf16) else found


def short_name(words: Words, name: str) -> Value:
    """Return the last part of a dotted name: `silu` of `torch.nn.functional.silu`."""
    value: Value = words.value(name)
    return value.rpartition(".")[2] if isinstance(value, str) else value


_IMPLICIT = (
    "recompute core_attn is also what a recipe without recompute_modules gets; 15 of Megatron-Bridge's recipes for "
    "gpt-oss, Qwen3 and Nemotron state [] instead since September 2026 (#6003), which recomputes nothing"
)


def recompute(
    words: Words, granularity: str, method: str, layers: str, modules: str, distribute: str, *selective: str
) -> Setting | None:
    """Return the policy of megatron-core's fields. Selective without a list is core_attn; ``selective`` turns it on."""
    kind = "selective" if any_of(words, *selective) else words.value(granularity)
    place = words.place(*selective, granularity)
    if kind in (None, "none"):
        return Setting(NoRecompute(), place)
    if kind == "selective":
        place = words.place(modules, *selective, granularity)
        return _selective(words.value(modules), place, is_argument=bool(selective))
    own = {"granularity": granularity, "method": method, "num_layers": layers}
    own |= {"distribute_saved_activations": distribute}
    given = {name: words.value(each) for name, each in own.items()} | {"granularity": kind}
    given["num_layers"] = words.value(layers, usual=1 if selective else None)
    values = {name: value for name, value in given.items() if value is not None}
    try:
        policy: TypeAdapter[UniformRecompute] = TypeAdapter(WrittenRecompute)  # here, because most jobs need none
        return Setting(policy.validate_python(values), place)
    except ValidationError as error:
        for fault in faults(error, WrittenRecompute, values):
            name = own[str(fault.keys[0])]
            if fault.is_missing:
                shown = f"--{name}".replace("_", "-") if selective else name
                needed = "uniform or block" if name == method else "1 or more"
                words.refuse(granularity, f"{kind} recompute needs {shown}", f"add {shown}: {needed}")
            else:
                words.refuse(name, fault.message, fault.remedy)
        return None


def _selective(value: Value, place: str, *, is_argument: bool) -> Setting:
    names = ("core_attn",) if value is None else listed(value)
    note = "" if is_argument or names != ("core_attn",) else _IMPLICIT
    return Setting(selective_policy(names, place) if names else NoRecompute(), place, note=note)


def implementation(words: Words, name: str) -> Value:
    """Return an enum's member or text in lower case; null means the default."""
    value: Value = words.value(name, usual="none" if name.endswith("cuda_graph_impl") else "auto")
    return value.lower() if isinstance(value, str) else value


def graph_parts(words: Words, *names: str) -> Value:
    """Return the captured parts; null, an empty list and `full` mean whole layers."""
    parts = [part.rpartition(".")[2].lower() for name in names for part in listed(words.value(name))]
    return tuple(dict.fromkeys(part for part in parts if part != "full"))


def pattern(words: Words, name: str) -> Value:
    """Return layers: every n-th, a tuple, or Megatron-LM's ``([0]*1+[1]*15)``, which is not run."""
    value: Value = words.value(name)
    try:
        return read_layer_freq(value) if isinstance(value, str) else value
    except BadRequestError as error:
        words.refuse(name, f"layer pattern: {error.message}", "write an integer or ([0]*3+[1]*58)")
        return None


def pair(words: Words, name: str) -> Value:
    """Return `128,0` or a tuple of two numbers as a pair."""
    value = words.value(name)
    if isinstance(value, str):
        return tuple(int(part) if part.strip("- ").isdigit() else part for part in value.strip("()").split(","))
    return value if isinstance(value, tuple) else None


def world_size(words: Words, *names: str) -> Value:
    """Return data-parallel copies times TP x PP x CP; a file that is not finalised does not state it."""
    factors = [words.value(name) for name in names]
    return prod(factors) if all(isinstance(each, int) for each in factors) else None


def layout_of_lists(words: Words, name: str) -> Value:
    """Return the layers per chunk as megatron-core's letters; Bridge also writes one list of layer names per chunk."""
    value: Value = words.value(f"{name}.layout", f"{name}.input_data", name)
    if isinstance(value, dict) or (isinstance(value, str) and "." in value):
        remedy = "add --set 'parallelism.pipeline_model_parallel_layout=Et*3|(tt|)*2L', as the job has it"
        words.refuse(name, "Megatron-Bridge wrote an object without its layout", remedy)
        return None
    if not isinstance(value, tuple):
        return value
    chunks = [chunk if isinstance(chunk, tuple) else (chunk,) for chunk in value]
    for each in (each for chunk in chunks for each in chunk if each not in _LAYERS):
        words.refuse(name, f"no such layer {each!r}", f"known: {', '.join(_LAYERS)}")
        return None
    return "|".join("".join(_LAYERS[str(each)] for each in chunk) for chunk in chunks)


def user_buffers(words: Words, name: str, switch: str) -> Value:
    """Return the buffers per GEMM; None if `tp_comm_overlap` is off. Bridge writes fp8_buf of a pipeline as a list."""
    value = words.value(name)
    if not words.value(switch) or not isinstance(value, dict):
        return None
    return {gemm: _buffer(each) for gemm, each in value.items() if each is not None}


def _buffer(value: PlainValue) -> PlainValue:
    if not isinstance(value, dict):
        return value
    kept = {key: each for key, each in value.items() if each or key != "atomic_gemm"}
    buffers = kept.pop("fp8_buf", None)
    if buffers is None or value.get("method") != "pipeline":  # of other methods transformer-engine does not read it
        return kept
    return kept | {"fp8_buf": any(buffers) if isinstance(buffers, tuple) else buffers}


def environment(words: Words, name: str) -> dict[str, Setting]:
    """Return the settings of the environment variables, with their values as text."""
    value = words.value(name)
    variables = value.items() if isinstance(value, dict) else ()
    return {f"env.{key}": Setting(str(each), words.place(f"{name}.{key}")) for key, each in variables}


def _count(words: Words, name: str) -> int | None:
    value = words.value(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def ffn(words: Words, own: str, alias: str, hidden_size: str, swiglu: str) -> Value:
    """Read a dense block's inner width; Megatron's default is 4 x hidden, with SwiGLU 2/3 of it in steps of 64."""
    hidden, given = _count(words, hidden_size), words.value(own) or words.value(alias)
    if given or hidden is None:
        return as_written(words, own, alias)
    return int(hidden * 4 * 2 / 3 / 64) * 64 if words.value(swiglu) else 4 * hidden


def expert_ffn(words: Words, own: str, *dense: str) -> Value:
    """Return the inner width of an expert, as wide as a dense block without a width of its own."""
    return as_written(words, own) or ffn(words, *dense)


def vocabulary(words: Words, own: str, padded: str, tokenizer: str, merge_file: str) -> Value:
    """Return the tokens before padding: as given, or those of a tokenizer that always has the same."""
    kind = words.value(tokenizer) or ("GPT2BPETokenizer" if words.value(merge_file) else None)
    return as_written(words, own, padded) or _VOCABULARIES.get(str(kind))


def chunks(words: Words, per_chunk: str, per_rank: str, own: str) -> Value:
    """Count the model chunks of a stage, by whichever of layers per chunk, layout or chunks the job states."""
    if words.has(own):
        return as_written(words, own)
    num_layers, layers = _count(words, per_chunk), _count(words, "num_layers")
    stages = _count(words, "pipeline_model_parallel_size") or 1
    if isinstance(text := layout_text(words, "pipeline_model_parallel_layout", "mtp_num_layers"), str):
        of_layout = chunks_of_layout(text, stages)
        return of_layout if of_layout > 1 else None
    if not num_layers or layers is None:
        return as_written(words, per_rank)
    ends = [words.value(f"account_for_{end}_in_pipeline_split") for end in ("embedding", "loss")]
    return (layers + sum(map(bool, ends))) // stages // num_layers


def layout_text(words: Words, name: str, mtp_num_layers: str) -> Value:
    """Return the layout with its MTP layers; before megatron-core 0.16 it did not name them: they precede the loss."""
    text = as_written(words, name)
    if not isinstance(text, str):
        return text
    text = text.replace("\\", "").strip("'\"")
    try:
        parse_layout(text)
    except LayoutSyntaxError as error:
        words.refuse(name, f"{shortened(text)}: {error}", "write it as in Et*3|(tt|)*2L")
    return text if "m" in text else text.replace("L", "m" * (words.value(mtp_num_layers) or 0) + "L")


def aligned(words: Words, name: str, overlaps: str, *of_chunks: str) -> Value:
    """Return whether the stages gather parameters at the same time, which takes chunks."""
    return bool(words.value(name) and words.value(overlaps) and chunks(words, *of_chunks))


def shards(words: Words, fsdp: str, former: str, strategy: str) -> Value:
    """Return whether Megatron-FSDP shards weights, gradients and optimizer state, the one way that is modelled."""
    asked = any_of(words, fsdp, former)
    kept = words.value(strategy) if words.has(strategy) else None  # its default differs by version
    if asked and kept != "optim_grads_params":
        remedy = "use --data-parallel-sharding-strategy optim_grads_params"
        words.refuse(strategy, "Megatron-FSDP that keeps some of its states whole", remedy)
    return asked


def captured(words: Words, *names: str) -> Value:
    """Return the captured parts; none where nothing captures."""
    captures = words.holds("!cuda_graph_impl=none") or any_of(words, "enable_cuda_graph", "external_cuda_graph")
    return graph_parts(words, *names) if captures else ()
