"""Trains one step of each case with every CPU adaptation, and with one of them left out.

Usage: leave_one_out.py CASES.json OUT.json
CASES.json: [{"name", "without": adaptation or null, "spec"}]. Writes {"needed": the adaptations that say they are,
"outcomes": name -> "trained", or the first line of the first rank's error}. Ranks are forked from this process, which has
imported megatron-core and adapted nothing, so that a case costs a fraction of a second and leaves no trace in the next.
"""

import json
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

# ruff: noqa: E402 (megatron-core must be imported after transformer-engine is blocked)
from harness.engine import cpu_backend

cpu_backend.block_transformer_engine()
warnings.simplefilter("ignore")

import torch
import torch.distributed as dist

from harness.engine import rank_run
from harness.engine.config import transformer_config
from harness.engine.model import build_chunks, wrap_ddp
from harness.engine.training import Trainer
from harness.experiment.experiment import ExperimentSpec

PATIENCE_S = 30.0


def train(spec, without, rank, store):
    cpu_backend.install(without=frozenset([without] if without else []))
    dist.init_process_group("gloo", store=dist.FileStore(store, spec.num_gpus), rank=rank, world_size=spec.num_gpus)
    rank_run.join_model_parallel(spec)
    rank_run.seed_all(spec)
    config = transformer_config(spec)
    chunks = wrap_ddp(spec, config, build_chunks(spec, config))
    trainer = Trainer(spec, config, chunks, torch.device("cpu"))
    trainer.step(index=0)
    dist.barrier()


def forked(spec, without, rank, folder):
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setpgid(0, 0)
        train(spec, without, rank, str(folder / "store"))
        code = 0
    except BaseException as error:  # noqa: BLE001 (the error is the answer)
        (folder / f"error_{rank}").write_text(traceback.format_exception_only(error)[0].strip().splitlines()[0])
    finally:
        os._exit(code)


def outcome(case):
    spec = ExperimentSpec.model_validate_json(json.dumps(case["spec"]))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pids = [forked(spec, case["without"], rank, folder) for rank in range(spec.num_gpus)]
        failed = wait(pids)
        texts = [path.read_text() for path in sorted(folder.glob("error_*"))]
        errors = [text for text in texts if text]  # a rank may be ended between opening its file and writing it
    return (errors or ["no end"])[0] if failed else "trained"


def wait(pids):
    """Whether a rank failed; the first failure ends the others, which would wait for it."""
    left, deadline, failed = set(pids), time.monotonic() + PATIENCE_S, False
    while left:
        for pid in list(left):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                left.remove(pid)
                failed |= status != 0
        if left and (failed or time.monotonic() > deadline):
            failed = True
            for pid in left:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return failed


def main():
    cases = json.loads(Path(sys.argv[1]).read_text())
    outcomes = {case["name"]: outcome(case) for case in cases}
    rows = (*cpu_backend.CPU_ADAPTATIONS, *cpu_backend.LOCAL_ADAPTATIONS)
    needed = [row.name for row in rows if row.is_needed()]
    Path(sys.argv[2]).write_text(json.dumps({"needed": needed, "outcomes": outcomes}))


if __name__ == "__main__":
    main()
