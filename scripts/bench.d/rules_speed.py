"""Measures the time of the rules for one request, on recipes' requests changed at random."""

import random
import time
from collections.abc import Iterator
from statistics import median, quantiles
from typing import Any

from pydantic import ValidationError
from result import Result

from harness.experiment.experiment import ExperimentSpec
from harness.experiment.gpu import GPUS, PRECISIONS
from harness.experiment.recompute import MODULES
from harness.experiment.rules.check import check
from harness.experiment.software import Software
from harness.resolve.find import all_recipe_files, recipes_dir
from harness.resolve.recipe import build_spec
from harness.resolve.recipe_file import load_recipe

REQUESTS = 10_000
GOAL_MS = 5.0
SEED = 1

MEGATRON_CORES = ("0.16.1", "0.17.1", "0.18.0", "0.19.2")
TRANSFORMER_ENGINES = (None, "2.9.0", "2.11.0")
SIZES = (1, 2, 4, 8)


def rules_speed() -> Result:
    """Measure median and 99th percentile of processor milliseconds; the goal is for the latter."""
    milliseconds, findings = list[float](), 0
    for spec, software in requests():
        began = time.thread_time()
        found = check(spec, software, env={})
        milliseconds.append((time.thread_time() - began) * 1000)
        findings += len(found)
    percentile = quantiles(milliseconds, n=100)[98]
    details: dict[str, object] = {
        "median_ms": round(median(milliseconds), 3),
        "p99_ms": round(percentile, 3),
        "max_ms": round(max(milliseconds), 3),
        "num_requests": len(milliseconds),
        "findings_per_request": round(findings / len(milliseconds), 2),
    }
    return Result(
        "rules_speed", "rules over one request, 99th percentile", round(percentile, 3), GOAL_MS, "CPU ms", details
    )


def requests() -> Iterator[tuple[ExperimentSpec, Software]]:
    """Yield REQUESTS requests, equal on every machine."""
    draw = random.Random(SEED)  # noqa: S311 (no secret)
    points = [
        build_spec(point.layer, point.place)
        for file in all_recipe_files(recipes_dir())
        for point in load_recipe(file.path, file.label).points
    ]
    made = 0
    while made < REQUESTS:
        try:
            spec = ExperimentSpec.model_validate(changed(draw.choice(points), draw))
        except ValidationError:
            continue  # an invalid request, which the rules cannot judge
        made += 1
        software = Software(
            megatron_core=draw.choice(MEGATRON_CORES), transformer_engine=draw.choice(TRANSFORMER_ENGINES)
        )
        yield spec, software


def changed(spec: ExperimentSpec, draw: random.Random) -> dict[str, Any]:
    """Return the fields of ``spec`` with another recompute setting and, each at even odds, other sections."""
    fields = spec.model_dump()
    fields["recompute"] = recompute(draw)
    if draw.random() < 0.5:
        for axis in ("tensor_model", "pipeline_model", "context", "expert_model"):
            fields["parallelism"][f"{axis}_parallel_size"] = draw.choice(SIZES)
        fields["num_gpus"] = draw.choice((1, 8, 64, 256))
    if draw.random() < 0.5:
        fields["gpu"], fields["compute_dtype"] = draw.choice(tuple(GPUS)), draw.choice(tuple(PRECISIONS))
    if draw.random() < 0.5:
        scope = draw.sample(("attn", "mlp", "moe", "moe_router", "moe_preprocess"), k=draw.randint(0, 2))
        fields["cuda_graph"] |= {"impl": draw.choice(("none", "local", "transformer_engine")), "scope": tuple(scope)}
    if draw.random() < 0.5:
        fields["kernels"] |= {
            "attention_backend": draw.choice(("auto", "flash", "fused", "unfused")),
            "moe_token_dispatcher_type": draw.choice(("alltoall", "allgather", "flex")),
            "moe_permute_fusion": draw.random() < 0.5,
            "moe_shared_expert_overlap": draw.random() < 0.5,
            "overlap_moe_expert_parallel_comm": draw.random() < 0.5,
        }
    if draw.random() < 0.2:
        fields["offload"]["cpu_offloading_num_layers"] = draw.randint(0, 4)
    return fields


def recompute(draw: random.Random) -> dict[str, Any]:
    """Draw no recompute, some modules, or whole layers."""
    kind = draw.choice(("none", "selective", "full"))
    if kind == "none":
        return {"granularity": "none"}
    if kind == "selective":
        modules = tuple(draw.sample(tuple(MODULES), k=draw.randint(1, 4)))
        return {"granularity": "selective", "modules": modules}
    method = draw.choice(("uniform", "block"))
    distribute = draw.random() < 0.3
    return {"granularity": "full", "method": method, "num_layers": draw.randint(1, 8),
            "distribute_saved_activations": distribute}  # fmt: skip
