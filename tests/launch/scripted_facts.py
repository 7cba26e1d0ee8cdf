"""A rank that writes down what it finds in its process, and leaves a mess behind: RUN_DIR."""

import gc
import json
import os
import random
import resource
import signal
import sys
import time
from pathlib import Path

gc.disable()  # imports take less time

import numpy as np  # noqa: E402
import torch  # noqa: E402
from megatron.core import parallel_state  # noqa: E402

import harness.engine.rank_run  # noqa: E402, F401
from harness.engine.process import end_now  # noqa: E402

rank, run_dir = os.environ["RANK"], Path(sys.argv[1])
OF_THIS_LAUNCH = {
    "MASTER_PORT", "MBR_PERF_PARENT_PID", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RUN_ID", "INVOCATION_ID",
}  # fmt: skip


def opened():
    """What is open; the folder that lists it is, too."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            found.append(f"{descriptor.name} {descriptor.readlink()}")
        except FileNotFoundError:
            continue
    return [name.replace(str(run_dir), "RUN_DIR") for name in sorted(found)]


def dispositions():
    """What every signal does."""
    return {str(number): str(signal.getsignal(number)).split(" at ")[0] for number in signal.valid_signals()}


facts = {
    "environment": {name: value for name, value in os.environ.items() if name not in OF_THIS_LAUNCH},
    "folder": str(Path.cwd()),
    "arguments": [argument.replace(str(run_dir), "RUN_DIR") for argument in sys.argv],
    "opened": opened(),
    "signals": dispositions(),
    "threads": len(list(Path("/proc/self/task").iterdir())),
    "threads_of_torch": torch.get_num_threads(),
    "grouped": torch.distributed.is_initialized() or parallel_state.model_parallel_is_initialized(),
    "spoilt": hasattr(torch, "spoilt") or hasattr(parallel_state, "spoilt"),
    "default_dtype": str(torch.get_default_dtype()),
    "umask": os.umask(0o022),
    "limits": [resource.getrlimit(kind) for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE, resource.RLIMIT_AS)],
    "leads_its_session": os.getsid(0) == os.getpid() == os.getpgrp(),
    "subreaper_or_parent": os.getppid() == int(os.environ["MBR_PERF_PARENT_PID"]),
    "name": __name__,
}
own = {
    "pid": os.getpid(),
    "draws": [random.random(), torch.initial_seed(), torch.rand(()).item(), np.random.random()],
    "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
}
(run_dir / "ranks" / f"facts_{rank}.json").write_text(json.dumps(facts, sort_keys=True, indent=1))
(run_dir / "ranks" / f"own_{rank}.json").write_text(json.dumps(own))

torch.spoilt = parallel_state.spoilt = True
os.environ["SPOILT"] = "1"
os.chdir("/")
torch.manual_seed(7)
torch.set_default_dtype(torch.bfloat16)
np.random.seed(7)
random.seed(7)
left_open = Path(run_dir / "ranks" / f"left_{rank}").open("w")  # noqa: SIM115
big = np.ones(60_000_000)
torch.ones(600, 600) @ torch.ones(600, 600)
with (run_dir / "ranks" / f"rank_{int(rank):03d}.progress.jsonl").open("a") as beats:
    beats.write(json.dumps({"time_s": time.time(), "phase": "finish"}) + "\n")
end_now(0)  # as a rank
