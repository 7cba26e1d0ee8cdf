"""Each adaptation of megatron-core that says it is needed is: a run that has all trains, the same without it does not."""

import json
from importlib.metadata import version

import pytest

from harness.engine.cpu_backend import CPU_ADAPTATIONS, LOCAL_ADAPTATIONS
from harness.units import parse_version
from tests.engine import shapes
from tests.engine.conftest import RANKS, answer_of, run_forked

pytestmark = [pytest.mark.train, pytest.mark.slow]

DENSE = shapes.experiment(shapes.DENSE, "layernorm")
DROPOUT = shapes.experiment(shapes.DENSE, "mlp", dropout=0.1)
PIPELINE = shapes.experiment(shapes.DENSE, num_gpus=2, pipeline_model_parallel_size=2)
EXPERTS = shapes.experiment(shapes.MIXTRAL, num_gpus=2, expert_model_parallel_size=2)
GROUPED = shapes.experiment(shapes.GROUPED, "moe_act", dtype="bf16")
DEEPSEEK = shapes.experiment(shapes.DEEPSEEK, "mla_up_proj", attention="unfused")
QWEN3_NEXT = shapes.experiment(shapes.QWEN3_NEXT)

# A torch built for CUDA says other things on a machine without a GPU than one built without.
NO_CUDA = (
    "AssertionError: Torch not compiled with CUDA enabled",
    "RuntimeError: Cannot re-initialize CUDA in forked subprocess",
    "RuntimeError: Found no NVIDIA driver on your system",
)
NO_STREAM = (
    "RuntimeError: torch.cuda.Stream requires CUDA support",
    "torch.AcceleratorError: CUDA error: CUDA driver",
    "RuntimeError: CUDA error: CUDA driver",  # torch 2.6
)
# torch 2.6 has another name for it
NO_TENSORS_OF_SIZES = tuple(
    f"TypeError: {name}(): incompatible function" for name in ("all_to_all_single", "alltoall_base")
)
# Adaptation -> a small run that needs it, and how that run ends without it.
NEEDED_BY = {
    "device_is_cpu": (DENSE, NO_CUDA),
    "rng_is_cpu": (DROPOUT, NO_CUDA),
    "cuda_literals_are_cpu": (DENSE, NO_CUDA),
    "tensor_type_is_cuda": (DENSE, "TypeError: Wrapped parameters must be one of torch.cuda.FloatTensor"),
    "no_cuda_sync": (PIPELINE, NO_CUDA),
    "streams_are_inert": (EXPERTS, NO_STREAM),
    "split_sizes_are_numpy": (EXPERTS, NO_TENSORS_OF_SIZES),
    "grouped_gemm_is_matmul": (GROUPED, "AssertionError: Grouped GEMM is not available"),
    "checkpoint_without_output_fp8": (DENSE, "NameError: name 'FP8GlobalStateManager' is not defined"),
    "router_gemm": (EXPERTS, "NameError: name 'te_general_gemm' is not defined"),
    "mla_knows_te_is_absent": (DEEPSEEK, "TypeError: isinstance() arg 2 must be a type"),
    "delta_rule_is_torch": (QWEN3_NEXT, "ImportError: FLA is not installed"),
    "no_layer_is_for_inference": (DEEPSEEK, "TypeError: isinstance() arg 2 must be a type"),
}
# First release that it is not needed in, or that it is needed in.
NEEDED_UNTIL = {"router_gemm": "0.17", "mla_knows_te_is_absent": "0.17", "grouped_gemm_is_matmul": "0.17"}
NEEDED_SINCE = {"no_layer_is_for_inference": "0.20"}


@pytest.fixture(name="results", scope="module")
def _results(tmp_path_factory):
    """What the program of ranks wrote: ``with_all.<number>`` names the runs that leave nothing out."""
    folder = tmp_path_factory.mktemp("leave_one_out")
    cases = [
        {"name": name, "without": name, "spec": json.loads(spec.model_dump_json())}
        for name, (spec, _) in NEEDED_BY.items()
    ]
    whole = {json.dumps(case["spec"]): case["spec"] for case in cases}
    cases += [{"name": f"with_all.{i}", "without": None, "spec": spec} for i, spec in enumerate(whole.values())]
    (folder / "cases.json").write_text(json.dumps(cases))
    answer_of(RANKS / "leave_one_out.py", folder / "cases.json", folder / "out.json", start=run_forked)
    return json.loads((folder / "out.json").read_text())


@pytest.fixture(name="outcomes", scope="module")
def _outcomes(results):
    """Name of the adaptation left out -> "trained" or an error."""
    return results["outcomes"]


def test_every_adaptation_has_a_run_that_needs_it():
    rows = (*CPU_ADAPTATIONS, *LOCAL_ADAPTATIONS)
    assert {row.name for row in rows} == set(NEEDED_BY)
    assert all(row.reason for row in rows)


def test_the_runs_train_with_all_adaptations(outcomes):
    whole = {name: outcome for name, outcome in outcomes.items() if name.startswith("with_all")}
    assert len(whole) == 7
    assert {name: outcome for name, outcome in whole.items() if outcome != "trained"} == {}


@pytest.mark.parametrize("adaptation", NEEDED_BY)
def test_where_it_is_needed_the_run_without_it_fails_and_elsewhere_trains(results, outcomes, adaptation):
    ends = NEEDED_BY[adaptation][1] if adaptation in results["needed"] else "trained"
    assert outcomes[adaptation].startswith(ends)


def test_every_release_needs_those_that_it_is_listed_to_need(results):
    installed = parse_version(version("megatron-core"))
    spared = {name for name, until in NEEDED_UNTIL.items() if installed >= parse_version(until)}
    spared |= {name for name, since in NEEDED_SINCE.items() if installed < parse_version(since)}
    assert set(NEEDED_BY) - set(results["needed"]) == spared
