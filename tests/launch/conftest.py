"""A small CPU spec, a machine, and plans whose workers are scripts of a few lines."""

import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.experiment.experiment import ExperimentSpec
from harness.launch.environment import Host
from harness.launch.plan import LaunchPlan, Rendezvous, free_port
from harness.records.gating import LaunchSettings

FOLDER = Path(__file__).parent
MODEL = {"num_layers": 2, "hidden_size": 64, "ffn_hidden_size": 128, "num_attention_heads": 4, "vocab_size": 256}


def spec_of(**changes):
    """A two-rank CPU experiment; sections given as mappings replace the defaults of the section."""
    fields: dict[str, Any] = {
        "recipe": "tiny", "family": "llama", "gpu": "cpu", "num_gpus": 2, "gpus_per_node": 8, "compute_dtype": "fp32",
        "model": MODEL, "batch": {"micro_batch_size": 1, "global_batch_size": 2, "seq_length": 32},
    }  # fmt: skip
    return ExperimentSpec.model_validate(fields | changes, strict=False)


def h100(**changes):
    """The same on eight H100."""
    batch = {"micro_batch_size": 1, "global_batch_size": 8, "seq_length": 32}
    fields: dict[str, Any] = {
        "gpu": "h100", "num_gpus": 8, "compute_dtype": "bf16", "batch": batch,
        "kernels": {"transformer_impl": "transformer_engine"},
    }  # fmt: skip
    return spec_of(**(fields | changes))


@pytest.fixture(name="cpu")
def _cpu():
    return spec_of


@pytest.fixture(name="h100")
def _h100():
    return h100


@pytest.fixture
def host():
    return Host(python=sys.executable, hostname="node-1", num_cores=8, shell={"PATH": "/bin", "HOME": "/home/me"})


@pytest.fixture
def fake_python(tmp_path):
    """An interpreter for plans that runs the scripted agent instead of torchrun, in a tenth of a second."""
    path = tmp_path / "fake_python"
    path.write_text(f"#!{sys.executable}\n{(FOLDER / 'scripted_agent.py').read_text()}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.fixture
def make_plan(tmp_path):
    """A plan with its own run folder, which exists; ``worker`` is the script with its arguments."""

    def make(*worker, python=sys.executable, ranks=2, **changes):
        (tmp_path / "run").mkdir(exist_ok=True)
        limits = {name: changes.pop(name, 60.0) for name in ("timeout_s", "hang_timeout_s")}
        fields: dict[str, Any] = {
            "run_dir": tmp_path / "run", "python": python, "num_local_ranks": ranks, "worker": worker, "sampler": None,
            "rendezvous": Rendezvous(1, 0, "127.0.0.1", free_port(), chosen_port=True), "env": (),
            "settings": LaunchSettings(**limits), "num_steps": 5,
        }  # fmt: skip
        return LaunchPlan(**(fields | changes))

    return make


@pytest.fixture
def two_ranks():
    """The path of the script that plays a rank."""
    return str(FOLDER / "scripted_rank.py")
