"""A small CPU spec, a machine, and plans whose workers are scripts of a few lines."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from harness.experiment.experiment import ExperimentSpec
from harness.launch.environment import EnvVar, Host
from harness.launch.plan import LaunchPlan, Nodes, free_port
from harness.launch.replay import execute
from harness.launch.warm import WarmParents
from harness.records.gating import LaunchSettings
from tests.waiting import runs, wait_until

FOLDER = Path(__file__).parent
MODEL = {"num_layers": 2, "hidden_size": 64, "ffn_hidden_size": 128, "num_attention_heads": 4, "vocab_size": 256}
RANK = str(FOLDER / "scripted_rank.py")
# With this a parent imports torch, but not megatron-core, which ranks of a few lines do not need.
WITHOUT_MEGATRON = """import sys, types
for name in ("harness.engine.rank_run", "megatron.core.ssm.gated_delta_net", "megatron.core.models.mimo",
             "megatron.core.models.gpt.experimental_attention_variant_module_specs"):
    sys.modules[name] = types.ModuleType(name)
"""


@pytest.fixture
def cpu():
    """Makes two-rank CPU experiments; sections given as mappings replace the defaults of the section."""

    def make(**changes):
        fields = {
            "recipe": "tiny", "family": "llama", "gpu": "cpu", "num_gpus": 2, "gpus_per_node": 8, "compute_dtype": "fp32",
            "model": MODEL, "batch": {"micro_batch_size": 1, "global_batch_size": 2, "seq_length": 32},
        }  # fmt: skip
        return ExperimentSpec.model_validate(fields | changes, strict=False)

    return make


@pytest.fixture
def h100(cpu):
    """The same on eight H100."""
    fields = {
        "gpu": "h100", "num_gpus": 8, "compute_dtype": "bf16", "kernels": {"transformer_impl": "transformer_engine"},
        "batch": {"micro_batch_size": 1, "global_batch_size": 8, "seq_length": 32},
    }  # fmt: skip
    return lambda **changes: cpu(**(fields | changes))


@pytest.fixture
def host():
    return Host(python=sys.executable, hostname="node-1", num_cores=8, shell={"PATH": "/bin", "HOME": "/home/me"})


@pytest.fixture
def make_plan(tmp_path):
    """A plan with its own run folder, which exists; ``worker`` is the script with its arguments."""

    def make(*worker, python=sys.executable, ranks=2, **changes):
        (tmp_path / "run").mkdir(exist_ok=True)
        limits = {name: changes.pop(name, 60.0) for name in ("timeout_s", "hang_timeout_s")}
        fields = {
            "run_dir": tmp_path / "run", "python": python, "num_local_ranks": ranks, "worker": worker, "sampler": None,
            "rendezvous": Nodes(1, 0, "127.0.0.1", free_port()), "env": (),
            "settings": LaunchSettings(**limits), "num_steps": 5,
        }  # fmt: skip
        return LaunchPlan(**(fields | changes))

    return make


@pytest.fixture
def scripted(make_plan, program):
    """Plans whose two ranks do what the arguments say, under the scripted agent instead of torchrun: in a tenth of a second."""
    python = program((FOLDER / "scripted_agent.py").read_text(), sys.executable, "fake_python")

    def make(*behaviour, **changes):
        plan = make_plan(python=python, **changes)
        return replace(plan, worker=(RANK, str(plan.run_dir), *behaviour))

    return make


@pytest.fixture(scope="module")
def warm_parents():
    """Kept over the tests, as a sweep keeps them over its cells."""
    with WarmParents() as kept:
        yield kept


@pytest.fixture(scope="module")
def light(tmp_path_factory):
    """PYTHONPATH of parents that do not import megatron-core."""
    folder = tmp_path_factory.mktemp("light")
    (folder / "sitecustomize.py").write_text(WITHOUT_MEGATRON)
    return f"{folder}:{Path.cwd()}"


@pytest.fixture
def torchrun(make_plan, light):
    """A plan for real torchrun whose two ranks do what the arguments say."""

    def make(*behaviour, **changes):
        plan = make_plan(env=inherited(PYTHONPATH=light, CUDA_VISIBLE_DEVICES=""), without_gpu=True, **changes)
        return replace(plan, worker=(RANK, str(plan.run_dir), *behaviour))

    return make


def inherited(**changes):
    """The shell of the tests as a plan's variables; None leaves one out."""
    shell = os.environ | {"PYTHONPATH": str(Path.cwd()), "OMP_NUM_THREADS": "1"} | changes
    return tuple(
        EnvVar(name, value, "inherited", "inherited") for name, value in sorted(shell.items()) if value is not None
    )


def run(plan, parents=None, on_progress=lambda _: None):
    return execute(plan, on_progress=on_progress, parents=parents)


def rank_pids(plan):
    """The pids of both ranks, once they have written them down."""

    def written():
        texts = [path.read_text() for path in (plan.run_dir / "ranks").glob("pid_*")]
        return [int(text) for text in texts] if len(texts) == 2 and all(texts) else []

    return wait_until(written, 60.0) or pytest.fail(plan.launcher_log.read_text())


def kill_agent_of(plan):
    """SIGKILL to the parent of the ranks."""
    stat_of_rank = Path(f"/proc/{rank_pids(plan)[0]}/stat").read_text()
    os.kill(int(stat_of_rank.rpartition(")")[2].split()[1]), signal.SIGKILL)


def all_gone(pids, within_s=8.0):
    return wait_until(lambda: not any(map(runs, pids)), within_s)


@contextmanager
def started_harness(plan, *options, python_path=None):
    """A harness in a process of its own, killed at the end whatever happened."""
    command = [
        sys.executable,
        str(FOLDER / "scripted_harness.py"),
        *options,
        str(plan.run_dir),
        plan.python,
        *plan.worker,
    ]
    environment = os.environ | {"PYTHONPATH": python_path or str(Path.cwd())}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as harness:
        try:
            yield harness
        finally:
            harness.kill()
