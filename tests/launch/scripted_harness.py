"""A harness as a process of its own, to be interrupted and killed: [--warm] RUN_DIR PYTHON WORKER..."""

import os
import sys
from contextlib import nullcontext
from pathlib import Path

from harness.launch.environment import EnvVar
from harness.launch.plan import LaunchPlan, Nodes, free_port
from harness.launch.replay import execute
from harness.launch.warm import WarmParents
from harness.records.gating import LaunchSettings

warm = sys.argv[1] == "--warm"
run_dir, python, *worker = sys.argv[1 + warm :]
plan = LaunchPlan(
    run_dir=Path(run_dir),
    python=python,
    rendezvous=Nodes(1, 0, "127.0.0.1", free_port()),
    num_local_ranks=2,
    worker=tuple(worker),
    sampler=None,
    env=(
        EnvVar("CUDA_VISIBLE_DEVICES", "", "a run on the processor leaves GPUs alone", "table"),
        EnvVar("PYTHONPATH", os.environ["PYTHONPATH"], "inherited", "inherited"),
    ),
    settings=LaunchSettings(timeout_s=60.0, hang_timeout_s=60.0),
    num_steps=5,
    without_gpu=True,
)
with WarmParents() if warm else nullcontext() as parents:
    sys.stdout.write(execute(plan, on_progress=lambda _: None, parents=parents).model_dump_json())
