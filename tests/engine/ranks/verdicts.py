"""One rank builds and trains one step of each spec, and writes what happened to each.

Usage: verdicts.py SPECS.json OUT.json
"""

import json
import sys
from pathlib import Path

from harness.engine import cpu_backend

cpu_backend.block_transformer_engine()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.core import parallel_state  # noqa: E402

cpu_backend.install()

from harness.engine import rank_run  # noqa: E402
from harness.engine.config import transformer_config  # noqa: E402
from harness.engine.model import build_chunks, wrap_ddp  # noqa: E402
from harness.engine.training import Trainer  # noqa: E402
from harness.experiment.experiment import ExperimentSpec  # noqa: E402


def verdict(spec):
    try:
        config = transformer_config(spec)
        rank_run.seed_all(spec)
        trainer = Trainer(spec, config, wrap_ddp(spec, config, build_chunks(spec, config)), torch.device("cpu"))
        result = trainer.step(index=0)
    except Exception as error:  # noqa: BLE001 (whatever megatron-core raises is the verdict)
        return f"{type(error).__name__}: {error}"[:300]
    return "ok" if result.loss == result.loss else "loss is NaN"


def main():
    specs = [ExperimentSpec.model_validate_json(json.dumps(s)) for s in json.loads(Path(sys.argv[1]).read_text())]
    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel()
    Path(sys.argv[2]).write_text(json.dumps([verdict(spec) for spec in specs]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
