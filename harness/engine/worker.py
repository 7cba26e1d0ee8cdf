"""Entry point of a rank: reads ``spec.json``, trains, and writes ``ranks/rank_NNN.json``, also when it fails."""

import argparse
import gc
import os
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType

from harness.engine.process import (
    die_with_parent,
    dump_stacks_on_signal,
    garbage_collection_paused,
    redirect,
    run_and_end,
)
from harness.engine.rank_log import RankLog
from harness.experiment.experiment import ExperimentSpec
from harness.records.launch import BRIDGE_CONFIG
from harness.records.redact import redact


def main() -> int:
    """Run one rank under torchrun's environment (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT)."""
    parser = argparse.ArgumentParser(prog="harness.engine.worker")
    parser.add_argument("--run_dir", type=Path, required=True)
    run_dir = parser.parse_args().run_dir
    die_with_parent()
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    redirect(run_dir / "logs" / f"rank_{rank:03d}.log", 1, 2)
    sys.excepthook = _print_error
    dump_stacks_on_signal()
    spec = ExperimentSpec.model_validate_json((run_dir / "spec.json").read_text())
    with RankLog(run_dir, rank, world_size) as log:
        log.enter("import")
        train = _training_function(spec, run_dir)
        train(spec, log)
    return 0


def _training_function(spec: ExperimentSpec, run_dir: Path) -> Callable[[ExperimentSpec, RankLog], None]:
    train: Callable[[ExperimentSpec, RankLog], None]
    with garbage_collection_paused():
        if spec.gpu_type.is_cpu:
            from harness.engine.cpu_backend import before_megatron

            before_megatron()
        if spec.engine is not None:
            from harness.engine.bridge_run import run as run_bridge

            train = partial(run_bridge, config_file=run_dir / BRIDGE_CONFIG)
        else:
            from harness.engine.rank_run import run

            train = run
        gc.collect()  # otherwise a measured step pays for the collection
    return train


def _print_error(_kind: type[BaseException], error: BaseException, _traceback: TracebackType | None) -> None:
    """Return Python's text of the exception, without secrets such as a token or an address with a password."""
    sys.stderr.write(redact("".join(traceback.format_exception(error))))


if __name__ == "__main__":
    run_and_end(main)
