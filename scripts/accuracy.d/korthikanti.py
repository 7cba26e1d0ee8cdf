"""Korthikanti et al. 2022 as requests: their models, layouts and settings, and their formulas of saved activations."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from page import Page, signed, table
from published import Jobs, T, composed

from harness.experiment.experiment import ExperimentSpec
from harness.experiment.recompute import parse_recompute
from harness.launch.environment import Host
from harness.predict.compose import ChunkCost
from harness.predict.prediction import Prediction, predict
from harness.predict.search import Traces
from harness.predict.stages import Composer

Row = dict[str, Any]
Costs = tuple[tuple[ChunkCost, ...], ...]


def spec_of(row: Row, *, num_layers: int | None = None) -> ExperimentSpec:
    """Return the paper's GPT on A100: LayerNorm, GELU, biases, dropout, unfused attention; FP16 taken as BF16."""
    vpp = row["virtual_pipeline"]
    return ExperimentSpec.model_validate({
        "recipe": row["id"].lower(), "family": "gpt", "gpu": "a100", "num_gpus": row["num_gpus"], "gpus_per_node": 8,
        "compute_dtype": "bf16",
        "model": {
            "num_layers": num_layers or row["layers"], "hidden_size": row["hidden"], "ffn_hidden_size": 4 * row["hidden"],
            "num_attention_heads": row["heads"], "vocab_size": row["vocab"], "share_embeddings_and_output_weights": True,
            "gated_linear_unit": False, "activation_func": "gelu", "add_bias_linear": True, "normalization": "LayerNorm",
            "position_embedding_type": "learned_absolute", "attention_dropout": 0.1, "hidden_dropout": 0.1,
        },
        "parallelism": {
            "tensor_model_parallel_size": row["tensor_parallel"], "pipeline_model_parallel_size": row["pipeline_parallel"],
            "virtual_pipeline_model_parallel_size": vpp if vpp > 1 else None, "sequence_parallel": row["sequence_parallel"],
        },
        "batch": {
            "micro_batch_size": row["micro_batch_size"], "global_batch_size": row["global_batch_size"],
            "seq_length": row["seq_length"],
        },
        "recompute": parse_recompute(row["recompute"]), "optimizer": {"use_distributed_optimizer": False},
        "kernels": {
            "transformer_impl": "local", "attention_backend": "unfused", "gradient_accumulation_fusion": False,
            "cross_entropy_loss_fusion": False,
        },
    })  # fmt: skip


def made_of(specs: Iterable[ExperimentSpec], host: Host, make: Callable[[Composer, Traces], T]) -> list[T]:
    """Return what ``make`` makes of each request's composer, with the traces of local layers."""
    jobs: Jobs = {str(number): (spec, "local") for number, spec in enumerate(specs)}
    found, missing = composed(jobs, host, make)
    if missing:
        raise RuntimeError(f"not traced: {missing}")
    return [found[name] for name in jobs]


def costs_of(composer: Composer, traces: Traces) -> Costs:
    """Return the costs of a request's chunks."""
    return composer.chunk_costs(traces.even)


def whole(composer: Composer, traces: Traces) -> Prediction:
    """Return the request as `mbr-perf plan` predicts it."""
    return predict(composer.spec, composer.implementation, traces.even)


def of_layers(rows: Sequence[Row], host: Host, figure: Callable[[ExperimentSpec, Costs], float]) -> list[float]:
    """Return what one more layer adds to a figure, for each row."""
    specs = [spec for row in rows for spec in alone(row)]
    found = [figure(*each) for each in zip(specs, made_of(specs, host, costs_of), strict=True)]
    return [two - one for one, two in zip(found[::2], found[1::2], strict=True)]


def alone(row: Row) -> tuple[ExperimentSpec, ExperimentSpec]:
    """Return specs of one and two layers of the row's model on one tensor-parallel group."""
    small = row | {"num_gpus": row["tensor_parallel"], "pipeline_parallel": 1, "virtual_pipeline": 1}
    small |= {"global_batch_size": row["micro_batch_size"]}
    return spec_of(small, num_layers=1), spec_of(small, num_layers=2)


def formula_bytes(row: Row) -> float:
    """Return the bytes that one layer saves in 16-bit precision, by table 2 of the paper."""
    sbh: int = row["seq_length"] * row["micro_batch_size"] * row["hidden"]
    tp, split = int(row["tensor_parallel"]), row["sequence_parallel"]
    if row["recompute"].startswith("full"):
        return 2 * sbh / (tp if split else 1)
    scores: float = 0 if row["recompute"] == "core_attn" else 5 * row["heads"] * row["seq_length"] / row["hidden"]
    return sbh * (34 / tp + scores / tp) if split else sbh * (10 + 24 / tp + scores / tp)


def norm_bytes(row: Row) -> float:
    """Return the bytes of two LayerNorms' mean and reciprocal deviation in fp32, which the paper leaves out."""
    if row["recompute"].startswith("full"):
        return 0
    ways: int = row["tensor_parallel"] if row["sequence_parallel"] else 1
    tokens: int = row["seq_length"] * row["micro_batch_size"]
    return 2 * 2 * 4 * tokens / ways


def page(source: Path, host: Host) -> Page:
    """Compare the saved bytes per layer of every model and setting with the formulas."""
    read = json.loads(source.read_text())
    models = {row["layers"]: row for row in read["rows"] if row["id"].startswith("kor-fig1")}
    wanted = [
        model | {"sequence_parallel": sequence_parallel, "recompute": recompute}
        for model in models.values()
        for sequence_parallel in (False, True)
        for recompute in ("none", "core_attn", "full:uniform:1")
    ]
    saved = of_layers(wanted, host, lambda _, costs: costs[0][0].sizes.saved)
    rows = [_compared(*each) for each in zip(wanted, saved, strict=True)]
    num_exact = sum(row["exact"] for row in rows)
    headline = f"{num_exact} of {len(rows)} equal the formula to the byte, but for the statistics of LayerNorms."
    document = {"source": read["source"], "rows": rows}
    return Page("Saved activations per layer: Korthikanti et al. 2022", headline, document, _table(rows))


def _compared(row: Row, traced: float) -> Row:
    formula, norms = formula_bytes(row), norm_bytes(row)
    return {
        "model": row["id"].split("-")[2], "sequence_parallel": row["sequence_parallel"], "recompute": row["recompute"],
        "formula_bytes": formula, "norm_statistics_bytes": norms, "traced_bytes": traced,
        "exact": abs(traced - formula - norms) < 1,
    }  # fmt: skip


def _table(rows: list[Row]) -> list[str]:
    def cells(r: Row) -> tuple[str, ...]:
        formula, traced, norms = r["formula_bytes"], r["traced_bytes"], r["norm_statistics_bytes"]
        is_parallel = "yes" if r["sequence_parallel"] else "no"
        rest = signed((traced - formula - norms) / formula)
        return r["model"], is_parallel, r["recompute"], f"{formula / 1e6:.3f}", f"{traced / 1e6:.3f}", rest

    heads = "model, TP 8 | sequence parallel | recompute | formula MB: | traced MB: | beyond norms:"
    return table(heads, map(cells, rows))
