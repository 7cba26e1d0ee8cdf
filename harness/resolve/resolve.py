"""Resolves a recipe and options into an experiment."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from harness.errors import Problems
from harness.experiment.balanced_layout import balanced_layout
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.gpu import GPUS
from harness.experiment.layout import layout_problem, num_virtual_stages
from harness.experiment.layout_text import LayoutSyntaxError
from harness.experiment.software import ALLOCATOR_NAMES
from harness.records.reading import PlainValue
from harness.resolve.find import open_recipe
from harness.resolve.options import options_layer, with_num_layers
from harness.resolve.points import Choice, check_names, choose_point, data_parallel_size, only_gpu_point, weak_scaled
from harness.resolve.recipe import (
    ASSUMED,
    LAID_OUT,
    NO_EFFECT,
    STDIN,
    Layer,
    OperatingPoint,
    Recipe,
    Request,
    Setting,
    build_spec,
    merge,
    sources_of,
)
from harness.units import format_bytes

_LAYOUT = "parallelism.pipeline_model_parallel_layout"
_ALIGNED = "ddp.align_param_gather"  # needs virtual stages
_FREQ = "model.moe.moe_layer_freq"
_ATTENTION = ("model.window_attn_skip_freq", "model.no_rope_freq", "model.linear_attention.linear_attention_freq")
_GBS = "batch.global_batch_size"
_PP, _VP = "parallelism.pipeline_model_parallel_size", "parallelism.virtual_pipeline_model_parallel_size"
_DEPTH = "model.num_layers"
_SPLIT = {_PP: "-pp", _VP: "-vp", _DEPTH: "--num_layers"}
_TP, _CP = "parallelism.tensor_model_parallel_size", "parallelism.context_parallel_size"
_EXCHANGE = "parallelism.cp_comm_type"
_QUEUES = "env.CUDA_DEVICE_MAX_CONNECTIONS"


@dataclass(frozen=True)
class Resolved:
    """A spec, the source of each leaf and of the options that selected the point, and notes for the user."""

    spec: ExperimentSpec
    sources: dict[str, str]
    notes: tuple[str, ...]


def resolve(request: Request, *, starts: bool = False) -> Resolved:
    """Merge default < recipe < operating point < option, leaf by leaf. BadRequestError with all problems.

    ``starts``: mbr-perf starts the job, not a launcher of its own.
    """
    problems = Problems()
    recipe = problems.tried(lambda: recipe_of(request))
    if recipe is None:
        problems.tried(lambda: check_names(request))
        options_layer(request, problems)
    return resolve_recipe(problems.having(recipe), request, starts=starts)


def recipe_of(request: Request) -> Recipe:
    """Read the recipe of a request, or the file of another program that describes its job."""
    if request.source is not None:
        from harness.foreign.open import open_foreign  # 20 ms that no recipe needs

        return open_foreign(request.source, request)
    return open_recipe(request.model_recipe_name, request.recipes_dir, request.model_family_name)


def on_gpu_point(request: Request) -> tuple[Request, OperatingPoint]:
    """Complete a request without GPU type by the only matching GPU point; return both. BadRequestError."""
    problems = Problems()
    options_layer(request, problems)
    problems.tried(lambda: check_names(replace(request, gpu="cpu")))
    if request.source is not None:
        problems.tried(lambda: recipe_of(replace(request, gpu="h100")))  # what else is wrong with the file
        problems.add(f"{request.source.label}: names no GPU type", "add it, e.g. -g h100")
        problems.raise_if_any()
    point = only_gpu_point(problems.having(problems.tried(lambda: recipe_of(request))), request)
    key = point.key
    chosen = replace(request, gpu=key.gpu, task=key.task, compute_dtype=key.compute_dtype, variant=key.variant)
    return chosen, point


def resolve_recipe(recipe: Recipe, request: Request, *, starts: bool = False) -> Resolved:
    """Do as :func:`resolve`, for a recipe that is already read."""
    problems = Problems()
    choice = problems.tried(lambda: choose_point(recipe, request))
    options = options_layer(request, problems)
    if choice is None:
        problems.raise_if_any()
    assert choice is not None  # otherwise there were problems
    layer: Layer = merge(choice.point.layer, _identity(request, choice), options)
    layer = layer if starts else merge(_of_launcher(request, layer), layer)
    layer, notes = _follow_num_layers(layer), tuple[str, ...]()
    spec = problems.having(problems.tried(lambda: build_spec(layer, choice.point.place)))
    follows = (_follow_stages, _follow_vp, _follow_alignment, _follow_context)
    for follow in (*follows, _follow_exchange, _follow_queues, _follow_num_gpus):
        changed, note = follow(layer, spec, choice)
        if changed:
            layer = merge(layer, changed)
            spec, notes = build_spec(layer, choice.point.place), (*notes, *([note] if note else ()))
    layer_notes = [s.note for s in layer.values() if s.note and not s.option]
    about = [f"{choice.point.place}: {choice.point.key.note}"] if choice.point.key.note else []
    limit = spec.measure.memory_limit_bytes
    limited = [] if limit is None else [f"memory limit in force: {format_bytes(limit)} per rank"]
    notes = (*choice.notes, *about, *layer_notes, *_assumed(layer), *notes, *limited)
    return Resolved(spec, sources_of(spec, layer) | _selection(request), notes)


def _of_launcher(request: Request, layer: Layer) -> Layer:
    """Return torch's default for a job whose own launcher sets nothing of the allocator, as ours would."""
    is_own = request.source is not None and request.source.kind != "hf" and not request.trains_by_bridge
    if not is_own or request.gpu == "cpu" or any(f"env.{name}" in layer for name in ALLOCATOR_NAMES):
        return {}
    return {f"env.{ALLOCATOR_NAMES[0]}": Setting("", "torch's default")}


def _assumed(layer: Layer) -> Iterator[str]:
    assumed = [setting for setting in layer.values() if setting.option]
    values, options = (", ".join(each.note for each in assumed), " ".join(each.option for each in assumed))
    if assumed:
        yield f"{ASSUMED}: {values}; change with {options}"


def _selection(request: Request) -> dict[str, str]:
    """Return the options that only select the point, with their values: no leaf has them as source."""
    where = request.recipes_dir.absolute() if request.recipes_dir else None
    given = {"point_gpu": request.point_gpu, "variant": request.variant, "recipes_dir": where}
    if request.source is not None and request.source.path != STDIN:
        given[request.source.kind] = Path(request.source.path).absolute()
    return {name: f"--{name} {value}" for name, value in given.items() if value is not None}


def _identity(request: Request, choice: Choice) -> Layer:
    names = ("gpu", "num_gpus", "compute_dtype", "task")
    given = {name: value for name in names if (value := getattr(request, name)) is not None}
    settings = {name: Setting(value, f"--{name}") for name, value in given.items()}
    if request.point_gpu is not None and request.gpu != choice.point.key.gpu:
        settings["gpus_per_node"] = Setting(GPUS[request.gpu].gpus_per_node, "default")
    return settings


def _follow_num_layers(layer: Layer) -> Layer:
    """Apply a depth: the MoE pattern keeps its leading dense layers, patterns of attention repeat."""
    depth = layer.get(_DEPTH)
    if depth is None or not depth.from_command_line or not isinstance(depth.value, int) or depth.value < 1:
        return layer
    changed = {
        path: Setting(_of_depth(path, pattern.value, depth.value), depth.source)
        for path in (_FREQ, *_ATTENTION)
        if (pattern := layer.get(path)) and isinstance(pattern.value, tuple) and not pattern.from_command_line
    }
    return merge(layer, changed)


def _of_depth(path: str, pattern: tuple[PlainValue, ...], depth: int) -> tuple[PlainValue, ...]:
    if path == _FREQ:
        return with_num_layers(tuple(kind for kind in pattern if isinstance(kind, int)), depth)
    return (pattern * depth)[:depth]


_Followed = tuple[Layer, str]  # the changed settings, and a note or nothing


def _given(layer: Layer, path: str) -> bool:
    return path in layer and layer[path].from_command_line


def _follow_stages(layer: Layer, spec: ExperimentSpec, _choice: Choice) -> _Followed:
    """Replace the point's pipeline layout, if it can be read, where options ask for other stages or layers."""
    p, given = spec.parallelism, [path for path in _SPLIT if _given(layer, path)]
    text, interleaves = p.pipeline_model_parallel_layout, p.virtual_pipeline_model_parallel_size or _VP not in given
    problem = layout_problem(spec.model, p)
    stays = isinstance(problem.__cause__, LayoutSyntaxError) if problem else interleaves or num_virtual_stages(p) == 1
    if not text or not given or _given(layer, _LAYOUT) or stays:
        return {}, ""
    new, why = balanced_layout(spec), " ".join(f"{_SPLIT[path]} {layer[path].value or 'none'}" for path in given)
    return {_LAYOUT: Setting(new, layer[given[0]].source)}, f"{LAID_OUT}: {new or 'even'} instead of {text} ({why})"


def _follow_vp(layer: Layer, spec: ExperimentSpec, _choice: Choice) -> _Followed:
    """Set the virtual size that megatron-core reads from a layout; drop the point's where -pp 1 leaves one stage."""
    p, pp, of_pp = spec.parallelism, spec.parallelism.pipeline_model_parallel_size, _given(layer, _PP)
    is_dropped = pp == 1 and of_pp and not _given(layer, _VP)
    of_layout = p.num_virtual_stages if layout_problem(spec.model, p) else num_virtual_stages(p)
    if (vp := 1 if is_dropped else of_layout) == p.num_virtual_stages:
        return {}, ""
    source = layer[_PP if of_pp else _LAYOUT].source
    why = f"without VP {p.num_virtual_stages}" if is_dropped else f"{pp * vp} chunks, so VP {vp} (-vp sets it)"
    return {_VP: Setting(None if is_dropped else vp, source)}, f"{LAID_OUT} on PP {pp}: {why}" if of_pp else ""


def _follow_alignment(layer: Layer, spec: ExperimentSpec, _choice: Choice) -> _Followed:
    """Drop the point's ``align_param_gather``, which needs virtual stages, if -pp, -vp or --num_layers leave none."""
    given = [path for path in _SPLIT if _given(layer, path)]
    needed = num_virtual_stages(spec.parallelism) > 1 or not spec.ddp.align_param_gather
    if not given or needed or _given(layer, _ALIGNED):
        return {}, ""
    why = f"no virtual stages ({' '.join(_SPLIT[path] for path in given)})"
    return {_ALIGNED: Setting(False, layer[given[0]].source)}, f"{NO_EFFECT}: {_ALIGNED}: {why}"


def _follow_context(layer: Layer, spec: ExperimentSpec, choice: Choice) -> _Followed:
    """Lower the point's context parallelism to what another number of GPUs allows."""
    cp = spec.parallelism.context_parallel_size
    others = spec.parallelism.model_parallel_size // cp
    fits = [size for size in range(1, cp + 1) if cp % size == spec.num_gpus % (others * size) == 0]
    if spec.num_gpus == choice.point.key.num_gpus or not fits or fits[-1] == cp or _given(layer, _CP):
        return {}, ""
    note = f"context parallelism {cp} lowered to {fits[-1]}: {spec.num_gpus} GPUs (-cp sets it)"
    return {_CP: Setting(fits[-1], "--num_gpus")}, note


def _follow_exchange(_layer: Layer, spec: ExperimentSpec, _choice: Choice) -> _Followed:
    """Drop how ranks of context parallelism exchange where there are none: the fingerprint is that of a job without."""
    kind = spec.parallelism.cp_comm_type
    if kind == "p2p" or spec.parallelism.context_parallel_size > 1:
        return {}, ""
    return {_EXCHANGE: Setting("p2p", "default")}, f"{NO_EFFECT}: {_EXCHANGE}={kind}: context parallelism is 1"


def _follow_queues(layer: Layer, spec: ExperimentSpec, choice: Choice) -> _Followed:
    """Drop the point's single hardware queue, which orders TP and CP communication, where options leave none of it."""
    queues, of_point = layer.get(_QUEUES), choice.point.layer
    was_split = any(path in of_point and of_point[path].value != 1 for path in (_TP, _CP))
    is_split = spec.parallelism.tensor_model_parallel_size * spec.parallelism.context_parallel_size > 1
    if queues is None or queues.from_command_line or queues.value not in (1, "1") or is_split or not was_split:
        return {}, ""
    return {_QUEUES: Setting(None, "--num_gpus")}, ""


def _follow_num_gpus(layer: Layer, spec: ExperimentSpec, choice: Choice) -> _Followed:
    """Scale the point's global batch size to another number of data-parallel copies.

    Leaves that the point lacks have their value of ``layer``: a file of another program may leave them to options.
    """
    key = choice.point.key
    if spec.num_gpus == key.num_gpus or _given(layer, _GBS):
        return {}, ""
    asked = {path: setting for path, setting in layer.items() if not path.startswith("parallelism.")}
    published = build_spec(merge(asked, choice.point.layer), choice.point.place)
    if key.num_gpus % published.parallelism.model_parallel_size:
        return {}, ""
    base = data_parallel_size(published.parallelism, key.num_gpus)
    now = data_parallel_size(spec.parallelism, spec.num_gpus)
    before = published.batch.global_batch_size
    scaled = weak_scaled(before, base, now)
    if scaled == before:
        return {}, ""
    note = f"global batch size {before} scaled to {scaled}: {now} data-parallel copies instead of {base} (-gb sets it)"
    return {_GBS: Setting(scaled, "--num_gpus")}, note


def resolve_point(recipe: Recipe, point: OperatingPoint) -> ExperimentSpec:
    """Resolve one point as its own options would select it."""
    key = point.key
    request = Request(
        model_recipe_name=recipe.header.name,
        gpu=key.gpu,
        task=key.task,
        compute_dtype=key.compute_dtype,
        num_gpus=key.num_gpus,
        variant=key.variant,
    )
    return resolve_recipe(recipe, request).spec
