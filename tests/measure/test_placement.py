"""The coordinates of a rank that did not record them."""

import json
import os
import subprocess
import sys

import pytest

from harness.records.rank import Coordinates, coordinates, placed

SIZES = [
    {"tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 4},
    {"tensor_model_parallel_size": 2, "context_parallel_size": 2, "pipeline_model_parallel_size": 2},
    {"pipeline_model_parallel_size": 8, "expert_model_parallel_size": 4},
    {"tensor_model_parallel_size": 2, "expert_model_parallel_size": 4, "expert_tensor_parallel_size": 1},
    {"tensor_model_parallel_size": 4, "context_parallel_size": 2, "expert_model_parallel_size": 8,
     "expert_tensor_parallel_size": 1, "pipeline_model_parallel_size": 2},
]  # fmt: skip


def test_tensor_parallel_ranks_are_neighbours_and_stages_far_apart(make_spec):
    spec = make_spec(parallelism=SIZES[0])  # 32 GPUs: two copies
    places = [coordinates(rank, spec) for rank in range(32)]
    assert places[3] == Coordinates(tp=3)
    assert places[4] == Coordinates(dp=1)
    assert places[8] == Coordinates(pp=1)
    assert places[31] == Coordinates(tp=3, dp=1, pp=3)


def test_recorded_coordinates_are_kept(make_spec, make_rank):
    spec = make_spec(gpu="cpu", parallelism={"pipeline_model_parallel_size": 2})
    known, silent = make_rank(spec, 0, coordinates=Coordinates(pp=1)), make_rank(spec, 1, coordinates=Coordinates())
    assert [rank.coordinates.pp for rank in placed((known, silent), spec)] == [1, 1]


ASK = """
import json, sys, warnings
warnings.simplefilter("ignore")
sys.modules["transformer_engine"] = None
from megatron.core.parallel_state import RankGenerator
answer = []
for dense, experts in json.loads(sys.argv[1]):
    of = {kind: RankGenerator(**dense, order="tp-cp-ep-dp-pp").get_ranks(kind) for kind in ("tp", "cp", "dp", "pp")}
    answer.append({**of, "ep": RankGenerator(**experts, order="tp-cp-ep-dp-pp").get_ranks("ep")})
print(json.dumps(answer))
"""


def generator_arguments(spec):
    """Sizes of megatron-core's two rank generators: that of dense layers and that of experts."""
    p = spec.parallelism
    pp, cp, etp, ep = (
        p.pipeline_model_parallel_size, p.context_parallel_size, p.expert_tensor_size, p.expert_model_parallel_size,
    )  # fmt: skip
    dense = {"tp": p.tensor_model_parallel_size, "ep": 1, "dp": spec.data_parallel_size, "pp": pp, "cp": cp}
    return dense, {"tp": etp, "ep": ep, "dp": spec.num_gpus // (etp * ep * pp), "pp": pp, "cp": 1}


@pytest.mark.train
def test_places_are_those_of_megatron_core(make_spec):
    specs = [make_spec(parallelism=sizes) for sizes in SIZES]
    arguments = json.dumps([generator_arguments(spec) for spec in specs])
    asked = subprocess.run(
        [sys.executable, "-c", ASK, arguments], capture_output=True, text=True, check=True,
        env={**os.environ, "TORCHDYNAMO_DISABLE": "1"},
    )  # fmt: skip
    for spec, groups in zip(specs, json.loads(asked.stdout.splitlines()[-1]), strict=True):
        for kind, of_kind in groups.items():
            places = [[getattr(coordinates(rank, spec), kind) for rank in group] for group in of_kind]
            assert places == [list(range(len(group))) for group in of_kind], (spec.parallelism, kind)
