"""A rank that joins its group only after the attack on its port: RUN_DIR."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed

run_dir = Path(sys.argv[1])
(run_dir / "ranks" / "ready").touch()
while not (run_dir / "ranks" / "attacked").exists():
    time.sleep(0.05)
torch.distributed.init_process_group("gloo")
ones = torch.ones(1)
torch.distributed.all_reduce(ones)
assert ones.item() == torch.distributed.get_world_size()
torch.distributed.destroy_process_group()
