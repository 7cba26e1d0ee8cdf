"""Peaks composed of small traces, against one step of each rank traced whole over megatron-core's own schedule."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.experiment.experiment import ExperimentSpec
from harness.experiment.recompute import parse_recompute
from harness.experiment.software import Software
from harness.launch.environment import this_host
from harness.predict.exact import ExactTracing, exact_peaks, exact_spec
from harness.predict.limits import Limits
from harness.predict.search import candidates, plan, required_cases
from harness.predict.stages import Composer
from harness.records.trace import ExactFile, ExactRequest, ExactStage

IMPLEMENTATION = "transformer_engine"
HERE = Path(__file__).parent
DENSE = {
    "num_layers": 8, "hidden_size": 1024, "ffn_hidden_size": 4096, "num_attention_heads": 16, "num_query_groups": 4,
    "vocab_size": 32000,
}  # fmt: skip
MOE = {
    **DENSE, "ffn_hidden_size": 2048,
    "moe": {
        "num_moe_experts": 8, "moe_router_topk": 2, "moe_ffn_hidden_size": 1024, "moe_layer_freq": (0, *(1,) * 7),
        "moe_grouped_gemm": True, "moe_router_force_load_balancing": True,
    },
}  # fmt: skip

IN_TURN = {**MOE, "num_layers": 12, "moe": {**MOE["moe"], "moe_layer_freq": 2}}
EVERY_MODULE = ("expert_fc1", "moe_act", "core_attn", "attn_norm", "mlp_norm", "qkv_linear", "attn_proj")


def spec_of(model, text, away=(), **parallelism) -> ExperimentSpec:
    sizes = {"tensor_model_parallel_size": 2, "sequence_parallel": True, **parallelism}
    per_copy = 2 * sizes.get("pipeline_model_parallel_size", 1)
    return ExperimentSpec(
        recipe="x", family="llama", gpu="h100", num_gpus=2 * per_copy, gpus_per_node=8, compute_dtype="bf16",
        model=model, parallelism=sizes, recompute=parse_recompute(text),
        batch={"micro_batch_size": 1, "global_batch_size": 16, "seq_length": 2048},
        kernels={"transformer_impl": IMPLEMENTATION}, offload={"offload_modules": away},
    )  # fmt: skip


PP2, PP4 = {"pipeline_model_parallel_size": 2}, {"pipeline_model_parallel_size": 4}
VP2 = PP2 | {"virtual_pipeline_model_parallel_size": 2}
DEFERRED = {"defer_embedding_wgrad_compute": True}
EP2 = {"expert_model_parallel_size": 2, "expert_tensor_parallel_size": 1}
CASES = {
    "dense without pipelining": spec_of(DENSE, "none"),
    "dense, four stages": spec_of(DENSE, "core_attn", **PP4),
    "dense, interleaved": spec_of(DENSE, "none", **VP2),
    "dense, interleaved, mlp": spec_of(DENSE, "mlp", **VP2),
    "dense, four stages interleaved, full": spec_of(DENSE, "full:uniform:1", **PP4, virtual_pipeline_model_parallel_size=2),
    "dense, interleaved, block": spec_of(DENSE, "full:block:1", **VP2),
    "dense, four stages, all weight gradients of the output layer deferred": spec_of(DENSE, "none", **PP4, **DEFERRED),
    "dense, two stages, two deferred": spec_of(DENSE, "core_attn", **PP2, **DEFERRED, wgrad_deferral_limit=2),
    "dense, two stages, outputs kept": spec_of(DENSE, "core_attn", **PP2, deallocate_pipeline_outputs=False),
    "dense, interleaved, outputs kept": spec_of(DENSE, "none", **VP2, deallocate_pipeline_outputs=False),
    "dense, interleaved, two deferred": spec_of(DENSE, "none", **VP2, **DEFERRED, wgrad_deferral_limit=2),
    "dense, interleaved by a layout": spec_of(DENSE, "none", **PP2, pipeline_model_parallel_layout="Ett|ttt|tt|tL"),
    "experts, two stages": spec_of(MOE, "none", **PP2, **EP2),
    "experts, interleaved": spec_of(MOE, "none", **VP2, **EP2),
    "experts, interleaved, activation": spec_of(MOE, "moe_act", **VP2, **EP2),
    "experts, interleaved, recomputed": spec_of(MOE, "moe", **VP2, **EP2),
    "experts without pipelining, full": spec_of(MOE, "full:uniform:1", **EP2),
    "experts, two stages, full": spec_of(MOE, "full:uniform:1", **PP2, **EP2),
    "experts, interleaved, full": spec_of(MOE, "full:uniform:1", **VP2, **EP2),
    "dense without pipelining, offloaded": spec_of(DENSE, "none", ("core_attn", "attn_proj")),
    "dense, four stages, offloaded": spec_of(DENSE, "mlp", ("core_attn", "attn_proj", "qkv_linear"), **PP4),
    "dense, interleaved, offloaded": spec_of(DENSE, "none", ("core_attn", "attn_proj"), **VP2),
    "experts, two stages, offloaded": spec_of(MOE, "moe_act", ("expert_fc1", "moe_act"), **PP2, **EP2),
    "dense and experts in turn, four stages, all modules offloaded": spec_of(IN_TURN, "none", EVERY_MODULE, **PP4, **EP2),
    "experts, interleaved, offloaded": spec_of(MOE, "none", ("expert_fc1", "core_attn"), **VP2, **EP2),
}  # fmt: skip

# One of each kind.
ON_EVERY_CHANGE = {
    "dense, interleaved, two deferred", "dense without pipelining, offloaded", "dense, four stages interleaved, full",
    "dense, interleaved, outputs kept", "dense, interleaved by a layout",
    "experts, two stages, offloaded", "experts, interleaved, recomputed",
}  # fmt: skip


@pytest.fixture(name="asked", scope="module")
def _asked(pytestconfig):
    return sorted(CASES if pytestconfig.getoption("--slow") else ON_EVERY_CHANGE)


@pytest.fixture(scope="module")
def composed(asked, tracing):
    """Chunk costs of every case that is asked for."""
    composers = {name: Composer(CASES[name], IMPLEMENTATION) for name in asked}
    cases = {case.key: case for composer in composers.values() for case in composer.cases()}
    traces = tracing.traces(tuple(cases.values()), IMPLEMENTATION)
    return {name: composer.chunk_costs(traces.even) for name, composer in composers.items()}


@pytest.fixture(scope="module")
def whole(asked, composed, tmp_path_factory):
    """One step of every rank of the same cases."""
    folder = tmp_path_factory.mktemp("whole")
    for number, name in enumerate(asked):
        request = ExactRequest(
            spec=exact_spec(CASES[name], IMPLEMENTATION), implementation=IMPLEMENTATION,
            pp_ranks=tuple(range(len(composed[name]))),
        )  # fmt: skip
        (folder / f"{number}.json").write_text(request.model_dump_json())
    done = subprocess.run(
        [sys.executable, HERE / "scripts" / "whole_steps.py", folder], check=False, capture_output=True, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parents[1])}, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    answers = ((folder / f"{number}.answer").read_text() for number in range(len(asked)))
    return dict(zip(asked, map(ExactFile.model_validate_json, answers), strict=True))


@pytest.mark.train
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in ON_EVERY_CHANGE else [pytest.mark.long]) for name in CASES]
)
def test_a_composed_peak_is_that_of_a_step_traced_whole(composed, whole, name):
    spec, costs, answer = CASES[name], composed[name], whole[name]
    assert answer.refused is None
    assert [stage.num_parameters for stage in answer.stages] == [
        sum(chunk.parameters.dense + chunk.parameters.expert for chunk in chunks) for chunks in costs
    ]
    peaks = exact_peaks(spec, costs, {stage.pp_rank: stage for stage in answer.stages}, {})
    assert {peak.pp_rank: peak.error for peak in peaks} == {
        pp_rank: pytest.approx(0, abs=0.01) for pp_rank in range(len(costs))
    }


def test_what_was_not_traced_has_its_reason_and_no_figure(by_hand):
    spec = spec_of(DENSE, "none", **PP2)
    composer = Composer(spec, IMPLEMENTATION)
    costs = composer.chunk_costs(by_hand(composer.cases()).even)
    traced = ExactStage(pp_rank=0, peak_bytes=7, num_parameters=1, seconds=1.0)
    first, second = exact_peaks(spec, costs, {0: traced}, {1: "too late"})
    assert (first.problem, second.problem) == (None, "too late")
    assert first.error > 0
    assert (second.exact_bytes, second.error) == (None, None)
    assert second.composed_bytes > second.optimizer_step_bytes > 0


# Traces every stage but stage 3, which it refuses.
SCRIPTED = """import json, sys
ranks = json.load(open(sys.argv[sys.argv.index("--request") + 1]))["pp_ranks"]
stages = [dict(pp_rank=rank, peak_bytes=7, num_parameters=1, seconds=1.0) for rank in ranks if rank != 3]
answer = dict(stages=stages, refused="not this one" if 3 in ranks else None)
open(sys.argv[sys.argv.index("--out") + 1], "w").write(json.dumps(answer))
"""


def _traced_by(script, by_hand, program, **limit):
    host = replace(this_host(), python=program(script, sys.executable), num_cores=1)
    spec = spec_of(DENSE, "none", **PP4)
    software = Software(transformer_engine="2.11")
    found = candidates(spec, software, IMPLEMENTATION)
    traces = by_hand(required_cases(found, IMPLEMENTATION, software))
    planned = plan(spec, found, traces, Limits(None), IMPLEMENTATION, software)
    (setting,) = ExactTracing(host, IMPLEMENTATION, software, **limit).settings(planned, ("none",), traces)
    return setting


def test_a_whole_step_that_takes_too_long_says_so(by_hand, program):
    setting = _traced_by("import time\ntime.sleep(60)", by_hand, program, timeout_s=0.2)
    assert [peak.problem for peak in setting.stages] == ["not traced within 0.2 s"] * 4


@pytest.mark.parametrize(("script", "traced", "problem"), [
    (SCRIPTED, [0, 1, 2], "not this one"), ("raise TypeError('killed by the test')", [], "TypeError: killed by the test")
])  # fmt: skip
def test_a_stage_that_is_refused_or_kills_the_tracer_has_the_reason(by_hand, program, script, traced, problem):
    setting = _traced_by(script, by_hand, program)
    assert [peak.pp_rank for peak in setting.stages if peak.exact_bytes is not None] == traced
    assert setting.stages[3].problem.endswith(problem)
