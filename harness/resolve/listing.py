"""Lists recipes with the size of each model, and checks recipe files."""

from collections import Counter
from pathlib import Path

from typing_extensions import TypedDict

from harness.errors import BadRequestError, Problems, nearest
from harness.experiment.gpu import GPUS
from harness.experiment.model import LinearAttentionModel, ModelSpec, MoeModel, has_experts
from harness.experiment.recompute import canonical_text
from harness.experiment.rules.check import check
from harness.experiment.software import ASSUMED_MEGATRON_CORE, ASSUMED_TRANSFORMER_ENGINE, Software
from harness.resolve.find import RecipeFile, all_recipe_files, check_names, recipes_dir
from harness.resolve.recipe import LEAVES, OperatingPoint, Recipe, build_spec
from harness.resolve.recipe_file import load_recipe
from harness.resolve.resolve import resolve_point


def parameter_count(model: ModelSpec) -> int:
    """Count the parameters without learned positions and multi-token prediction.

    >>> round(parameter_count(ModelSpec(num_layers=32, hidden_size=4096, ffn_hidden_size=14336, num_attention_heads=32,
    ...     num_query_groups=8, vocab_size=128256)) / 1e6)
    8030
    """
    embeddings = 1 if model.share_embeddings_and_output_weights else 2
    total = embeddings * model.vocab_size * model.hidden_size + _norm(model)
    for kind, number in Counter(model.layer_kinds).items():
        net = model.linear_attention if kind.startswith("delta") else None
        attention = _delta_net(model, net) if net else _attention(model)
        moe = model.moe if has_experts(kind) else None
        feed_forward = _moe(model, moe) if moe else _mlp(model, model.ffn_hidden_size)
        total += number * (attention + feed_forward + 2 * _norm(model))
    return total


def _norm(model: ModelSpec) -> int:
    return model.hidden_size * (2 if model.normalization == "LayerNorm" else 1)


def _attention(model: ModelSpec) -> int:
    hidden, heads = model.hidden_size, model.num_attention_heads
    if model.mla:
        mla = model.mla
        queries = heads * (mla.qk_head_dim + mla.qk_pos_emb_head_dim)
        keys_values = heads * (mla.qk_head_dim + mla.v_head_dim)
        rank = mla.q_lora_rank
        down_up = hidden * rank + rank + rank * queries if rank else hidden * queries
        compressed = hidden * (mla.kv_lora_rank + mla.qk_pos_emb_head_dim) + mla.kv_lora_rank
        return down_up + compressed + mla.kv_lora_rank * keys_values + heads * mla.v_head_dim * hidden
    context, keys_values = heads * model.head_dim, 2 * model.query_groups * model.head_dim
    projected = context * (2 if model.attention_output_gate else 1) + keys_values
    biases = projected if model.add_bias_linear or model.add_qkv_bias else 0
    biases += hidden if model.add_bias_linear else 0
    sinks = heads if model.softmax_type == "learnable" else 0
    norms = 2 * model.head_dim if model.qk_layernorm else 0
    return hidden * (projected + context) + biases + sinks + norms


def _delta_net(model: ModelSpec, net: LinearAttentionModel) -> int:
    projections = model.hidden_size * (net.projected_channels + net.value_channels)
    convolution = net.linear_conv_kernel_dim * (2 * net.key_channels + net.value_channels)
    of_heads = 2 * net.linear_num_value_heads + net.linear_value_head_dim  # time steps, decays, the output's norm
    return projections + convolution + of_heads


def _mlp(model: ModelSpec, ffn_hidden_size: int) -> int:
    width = ffn_hidden_size * (2 if model.gated_linear_unit else 1)
    biases = width + model.hidden_size if model.add_bias_linear else 0
    return model.hidden_size * (width + ffn_hidden_size) + biases


def _moe(model: ModelSpec, moe: MoeModel) -> int:
    shared = moe.moe_shared_expert_intermediate_size
    gate = model.hidden_size if moe.moe_shared_expert_gate else 0
    return (
        (model.hidden_size + (1 if model.add_bias_linear else 0)) * moe.num_moe_experts
        + moe.num_moe_experts * _mlp(model, moe.moe_ffn_hidden_size)
        + (_mlp(model, shared) + gate if shared else 0)
    )


class GpuRow(TypedDict):
    """What a recipe has for one GPU type."""

    tasks: list[str]
    compute_dtypes: list[str]
    num_gpus: list[int]


class RecipeRow(TypedDict):
    """One recipe of the list."""

    recipe: str
    family: str
    title: str
    parameters_billion: float
    gpus: dict[str, GpuRow]


def full_model(recipe: Recipe) -> ModelSpec:
    """Return the model at full size: that of the first point on a GPU, else of the first point."""
    point = next((p for p in recipe.points if p.key.gpu != "cpu"), recipe.points[0])
    return build_spec(point.layer, point.place).model


def summary(recipe: Recipe) -> RecipeRow:
    """Summarise a recipe: name, size, and the GPUs, precisions and counts of the operating points."""
    gpus: dict[str, GpuRow] = {}
    for point in recipe.points:
        row = gpus.setdefault(point.key.gpu, {"tasks": [], "compute_dtypes": [], "num_gpus": []})
        for values, value in ((row["tasks"], point.key.task), (row["compute_dtypes"], point.key.compute_dtype)):
            if value not in values:
                values.append(value)
        row["num_gpus"] = sorted({*row["num_gpus"], point.key.num_gpus})
    header = recipe.header
    return {
        "recipe": header.name,
        "family": header.family,
        "title": header.title,
        "parameters_billion": round(parameter_count(full_model(recipe)) / 1e9, 3),
        "gpus": gpus,
    }


def summaries(directory: Path | None, gpu: str | None = None) -> list[RecipeRow]:
    """Summarise every recipe of the directory; with ``gpu`` only recipes and points of that GPU type."""
    if gpu is not None and gpu not in GPUS:
        raise BadRequestError(f"--gpu {gpu!r}: no such GPU type", remedy=nearest(gpu, GPUS))
    rows: list[RecipeRow] = []
    for file in all_recipe_files(recipes_dir(directory)):
        recipe = load_recipe(file.path, file.label)
        check_names(recipe, file)
        rows.append(summary(recipe))
    if gpu is None:
        return rows
    return [{**row, "gpus": {gpu: row["gpus"][gpu]}} for row in rows if gpu in row["gpus"]]


def model_settings(recipe: Recipe) -> dict[str, object]:
    """Return the model settings that the recipe states, at full size, by path below ``model``."""
    point = next((p for p in recipe.points if p.key.gpu != "cpu"), recipe.points[0])
    stated = {path: s.value for path, s in point.layer.items() if path.startswith("model.")}
    return {path.removeprefix("model."): stated[path] for path in LEAVES if path in stated}


def point_row(point: OperatingPoint) -> dict[str, object]:
    """Return the settings of an operating point, flat."""
    spec = build_spec(point.layer, point.place)
    graph = spec.cuda_graph
    return {
        "task": point.key.task,
        "gpu": point.key.gpu,
        "compute_dtype": point.key.compute_dtype,
        "num_gpus": point.key.num_gpus,
        "variant": point.key.variant,
        **spec.parallelism.model_dump(),
        **spec.batch.model_dump(),
        "recompute": canonical_text(spec.recompute),
        "cuda_graph": ":".join([graph.impl, *([",".join(graph.scope)] if graph.scope else [])]),
        "source": point.key.source,
        "note": point.key.note,
        "inconsistent": list(point.key.inconsistent),
    }


class RefusedPoint(TypedDict):
    """A point that breaks a rule."""

    point: str
    rule: str
    message: str


class CheckedFile(TypedDict):
    """One file: its points, those listed as inconsistent upstream, and those that a rule refuses."""

    file: str
    points: int
    inconsistent: list[str]
    refused: list[RefusedPoint]


def check_files(paths: list[Path], directory: Path | None) -> tuple[list[CheckedFile], list[BadRequestError]]:
    """Check files (all recipes when ``paths`` is empty): schema, names, that every runnable point resolves, and rules.

    A point that breaks a rule of megatron-core 0.16.1 is no problem but a row under ``refused``: it is published, and
    another release may accept it.
    """
    files = [RecipeFile(path, str(path), None, None) for path in paths] or all_recipe_files(recipes_dir(directory))
    problems = Problems()
    checked: list[CheckedFile] = []
    for file in files:
        with problems.collecting():
            recipe = load_recipe(file.path, file.label)
            check_names(recipe, file)
            refused: list[RefusedPoint] = []
            for point in recipe.points:
                with problems.collecting():
                    refused += refusals(recipe, point)
            listed = [point.title for point in recipe.points if point.key.inconsistent]
            checked.append(
                {"file": file.label, "points": len(recipe.points), "inconsistent": listed, "refused": refused}
            )
    return checked, problems.found


def refusals(recipe: Recipe, point: OperatingPoint) -> list[RefusedPoint]:
    """Return the errors of the rule table at one point; none for a point that its file marks as inconsistent."""
    if point.key.inconsistent:
        return []
    software = Software(megatron_core=ASSUMED_MEGATRON_CORE, transformer_engine=ASSUMED_TRANSFORMER_ENGINE)
    findings = check(resolve_point(recipe, point), software)
    return [
        {"point": point.title, "rule": finding.id, "message": finding.message} for finding in findings if finding.blocks
    ]
