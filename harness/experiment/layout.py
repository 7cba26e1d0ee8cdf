"""Computes the layers of every (pipeline rank, virtual stage), as megatron-core 0.16 does.

Source: `transformer_config.py`, `transformer_block.py` and `pipeline_parallel_layer_layout.py`.
"""

from harness.experiment.layout_text import Chunk, LayoutError, Stages, chunks_of_layout, legal_stages
from harness.experiment.model import ModelSpec, ParallelismSpec


def chunks(model: ModelSpec, parallelism: ParallelismSpec) -> Stages:
    """Return ``stages[pp_rank][vp_stage]``; LayoutError for the first problem, as in megatron-core."""
    layout = parallelism.pipeline_model_parallel_layout
    if layout is None and not _has_uneven_ends(parallelism) and not _has_accounting(parallelism):
        _check_interleaving(parallelism)  # the config checks no even split; the others it checks before groups exist
    if layout is not None:
        if _has_uneven_ends(parallelism) or _has_accounting(parallelism):
            raise LayoutError(
                "P11",
                "pipeline_model_parallel_layout already sets the layout; drop num_layers_in_* and account_for_*",
                "pipeline_model_parallel_layout cannot be set with other pipeline layout arguments.",
            )
        flat = [*legal_stages(model, parallelism, layout)]
    else:
        cut = _cut_with_uneven_ends if _has_uneven_ends(parallelism) else _cut_evenly
        sizes = cut(model, parallelism)
        flat = ["t" * stage[vp_stage] for vp_stage in range(len(sizes[0])) for stage in sizes]
        flat[0] = f"E{flat[0]}"
        flat[-1] += "m" * (model.mtp_num_layers or 0) + "L"  # after the first, which it may be
    _check_interleaving(parallelism)
    return _numbered(flat, parallelism.pipeline_model_parallel_size)


def _numbered(flat: list[str], pp: int) -> Stages:
    """Number the decoder layers of stages in the order of :func:`parse_layout`, which is that of megatron-core."""
    cut: list[list[Chunk]] = [[] for _ in range(pp)]
    first = 0
    for index, stage in enumerate(flat):
        size = stage.count("t")
        cut[index % pp].append(
            Chunk(tuple(range(first, first + size)), "E" in stage, "L" in stage, mtp_layers=stage.count("m"))
        )
        first += size
    return tuple(tuple(stage) for stage in cut)


def layout_problem(model: ModelSpec, parallelism: ParallelismSpec) -> LayoutError | None:
    """Return the error that :func:`chunks` would raise, or None."""
    try:
        chunks(model, parallelism)
    except LayoutError as problem:
        return problem
    return None


def num_virtual_stages(parallelism: ParallelismSpec) -> int:
    """Return the model chunks per pipeline rank, if need be from the layout string; 1 without interleaving."""
    if parallelism.virtual_pipeline_model_parallel_size or parallelism.pipeline_model_parallel_layout is None:
        return parallelism.num_virtual_stages
    return chunks_of_layout(parallelism.pipeline_model_parallel_layout, parallelism.pipeline_model_parallel_size)


def _has_uneven_ends(par: ParallelismSpec) -> bool:
    return par.num_layers_in_first_pipeline_stage is not None or par.num_layers_in_last_pipeline_stage is not None


def _has_accounting(par: ParallelismSpec) -> bool:
    return par.account_for_embedding_in_pipeline_split or par.account_for_loss_in_pipeline_split


def _check_interleaving(par: ParallelismSpec) -> None:
    if num_virtual_stages(par) > 1 and par.pipeline_model_parallel_size == 1:
        raise LayoutError(
            "A12",
            f"{num_virtual_stages(par)} virtual stages need pipeline_model_parallel_size > 1",
            "pipeline-model-parallel size should be greater than 1 with interleaved schedule",
        )


def _cut_evenly(model: ModelSpec, par: ParallelismSpec) -> list[list[int]]:
    """Cut into equal stages; embedding and loss may each count as one layer of the first and last chunk."""
    pp, vp = par.pipeline_model_parallel_size, par.num_virtual_stages
    extra = par.account_for_embedding_in_pipeline_split + par.account_for_loss_in_pipeline_split
    counted = model.num_layers + extra
    per_stage, left = divmod(counted, pp)
    if left:
        raise _uneven_stages(model.num_layers, extra, par)
    per_chunk, left = divmod(per_stage, vp)
    message = f"{per_stage} layers per pipeline stage are not a multiple of virtual_pipeline_model_parallel_size {vp}"
    if left and extra:
        text = (
            f"number of layers on each pipeline rank: {per_stage}(after enable account_for_embedding_in_pipeline_split "
            f"or account_for_loss_in_pipeline_split) must be divisible byvirtual_pipeline_model_parallel_size{vp}"
        )
        raise LayoutError("P16", f"{message} (embedding and loss counted)", text)
    if left:
        gap = " " * 13  # megatron-core's text carries the indentation of its source
        raise LayoutError(
            "P09", message, f"num_layers_per_pipeline_rank {per_stage}{gap}should be divisible by vp_size {vp}"
        )
    sizes = [[per_chunk] * vp for _ in range(pp)]
    sizes[0][0] -= par.account_for_embedding_in_pipeline_split
    sizes[-1][-1] -= par.account_for_loss_in_pipeline_split
    return sizes


def _uneven_stages(num_layers: int, extra: int, par: ParallelismSpec) -> LayoutError:
    pp = par.pipeline_model_parallel_size
    if not extra:
        return LayoutError(
            "P08",
            f"num_layers {num_layers} is not a multiple of pipeline_model_parallel_size {pp}",
            "should be divisible by",
        )
    counted = num_layers + extra
    text = f"number of middle layers: {counted} must be divisible by middle pipeline_model_parallel_size {pp}"
    if par.virtual_pipeline_model_parallel_size is not None:
        text = (
            f"num_layers: {counted} after enableaccount_for_embedding_in_pipeline_split or "
            f"account_for_loss_in_pipeline_split must be divisibleby pipeline_model_parallel_size {pp}"
        )
    message = f"num_layers {num_layers} and {extra} for embedding and loss make {counted}, not a multiple of PP {pp}"
    return LayoutError("P16", message, text)


def _cut_with_uneven_ends(model: ModelSpec, par: ParallelismSpec) -> list[list[int]]:
    """Cut with given sizes of the first and/or last stage; the other stages share the rest."""
    if _has_accounting(par):
        raise LayoutError(
            "P10",
            "num_layers_in_first/last_pipeline_stage and account_for_embedding/loss_in_pipeline_split exclude each "
            "other",
            "num_layers_in_first_pipeline_stage and num_layers_in_last_pipeline_stage cannot beset at the same time "
            "with account_for_embedding_in_pipeline_splitand account_for_loss_in_pipeline_split",
        )
    pp, vp = par.pipeline_model_parallel_size, par.num_virtual_stages
    first, last = par.num_layers_in_first_pipeline_stage, par.num_layers_in_last_pipeline_stage
    layers = model.num_layers - (first or 0) - (last or 0)
    stages = pp - (first is not None) - (last is not None)
    per_middle = layers // max(stages, 1)
    degree = f"must be divisible by virtual pipelineparallel degree {vp}"
    problems = {
        f"number of layers at first stage: {first}{degree}": (first or 0) % vp,
        f"number of layers at last stage: {last}{degree}": (last or 0) % vp,
        f"Mismatch: {layers} middle layers remaining but {stages} middle PP stages available.": (
            layers < 0 or stages < 0 or bool(layers) != bool(stages)
        ),
        f"number of layers at middle stage: {layers} must be divisible bythe middle pipeline model parallel size "
        f"{stages}": layers % max(stages, 1),
        f"number of layers on each middle pipeline rank:{per_middle} must be divisible by virtualpipeline parallel "
        f"degree {vp}": per_middle % vp,
    }
    for text, is_wrong in problems.items():
        if is_wrong:
            ends = " and ".join(f"{end} {size}" for end, size in (("first", first), ("last", last)) if size is not None)
            left = f"{stages} stages share the {layers} of num_layers {model.num_layers} that {ends} leave"
            degree = f", a multiple of VP {vp}" * (vp > 1)
            raise LayoutError("P15", f"{left}, and each needs the same number{degree}", text)
    sizes = [*([first] if first is not None else []), *[per_middle] * stages, *([last] if last is not None else [])]
    return [[size // vp] * vp for size in sizes]
