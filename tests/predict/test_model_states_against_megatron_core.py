"""Bytes of weights, gradients and optimizer state, against megatron-core's own DDP and DistributedOptimizer."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.predict.compose import Parameters
from harness.predict.model_states import model_states
from tests.engine import shapes

pytestmark = [pytest.mark.train, pytest.mark.slow]
HERE = Path(__file__).parent
ROOT = HERE.parents[1]


# Each takes one more of what the others take: ranks, groups, bytes.
ONLY_SLOW = {"fp32 gradients", "four ranks", "fp32 training", "whole optimizer", "tensor parallel"}


def _changed(spec, **sections):
    return spec.model_copy(
        update={name: getattr(spec, name).model_copy(update=fields) for name, fields in sections.items()}
    )


def _specs():
    wide = shapes.DENSE.model_copy(update={"hidden_size": 256, "ffn_hidden_size": 1024, "vocab_size": 4096})
    experts = shapes.MIXTRAL.model_copy(update={"hidden_size": 256, "ffn_hidden_size": 512})
    bf16 = shapes.experiment(wide, dtype="bf16", num_gpus=2)
    return {
        "bf16 gradients": _changed(bf16, ddp={"grad_reduce_in_fp32": False}),
        "fp32 gradients": bf16,
        "four ranks": shapes.experiment(wide, dtype="bf16", num_gpus=4),
        "fp32 training": shapes.experiment(wide, num_gpus=2),
        "whole optimizer": _changed(bf16, optimizer={"use_distributed_optimizer": False}),
        "experts": shapes.experiment(experts, dtype="bf16", num_gpus=4, expert_model_parallel_size=2),
        "tensor parallel": shapes.experiment(wide, dtype="bf16", num_gpus=4, tensor_model_parallel_size=2),
    }


@pytest.fixture(scope="module")
def specs():
    return _specs()


@pytest.fixture(scope="module")
def real(specs, tmp_path_factory, pytestconfig):
    asked = specs.keys() - (set() if pytestconfig.getoption("--slow") else ONLY_SLOW)
    request = tmp_path_factory.mktemp("states") / "request.json"
    request.write_text(json.dumps({name: specs[name].model_dump_json() for name in asked}))
    done = subprocess.run(
        [sys.executable, HERE / "scripts" / "real_model_states.py", request], check=False, capture_output=True, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1", "PYTHONPATH": str(ROOT)}, timeout=900, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name in ONLY_SLOW else []) for name in _specs()]
)
def test_states_take_the_bytes_that_megatron_core_gives_them(specs, real, name):
    spec, found = specs[name], real[name]
    total = found["dense"] + found["expert"]
    width = 4 if spec.compute_dtype == "fp32" else 2
    states = model_states(spec, Parameters(found["dense"], found["expert"], stored_bytes=width * total))
    # buffers are padded to a multiple of 128 elements and ranks; the step counters of Adam are four bytes each
    assert found["stepped"] == pytest.approx(states.total, rel=0.005)
    assert found["copied"] == pytest.approx(states.step_transient, rel=0.005, abs=4096)
    with_root = model_states(spec, Parameters(found["dense"], found["expert"]), adam="torch")
    assert found["stepping"] == pytest.approx(with_root.step_transient, rel=0.005)
